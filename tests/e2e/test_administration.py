"""Real nodes with a listener for administration: who is sent where, by which credentials, and how it is introduced."""

import asyncio
import contextlib
import http.client
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from deploy.local_nodes import free_ports
from deploy.rollout.inventory import toml
from keelmq import Connection, Consumer, Producer, ReceivedMessage, Tls
from keelmq.admin import Admin
from keelmq.admin.users import Rule, Users
from keelmq.errors import Forbidden, Unauthenticated
from tests.certificates import Authority
from tests.e2e.closed_cluster import ADMINISTRATOR, bearer, closed, code, rule, someone
from tests.e2e.cluster_process import ClusterProcess, NodeProcess, Reply, ok, until, wait_for
from tests.e2e.fixtures import Shell
from tests.e2e.test_http_tls import client_context, flags_of, issued
from tests.e2e.test_permissions import calls
from tests.patience import PATIENCE_S

CONSOLE: Final = frozenset({"/console", "/console/{file}"})
AGENT: Final = str(Path(__file__).parents[2] / "deploy" / "container" / "agent.py")
CALLS_BETWEEN: Final = 20
"""Number of calls of each kind that have to succeed between two restarts."""


def admin_port(node: NodeProcess) -> int:
    at = node.arguments.index("--admin-listen") + 1
    return int(node.arguments[at].rpartition(":")[2])


def admin_url(node: NodeProcess) -> str:
    return f"{'http' if node.tls is None else 'https'}://{node.host}:{admin_port(node)}"


def ask(node: NodeProcess, method: str, path: str, payload: Any = None, headers: Mapping[str, str] = {}) -> Reply:
    """Send one request to the listener of administration; redirects are not followed."""
    tls = node.tls
    connection = (
        http.client.HTTPConnection(node.host, admin_port(node), timeout=PATIENCE_S)
        if tls is None
        else http.client.HTTPSConnection(node.host, admin_port(node), timeout=PATIENCE_S, context=tls)
    )
    with contextlib.closing(connection):
        body = None if payload is None else json.dumps(payload)
        typed = {"Content-Type": "application/json"} if method in ("POST", "PUT") else {}
        connection.request(method, path, body, {**typed, **headers})
        response = connection.getresponse()
        return Reply(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, ca: Authority) -> Iterator[ClusterProcess]:
    """Three nodes under TLS with enforced permissions, each with both listeners."""
    directory = tmp_path_factory.mktemp("cluster")
    certificates = [ca.issue_server(directory, f"http-{number}") for number in (1, 2, 3)]
    found = closed(directory, tls=client_context(certificates[0].ca_file))
    for node, tls, port in zip(found.nodes.values(), certificates, free_ports(3), strict=True):
        node.arguments += [*flags_of(tls), "--admin-listen", f"{node.host}:{port}"]
    with found:
        ok(found.wait_leader().request("PUT", "/v1/topics/kept", payload={"queues": 1}))
        yield found


def tls_of(cluster: ClusterProcess) -> Tls:
    return Tls(ca_file=str(cluster.directory / "http-1.ca"))


@pytest.mark.parametrize("who", ["stranger", "user", "administrator"])
def test_every_route_at_both_listeners_tells_only_who_may_use_it(cluster: ClusterProcess, who: str) -> None:
    leader = cluster.wait_leader()
    headers = {
        "stranger": lambda: {"Authorization": ""},
        "user": lambda: bearer(someone(leader_at_administration(cluster), rule("*", on="topic:none*")).token),
        "administrator": lambda: bearer(ADMINISTRATOR),
    }[who]()
    operations = ok(leader.request("GET", "/openapi.json"))["paths"]
    for call in calls(leader):
        about_cluster = "on cluster." in operations[call.route][call.method.lower()].get("description", "")
        is_harmless = who != "administrator" or call.method == "GET"  # an administrator would do all of that
        if not is_harmless and not about_cluster:
            continue
        here = leader.request(call.method, call.path, payload=call.payload, headers=headers)
        there = ask(leader, call.method, call.path, call.payload, headers) if is_harmless else None
        at = (call, here, there)
        if about_cluster and who == "administrator":
            assert (here.status, here.headers["location"]) == (307, admin_url(leader) + call.path), at
            assert code(here) == "wrong_listener", at
            assert there is None or there.status < 500, at
            continue
        assert there is not None
        assert code(there) != "wrong_listener", at
        assert there.status != 307, at
        if call.route in CONSOLE:
            assert (here.status, code(here), there.status) == (421, "wrong_listener", 200), at
        else:
            assert (here.status, code(here)) == (there.status, code(there)), at
        if about_cluster:
            assert here.status == {"stranger": 401, "user": 403}[who], at
        if who != "administrator" and call.route != "/v1/cluster":
            assert f":{admin_port(leader)}".encode() not in here.body, at
            assert "location" not in here.headers, at


