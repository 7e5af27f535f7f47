"""The far link loses nothing, also when its own connection to the target is made later than bytes are due there."""

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from deploy.local_nodes import free_ports
from tests.far_link import FarLink
from tests.patience import PATIENCE_S

FIRST = b"POST / HTTP/1.1\r\n" + bytes(60_000)
REST = os.urandom(1 << 20)


@contextmanager
def sent_before_the_link_connects(sent: bytes) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Yield the client's socket and the target's. The link finds `sent` when it accepts: there is no delay in which it
    could connect first.
    """
    (port,) = free_ports(1)
    with socket.create_server(("127.0.0.1", 0)) as target:
        target.settimeout(PATIENCE_S)
        with FarLink({port: target.getsockname()[1]}, 0.0) as link:
            os.kill(link.pid, signal.SIGSTOP)
            try:
                client = socket.create_connection(("127.0.0.1", port))
                client.sendall(sent)
                if not sent:
                    client.close()
            finally:
                os.kill(link.pid, signal.SIGCONT)
            with client, target.accept()[0] as served:
                served.settimeout(PATIENCE_S)
                yield client, served


def test_what_comes_before_its_connection_is_made_arrives_first() -> None:
    """Found: the first bytes of a request were dropped; a node took the rest for a request, and answered 400."""
    with sent_before_the_link_connects(FIRST) as (client, served):
        client.sendall(REST)
        client.shutdown(socket.SHUT_WR)
        received = bytearray()
        while part := served.recv(1 << 20):
            received += part
    assert received == FIRST + REST


def test_an_end_that_comes_before_its_connection_is_made_arrives() -> None:
    with sent_before_the_link_connects(b"") as (_, served):
        assert served.recv(1) == b""
