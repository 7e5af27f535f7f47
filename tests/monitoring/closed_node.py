"""A node that enforces permissions and has a listener for administration, and what can go wrong with it."""

import contextlib
import itertools
import re
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from cluster.audit.stream import DIRECTORY
from cluster.budgets.connection_limits import ADMINISTRATION_CONNECTIONS_MAX
from cluster.core.audit_trail import DENIALS_PER_ADDRESS_MAX
from deploy.local_nodes import free_ports
from tests.e2e.closed_cluster import ADMINISTRATOR, closed
from tests.e2e.cluster_process import ClusterProcess, ok, wait_for
from tests.e2e.small_disk import fill, mounted_at
from tests.e2e.test_administration import admin_port, ask
from tests.monitoring.faults import Fault
from tests.patience import PATIENCE_S
from tests.requirements import SMALL_DISK

CONNECTIONS_MAX: Final = 100
"""Limit of the connections of clients."""
MACHINES: Final = tuple(f"127.0.1.{number}" for number in range(1, 21))
"""Each address has its share of connections, so that only many of them can take nearly all."""
BEARER: Final = {"Authorization": f"Bearer {ADMINISTRATOR}"}
TOPIC: Final = "orders"


class ClosedNode:
    """Provokes faults in the one node of a cluster."""

    def __init__(self, cluster: ClusterProcess) -> None:
        self._node = cluster.nodes[1]
        self._connect: Callable[[], None] | None = None
        self.target = f"{self._node.host}:{admin_port(self._node)}"
        """Where Prometheus finds the metrics, with the token of the administrator, and the doctor all that it asks."""

    # --- connections ------------------------------------------------------------------------------------------------

    def admin_script(self) -> contextlib.AbstractContextManager[None]:
        return self._held(admin_port(self._node), ADMINISTRATION_CONNECTIONS_MAX, MACHINES[:1])

    def admin_scripts(self) -> contextlib.AbstractContextManager[None]:
        return self._held(admin_port(self._node), ADMINISTRATION_CONNECTIONS_MAX, MACHINES)

    def client(self) -> contextlib.AbstractContextManager[None]:
        return self._held(self._node.http_port, CONNECTIONS_MAX, MACHINES[:1])

    def clients(self) -> contextlib.AbstractContextManager[None]:
        return self._held(self._node.http_port, CONNECTIONS_MAX, MACHINES)

    @contextlib.contextmanager
    def _held(self, port: int, limit: int, machines: Sequence[str]) -> Iterator[None]:
        """Behave as a program on each of the machines that makes a connection for each request and closes none. All
        together make as many as the listener may have, and again as many.
        """
        turns = itertools.cycle(machines)
        with contextlib.ExitStack() as opened:

            def connect() -> None:
                to = self._node.host, port
                _ask_once(opened.enter_context(socket.create_connection(to, PATIENCE_S, (next(turns), 0))))

            for _ in range(2 * limit):
                connect()
            self._connect = connect
            assert ask(self._node, "GET", "/v1/users", headers=BEARER).status == 200
            assert self._metrics()
            yield

    def connect_again(self) -> None:
        """Go on as these programs do."""
        assert self._connect is not None
        self._connect()

    # --- the audit --------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def full_audit(self) -> Iterator[None]:
        """Fill the file system of the audit, and heal it. Calls go on meanwhile."""
        ballast = self._node.data_dir / DIRECTORY / "ballast"
        self.change()
        fill(ballast)
        wait_for(self._changes_and_loses, "a record to be lost")
        yield
        ballast.unlink()
        assert "the audit cannot be written: " in self._node.log_path.read_text()
        self.change()
        wait_for(lambda: any(record.get("missing_before") for record in self._audit()), "a record after the lost ones")

    @contextlib.contextmanager
    def denials(self) -> Iterator[None]:
        """Behave as a client without rights that does not give up."""
        self.be_denied()
        yield

    def be_denied(self) -> None:
        for _ in range(2 * DENIALS_PER_ADDRESS_MAX):
            assert self._node.request("GET", f"/v1/topics/{TOPIC}", headers={"Authorization": ""}).status == 401

    def change(self) -> None:
        ok(self._node.request("PUT", f"/v1/topics/{TOPIC}", payload={"queues": 1}))

    def _changes_and_loses(self) -> bool:
        self.change()
        lost = re.search(r'^keelmq_audit_records_lost_total{reason="not_written"} (\S+)$', self._metrics(), re.M)
        return lost is not None and float(lost[1]) > 0

    def _audit(self) -> list[dict[str, Any]]:
        return list(ok(ask(self._node, "GET", "/v1/audit", headers=BEARER))["records"])

    def _metrics(self) -> str:
        answer = ask(self._node, "GET", "/metrics", headers=BEARER)
        assert answer.status == 200, answer
        return answer.body.decode()


def _ask_once(connection: socket.socket) -> None:
    """Send a request and read the beginning of its answer, or find that the node has closed the connection."""
    with contextlib.suppress(ConnectionError):
        connection.sendall(
            f"GET /v1/cluster HTTP/1.1\r\nHost: localhost\r\nAuthorization: {BEARER['Authorization']}\r\n\r\n".encode()
        )
        connection.recv(4096)


@contextlib.contextmanager
def closed_node(directory: Path, options: Sequence[str]) -> Iterator[ClosedNode]:
    """Run the node as a cluster of its own. The audit has a small file system of its own where that is possible."""
    (port,) = free_ports(1)
    cluster = closed(directory, nodes=1, options=(*options, "--max-connections", str(CONNECTIONS_MAX)))
    node = cluster.nodes[1]
    node.arguments += ["--admin-listen", f"{node.host}:{port}"]
    with contextlib.ExitStack() as stack:
        if SMALL_DISK.reason is None:
            node.data_dir.mkdir(mode=0o700)
            stack.enter_context(mounted_at(node.data_dir / DIRECTORY))
        stack.enter_context(cluster)
        yield ClosedNode(cluster)


SHORT: Final = ("few_connections",)
SHORT_ADMIN: Final = ("few_admin_connections",)
CONNECT: Final = ClosedNode.connect_again
INCOMPLETE: Final = ("audit_incomplete",)
CLOSED_FAULTS: Final[tuple[Fault[ClosedNode], ...]] = (
    Fault("admin-script", ("KeelMQAdminConnectionsExhausted",), SHORT_ADMIN, ClosedNode.admin_script, stir=CONNECT),
    Fault("admin-scripts", ("KeelMQAdminConnectionsExhausted",), SHORT_ADMIN, ClosedNode.admin_scripts, stir=CONNECT),
    Fault("client", ("KeelMQConnectionsExhausted",), SHORT, ClosedNode.client, stir=CONNECT),
    Fault("clients", ("KeelMQConnectionsExhausted",), SHORT, ClosedNode.clients, stir=CONNECT),
    Fault("full-audit", ("KeelMQAuditIncomplete",), INCOMPLETE, ClosedNode.full_audit, SMALL_DISK, ClosedNode.change),
    Fault("denials", ("KeelMQAuditIncomplete",), INCOMPLETE, ClosedNode.denials, stir=ClosedNode.be_denied),
)