def test_only_who_may_describe_the_cluster_is_told_the_listeners(cluster: ClusterProcess) -> None:
    leader = cluster.wait_leader()
    for rules, is_told in (([rule("*", on="topic:*")], False), ([rule("describe", on="cluster")], True)):
        headers = bearer(someone(leader_at_administration(cluster), *rules).token)
        status = ok(leader.request("GET", "/v1/cluster", headers=headers))
        assert status["admin_url"] == (admin_url(leader) if is_told else None)


def leader_at_administration(cluster: ClusterProcess) -> Any:
    """Return the leader, whose requests go to its listener of administration."""
    leader = cluster.wait_leader()

    class There:
        def request(self, method: str, path: str, *, payload: Any = None) -> Reply:
            return ask(leader, method, path, payload, bearer(ADMINISTRATOR))

    return There()


async def test_administrators_begin_at_any_listener_of_any_node(cluster: ClusterProcess) -> None:
    """The SDK follows to the leader's listener; credentials that do not suffice there suffice nowhere."""
    nodes = [cluster.follower(), cluster.wait_leader()]
    for number, url in enumerate([each(node) for node in nodes for each in (admin_url, lambda node: node.url)]):
        connection = Connection(url, tls=tls_of(cluster), token=ADMINISTRATOR)
        with contextlib.closing(connection):
            users, name = Users(connection), f"begun-{number}"
            await users.put(name, rules=(Rule(actions=("send",), resource="topic:kept"),), revision=0)
            assert (await users.get(name)).user == name
            token = (await users.create_token(name)).token
            assert (await Admin(connection).cluster(leader=True)).role == "leader"
            await Producer((), connection=connection).send("kept", b"x")
            await users.put(f"{name}-too", rules=(), revision=0)
        other = Connection(url, tls=tls_of(cluster), token=token)
        with contextlib.closing(other):
            with pytest.raises(Forbidden):
                await Users(other).all()
            await Producer((), connection=other).send("kept", b"y")
        stranger = Connection(url, tls=tls_of(cluster), token="keelmq_" + "x" * 43)
        with contextlib.closing(stranger), pytest.raises(Unauthenticated):
            await Users(stranger).all()


def test_the_command_works_at_a_listener_of_administration(cluster: ClusterProcess) -> None:
    shell = Shell(cluster)
    shell.environment |= {
        "KEELMQ_SERVERS": admin_url(cluster.follower()),
        "KEELMQ_CA_FILE": str(cluster.directory / "http-1.ca"),
        "KEELMQ_TOKEN": ADMINISTRATOR,
    }
    shell("cluster", "status")
    assert not [each for each in shell.json("doctor", "--seconds", "0")["findings"] if each["code"] == "metrics_hidden"]
    shell("topic", "create", "by-command")
    shell("send", "by-command", "hello")
    shell("auth", "user", "create", "by-command")
    shell("cluster", "join-token", "9")
    shell("cluster", "transfer", str(cluster.follower().node_id))
    cluster.wait_leader()


