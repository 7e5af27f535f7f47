"""Tests where `keelmq-deploy` administers nodes: at their listeners for administration, if it reaches them."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from deploy.local_nodes import free_ports
from deploy.rollout.health import Probe, ServedElsewhere
from deploy.rollout.inventory import Inventory, read_inventory

LEAD = "/v1/cluster/members/1/lead"


class Listener:
    """A listener of a node: answers every call with the status and the document, and notes it."""

    def __init__(self, status: int = 200, code: str = "") -> None:
        asked = self.asked = list[str]()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                asked.append(f"{self.path} {self.headers['Authorization']}")
                body = json.dumps({"code": code, "detail": "as it is"}).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def end(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def sends_on() -> Iterator[Listener]:
    """A listener of clients beside one for administration."""
    made = Listener(307, "wrong_listener")
    yield made
    made.end()


@pytest.fixture
def serves() -> Iterator[Listener]:
    made = Listener()
    yield made
    made.end()


def inventory(directory: Path, port: int, admin_listen: str = "", ssh: str = "", host: str = "127.0.0.1") -> Inventory:
    (directory / "token").write_text("keelmq_secret\n")
    options = f'admin_listen = "{admin_listen}"\n' if admin_listen else ""
    path = directory / "cluster.toml"
    path.write_text(
        f'[cluster]\nid = "shop"\ntoken_file = "{directory / "token"}"\n[options]\n{options}'
        f'[[node]]\nid = 1\nssh = "{ssh}"\npeer = "{host}:7091"\nurl = "http://{host}:{port}"\n'
    )
    return read_inventory(path)


def test_the_listener_for_administration_is_asked_and_no_other(
    tmp_path: Path, serves: Listener, sends_on: Listener
) -> None:
    found = inventory(tmp_path, sends_on.port, f"127.0.0.1:{serves.port}")
    assert Probe(found).call(found.nodes[0], "POST", LEAD)[0] == 200
    assert (serves.asked, sends_on.asked) == ([f"{LEAD} Bearer keelmq_secret"], [])


def test_a_node_that_does_not_have_it_yet_is_asked_where_it_listens(tmp_path: Path, serves: Listener) -> None:
    """The inventory names the listener before the node is restarted with it."""
    found = inventory(tmp_path, serves.port, f"127.0.0.1:{free_ports(1)[0]}")
    assert Probe(found).call(found.nodes[0], "POST", LEAD)[0] == 200
    assert len(serves.asked) == 1


@pytest.mark.parametrize("status", [307, 421])
def test_a_listener_that_is_not_reached_is_told(tmp_path: Path, status: int) -> None:
    """Not the answer: a verb would take the redirect for that of a follower, and wait for a leader."""
    clients = Listener(status, "wrong_listener")
    try:
        for admin_listen in ("", f"127.0.0.1:{free_ports(1)[0]}"):
            found = inventory(tmp_path, clients.port, admin_listen)
            with pytest.raises(
                ServedElsewhere, match=r"node 1 \(this machine\): POST .* is served at admin_listen only"
            ):
                Probe(found).call(found.nodes[0], "POST", LEAD)
    finally:
        clients.end()


def test_a_loopback_address_of_another_host_is_not_asked(tmp_path: Path, serves: Listener) -> None:
    """Something else listens there on this machine, and the call would show it the token."""
    node = inventory(tmp_path, 7081, f"127.0.0.1:{serves.port}", ssh="deploy@10.0.0.1", host="10.0.0.1").nodes[0]
    assert node.admin_url == f"http://127.0.0.1:{serves.port}"
    assert node.administered_at == ("http://10.0.0.1:7081",)


def test_backups_name_all_listeners_and_begin_at_those_for_administration(tmp_path: Path) -> None:
    """The token is shown to servers that are named, so a node without TLS may send the call on to its own."""
    node = inventory(tmp_path, 7081, "0.0.0.0:7071", host="10.0.0.1").nodes[0]
    assert node.administered_at == ("http://10.0.0.1:7071", "http://10.0.0.1:7081")
