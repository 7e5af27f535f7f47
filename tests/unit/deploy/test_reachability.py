"""`keelmq-deploy` says at once what is wrong when this machine reaches one listener of a node and not the other."""

import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from deploy.local_nodes import free_ports
from deploy.rollout import reachability, transport
from deploy.rollout.health import Probe
from deploy.rollout.inventory import read_inventory
from deploy.rollout.reachability import obstacles
from tests.unit.deploy.stand_ins import Run

HERE = "0.0.0.0"
"""Address of this machine that is no loopback address, as a host has for others."""
ADMIN_URL = "http://10.0.0.1:7071"


class StandIn:
    """Listener of a node that is ready and leads. Notes what it is asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.admin_url: str | None = ADMIN_URL
        self.role = "leader"
        stand_in = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                stand_in.asked.append(f"GET {self.path}")
                self._answer(200, stand_in.status())

            def do_POST(self) -> None:
                stand_in.asked.append(f"{self.command} {self.path}")
                self._answer(307, {"code": "wrong_listener", "detail": "elsewhere"})

            def do_DELETE(self) -> None:
                self.do_POST()

            def _answer(self, status: int, document: dict[str, Any]) -> None:
                body = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def status(self) -> dict[str, Any]:
        member = {"node_id": 1, "membership": "voter", "connected": True, "match_index": 1}
        told = {"role": self.role, "term": 1, "leader_id": 1, "nodes": [member], "admin_url": self.admin_url}
        return {**told, "alarms": [], "hash_index": 1, "state_hash": "a", "commit_index": 1, "applied_index": 1}

    def end(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def node() -> Iterator[StandIn]:
    made = StandIn()
    yield made
    made.end()


@pytest.fixture
def closed_port() -> int:
    return free_ports(1)[0]


def write(directory: Path, url_port: int, options: str, ssh: str = "") -> Path:
    path = directory / "cluster.toml"
    path.write_text(
        f'[cluster]\nid = "shop"\nroot = "{directory / "hosts"}"\npython = "{sys.executable}"\n[options]\n{options}\n'
        f'[[node]]\nid = 1\nssh = "{ssh}"\npeer = "127.0.0.1:{free_ports(1)[0]}"\nurl = "http://{HERE}:{url_port}"\n'
    )
    return path


def at(port: int) -> str:
    return f'admin_listen = "0.0.0.0:{port}"'


@pytest.fixture
def asks_no_host(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a host was asked")

    monkeypatch.setattr(transport.Host, "facts", refuse)


def found(path: Path) -> list[tuple[str, bool, bool]]:
    inventory = read_inventory(path)
    return [(each.text, each.hides_health, each.is_in_force) for each in obstacles(inventory, Probe(inventory))]


def test_both_listeners_are_reached_or_there_is_only_one(tmp_path: Path, node: StandIn, closed_port: int) -> None:
    assert found(write(tmp_path, node.port, at(node.port))) == []
    assert found(write(tmp_path, closed_port, "")) == []
    assert found(write(tmp_path, closed_port, at(free_ports(1)[0]))) == [], (
        "a node that is down is none of our business"
    )
    assert node.asked == [], "nobody is asked where nothing is in the way"


def test_a_listener_that_the_node_does_not_have_yet_is_not_missed(
    tmp_path: Path, node: StandIn, closed_port: int
) -> None:
    """The inventory names it before the node is restarted with it, by a verb that must not be refused therefore."""
    node.admin_url = None
    assert found(write(tmp_path, node.port, at(closed_port))) == []


def test_a_node_that_opens_its_listeners_just_now_is_not_named(
    tmp_path: Path, node: StandIn, closed_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[list[tuple[str, int]]] = []

    def refused_of(addresses: list[tuple[str, int]]) -> dict[tuple[str, int], str]:
        looks.append(addresses)
        return {(HERE, closed_port): "Connection refused"} if len(looks) == 1 else {}

    monkeypatch.setattr(reachability, "refused_of", refused_of)
    assert found(write(tmp_path, closed_port, at(node.port))) == []
    assert len(looks) == 2


@pytest.mark.parametrize("key", ["admin_listen", "admin_url"])
def test_a_loopback_address_of_another_host_is_named(tmp_path: Path, node: StandIn, key: str) -> None:
    options = 'admin_listen = "127.0.0.1:7071"'
    if key == "admin_url":
        options += '\nadmin_url = "http://localhost:7071"'
    path = write(tmp_path, node.port, options, ssh="deploy@10.0.0.1")
    ((text, hides_health, is_in_force),) = found(path)
    address, better = ("127.0.0.1:7071", f"{HERE}:7071") if key == "admin_listen" else ("localhost:7071", "http://")
    assert text.startswith(f"node 1 (deploy@10.0.0.1): it is administered at {address} alone, a loopback address of")
    assert f"({key}), which this machine does not reach: it comes there by ssh. Next: give {key} an address" in text
    assert f"such as {better}" in text
    assert (hides_health, is_in_force) == (False, True)
    node.admin_url = None
    assert not found(path)[0][2], "the node is administered at its URL for as long as it has no other listener"


@pytest.mark.parametrize("verb", ["transfer", "add", "remove"])
@pytest.mark.usefixtures("asks_no_host")
def test_a_verb_that_administers_ends_at_once(tmp_path: Path, node: StandIn, run: Run, verb: str) -> None:
    write(tmp_path, node.port, 'admin_listen = "127.0.0.1:7071"', ssh="deploy@10.0.0.1")
    for more in ((), ("--dry-run",)):
        code, said = run(verb, "1", *more)
        assert code == 1
        assert "node 1 (deploy@10.0.0.1): it is administered at 127.0.0.1:7071 alone" in said
        assert "plan:" not in said
    assert not [asked for asked in node.asked if not asked.startswith("GET")]


@pytest.mark.usefixtures("asks_no_host")
def test_a_backup_ends_at_once(tmp_path: Path, node: StandIn, run: Run) -> None:
    write(tmp_path, node.port, 'admin_listen = "127.0.0.1:7071"', ssh="deploy@10.0.0.1")
    for more in ((), ("1",)):
        code, said = run("backup", *more)
        assert code == 1
        assert "it is administered at 127.0.0.1:7071 alone" in said
        assert "plan:" not in said


@pytest.mark.parametrize("arguments", [("status",), ("wait",), ("spare", "1"), ("leads", "1")])
def test_other_verbs_name_it_and_go_on(tmp_path: Path, node: StandIn, run: Run, arguments: tuple[str, ...]) -> None:
    write(tmp_path, node.port, 'admin_listen = "127.0.0.1:7071"', ssh="deploy@10.0.0.1")
    more = ("--timeout-s", "0.001") if arguments[0] == "spare" else ()
    code, said = run(*arguments, *more)
    assert "it is administered at 127.0.0.1:7071 alone" in said
    assert code == (3 if arguments[0] == "spare" else 0), said


@pytest.mark.parametrize("verb", ["transfer", "add", "remove"])
@pytest.mark.usefixtures("asks_no_host")
def test_a_closed_port_of_administration_is_named(
    tmp_path: Path, node: StandIn, closed_port: int, run: Run, verb: str
) -> None:
    write(tmp_path, node.port, at(closed_port))
    code, said = run(verb, "1")
    assert code == 1
    assert f"node 1 (this machine): {HERE}:{closed_port} (admin_listen) cannot be reached from this machine (" in said
    assert f"while {HERE}:{node.port} (url) can, and both are needed" in said
    assert f"Next: open the port {closed_port} for this machine, or correct admin_listen" in said
    assert "plan:" not in said


def test_a_closed_port_of_administration_is_named_by_verbs_that_do_not_need_it(
    tmp_path: Path, node: StandIn, closed_port: int, run: Run
) -> None:
    write(tmp_path, node.port, at(closed_port))
    code, said = run("status")
    assert (code, f"{HERE}:{closed_port} (admin_listen) cannot be reached" in said) == (0, True), said


@pytest.mark.parametrize(
    "arguments",
    [
        *(("bootstrap",), ("restart",), ("upgrade",), ("rollback",), ("wait",), ("restore", "--backup", __file__)),
        *((verb, "1") for verb in ("undrain", "add", "replace", "transfer", "drain", "remove", "spare", "leads")),
        ("recover", "1"),
    ],
)
@pytest.mark.usefixtures("asks_no_host")
def test_a_closed_port_of_health_ends_what_would_wait_for_it(
    tmp_path: Path, node: StandIn, closed_port: int, run: Run, arguments: tuple[str, ...]
) -> None:
    write(tmp_path, closed_port, at(node.port))
    code, said = run(*arguments)
    assert code == 1
    assert f"{HERE}:{closed_port} (url) cannot be reached from this machine (" in said
    assert f"while {HERE}:{node.port} (admin_listen) can" in said
    assert f"open the port {closed_port} for this machine, or correct url" in said
    assert "plan:" not in said


def test_an_obstacle_at_a_node_that_does_not_lead_is_no_obstacle_for_others(
    tmp_path: Path, node: StandIn, closed_port: int, run: Run
) -> None:
    """Named, and gone past: a member whose firewall is wrong can be removed."""
    follower = StandIn()
    try:
        follower.role = "follower"
        path = write(tmp_path, node.port, at(node.port))
        path.write_text(
            f'{path.read_text()}[[node]]\nid = 2\npeer = "127.0.0.1:{free_ports(1)[0]}"\n'
            f'url = "http://{HERE}:{follower.port}"\noptions = {{ admin_listen = "0.0.0.0:{closed_port}" }}\n'
        )
        _, said = run("remove", "2", "--dry-run")
        assert f"{HERE}:{closed_port} (admin_listen) cannot be reached" in said
        assert "plan:" in said, said
    finally:
        follower.end()


def test_what_is_served_elsewhere_ends_a_verb_without_a_repetition(
    tmp_path: Path, node: StandIn, closed_port: int, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The firewall may be closed after the look: what the node answers does not change by itself."""
    write(tmp_path, node.port, at(closed_port))
    monkeypatch.setattr("deploy.rollout.verbs.obstacles", lambda *_: [])
    monkeypatch.setattr("deploy.rollout.node_verbs.refuse_unless_safe", lambda *_: None)
    code, said = run("remove", "1")
    assert code == 1, said
    assert "is served at admin_listen only" in said
    assert "next: keelmq-deploy preflight" in said
    assert len([asked for asked in node.asked if asked.startswith("DELETE")]) == 1