def test_a_container_that_is_stopped_hands_over_at_its_own_listener(cluster: ClusterProcess) -> None:
    leader, directory = cluster.wait_leader(), cluster.directory
    options = {
        "node_id": leader.node_id,
        "peers": [node.peer_option for node in cluster.nodes.values()],
        "http_tls_cert": str(directory / f"http-{leader.node_id}.crt"),
        "http_ca": str(directory / "http-1.ca"),
        "admin_token_file": str(directory / "admin-token"),
        "admin_listen": f"{leader.host}:{admin_port(leader)}",
    }
    file = directory / "agent.toml"
    file.write_text(toml(options))
    command = [sys.executable, AGENT, "hand-over", "--config", str(file), "--timeout-s", str(PATIENCE_S)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert cluster.wait_leader() is not leader


def test_new_certificates_reach_both_listeners_at_a_hang_up(cluster: ClusterProcess, ca: Authority) -> None:
    node = cluster.follower()
    assert f"administration at {admin_url(node)}," in node.output()

    def shown(port: int) -> bytes:
        assert node.tls is not None
        with contextlib.closing(node.tls.wrap_socket(_connected(node, port), server_hostname=node.host)) as connection:
            return connection.getpeercert(binary_form=True) or b""

    tls = ca.issue_server(cluster.directory, f"http-{node.node_id}")
    node.send_signal(signal.SIGHUP)
    for port in (node.http_port, admin_port(node)):
        wait_for(lambda port=port: shown(port) == issued(tls), "the new certificate")  # type: ignore[misc]


def _connected(node: NodeProcess, port: int) -> Any:
    return socket.create_connection((node.host, port), timeout=PATIENCE_S)


async def test_the_listener_is_introduced_node_by_node_under_load(tmp_path: Path) -> None:
    """No call of a producer, a consumer or an administrator fails, whichever nodes have the option already."""
    with ClusterProcess(tmp_path) as cluster:
        leader = cluster.wait_leader()
        ok(leader.request("PUT", "/v1/topics/kept", payload={"queues": 2}))
        sent: list[bytes] = []
        received: set[bytes] = set()
        counts = {"sent": 0, "administered": 0}
        ends = asyncio.Event()
        connections = [Connection(cluster.servers, call_timeout_ms=int(PATIENCE_S * 1000)) for _ in range(3)]
        producer = Producer((), connection=connections[0])

        async def send() -> None:
            while not ends.is_set():
                body = str(len(sent)).encode()
                await producer.send("kept", body)
                sent.append(body)
                counts["sent"] += 1
                await asyncio.sleep(0)

        async def administer() -> None:
            admin = Admin(connections[1])
            while not ends.is_set():
                await admin.put_settings(reject_transactions=counts["administered"] % 2 == 0)
                await admin.cluster(leader=True)
                counts["administered"] += 1

        async def handle(message: ReceivedMessage) -> None:
            received.add(message.body)

        async def goes_on() -> None:
            before = dict(counts)
            await until(lambda: all(counts[kind] >= before[kind] + CALLS_BETWEEN for kind in counts))

        consumer = Consumer((), "readers", "kept", handle, connection=connections[2], start="earliest")
        async with asyncio.TaskGroup() as tasks:
            consuming = tasks.create_task(consumer.run())
            tasks.create_task(send())
            tasks.create_task(administer())
            await goes_on()
            for node, port in zip(cluster.nodes.values(), free_ports(3), strict=True):
                assert await asyncio.to_thread(node.terminate) == 0
                node.arguments += ["--admin-listen", f"{node.host}:{port}"]
                node.start()
                await asyncio.to_thread(cluster.wait_ready)
                assert node.request("GET", "/metrics").status == 307
                await goes_on()
            ends.set()
            await until(lambda: received >= set(sent))
            await consumer.close()
            await consuming
        for connection in connections:
            connection.close()
        cluster.wait_same_state()


async def test_who_reaches_the_listeners_of_administration_only_finds_the_leader_among_them(tmp_path: Path) -> None:
    """The URLs that the nodes name for clients are dead here, as behind a firewall."""
    found = ClusterProcess(tmp_path)
    ports = free_ports(6)
    for node, port, own in zip(found.nodes.values(), ports[:3], ports[3:], strict=True):
        node.http_port = port
        node.arguments += ["--http-listen", f"{node.host}:{port}", "--admin-listen", f"{node.host}:{own}"]
    with found as cluster:
        cluster.wait_leader()
        for number in range(10):
            connection = Connection([admin_url(node) for node in cluster.nodes.values()])
            with contextlib.closing(connection):
                admin = Admin(connection)
                assert (await admin.put_settings(reject_transactions=number % 2 == 0)).document
                assert (await admin.put_topic("kept", queues=1)).topic == "kept"
                assert (await Producer((), connection=connection).send("kept", b"x")).offset == number