# --- preflight -----------------------------------------------------------------------------------------------------


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have `ssh` run its command on this machine."""
    program = tmp_path / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\nfor last; do :; done\nexec sh -c "$last"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")


@pytest.mark.usefixtures("ssh")
def test_preflight_names_a_loopback_address_of_another_host(tmp_path: Path, run: Run) -> None:
    url, admin = free_ports(2)
    write(tmp_path, url, f'admin_listen = "127.0.0.1:{admin}"', ssh="deploy@10.0.0.1")
    code, said = run("preflight")
    assert code == 1
    assert f"node 1 (deploy@10.0.0.1): it is administered at 127.0.0.1:{admin} alone, a loopback address" in said
    assert "1 defects" in said
    write(tmp_path, url, at(admin), ssh="deploy@10.0.0.1")
    code, said = run("preflight")
    assert code == 0, said


@pytest.mark.parametrize("key", ["url", "admin_listen"])
def test_preflight_names_each_port_that_this_machine_does_not_reach(
    tmp_path: Path, run: Run, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, admin = free_ports(2)
    write(tmp_path, url, at(admin))
    blocked = url if key == "url" else admin

    def reach(targets: list[list[Any]]) -> dict[str, Any]:
        return {"refused": [[host, port, "timed out"] for host, port in targets if port == blocked]}

    monkeypatch.setattr("deploy.rollout.host_agent.reach", reach)
    code, said = run("preflight")
    assert code == 1
    assert f"this machine: {HERE}:{blocked} cannot be reached (timed out), the {key} of node 1 (this machine)" in said
    assert "1 defects" in said
