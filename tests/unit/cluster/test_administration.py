"""A listener of its own for administration: which routes it has for itself, and that clients take nothing of it."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest

from cluster.broker import Broker
from cluster.budgets.connection_limits import ADMINISTRATION_CONNECTIONS_MAX, FILES_RESERVED, connections_max
from cluster.budgets.connections import HEARD_MAX, RESERVED_CONNECTIONS
from cluster.http.administration import may_go_to
from cluster.http.listening import HttpServer
from cluster.process.addresses import ConfigError
from cluster.process.config import NodeConfig
from cluster.process.config_loading import load
from cluster.process.exit_codes import ExitCode, StartupError
from deploy.local_nodes import free_ports
from tests.certificates import Authority
from tests.unit.cluster.conftest import Node, node_config, running_node

ADMINISTRATION: Final = re.compile(r"Permission: \w+ on cluster\.")
"""Description of a route that is about the cluster as a whole."""
PARAMETERS: Final = {"file": "main.js", "queue": "0", "node_id": "9"}
CONNECTIONS: Final = 8
FLOOD: Final = 4 * CONNECTIONS


class Names(dict[str, str]):
    """Values of the parameters of paths; one that is not listed names nothing."""

    def __missing__(self, name: str) -> str:
        return "none"


def two_listeners(path: Path, **changes: Any) -> NodeConfig:
    return node_config(path, admin_listen=f"127.0.0.1:{free_ports(1)[0]}", **changes)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    fatal: list[str] = []
    async with running_node(two_listeners(tmp_path, max_connections=CONNECTIONS), fatal) as node:
        yield node
    assert not fatal


def url_of(node: Node) -> str:
    return node.core.config.advertised_admin_url() or ""


async def test_every_route_is_served_where_its_permission_says(node: Node) -> None:
    """Both listeners have every route; the one of clients sends away what is about the cluster as a whole."""
    admin_url, seen = url_of(node), {"administration": 0, "console": 0, "clients": 0}
    for route, methods in (await node.call("GET", "/openapi.json")).body["paths"].items():
        path = route.format_map(Names(PARAMETERS))
        for method, operation in methods.items():
            kind = "console" if route.startswith("/console") else "clients"
            if ADMINISTRATION.match(operation.get("description", "")):
                kind = "administration"
            seen[kind] += 1
            payload: Any = {} if method in ("post", "put") else None
            here = await node.call(method.upper(), path, payload)
            there = await node.call(method.upper(), f"{admin_url}{path}", payload)
            at = (method, route, here, there)
            assert there.status not in (307, 405, 421), at
            if kind == "clients":
                assert here.status not in (307, 405, 421), at
                continue
            assert here.body["code"] == "wrong_listener", at
            if kind == "administration":
                assert (here.status, here.body["status"], here.headers["Location"]) == (307, 307, admin_url + path), at
            else:
                assert here.status == 421, at
                assert "Location" not in here.headers, at
            assert here.body["detail"].endswith(f"use {admin_url}"), at
    assert seen["administration"] > 20, seen
    assert seen["console"] == 2, seen
    assert seen["clients"] > 35, seen
    assert (await node.call("GET", "/metrics")).status == 307


async def test_without_the_option_one_listener_serves_everything(tmp_path: Path) -> None:
    async with running_node(node_config(tmp_path), []) as node:
        for path in ("/metrics", "/console", "/v1/users", "/v1/cluster/settings"):
            assert (await node.call("GET", path)).status == 200
        assert node.core.admin_connections is None


@pytest.mark.parametrize(("auth", "is_told"), [("off", True), ("permissive", True), ("enforce", False)])
async def test_the_console_tells_its_address_to_whoever_could_ask_for_it(
    tmp_path: Path, auth: Any, is_told: bool
) -> None:
    """The files of the console are public. Where permissions hold, strangers are not told; the administrator is."""
    token = "administrator-of-the-tests-0123456789abcdef"
    file = tmp_path / "admin"
    file.touch(mode=0o600)
    file.write_text(token)
    async with running_node(two_listeners(tmp_path, auth=auth, admin_token_file=str(file)), []) as node:
        asked = await node.call("GET", "/console")
        assert (asked.status, asked.body["code"]) == (421, "wrong_listener")
        assert (url_of(node) in asked.body["detail"]) == is_told
        node.session.headers["Authorization"] = f"Bearer {token}"
        assert (await node.call("GET", "/console")).body["detail"].endswith(f"use {url_of(node)}")


async def test_who_is_on_another_machine_is_told_that_a_loopback_address_is_none_of_theirs(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cluster.http.administration.may_go_to", lambda url, client: False)
    asked = await node.call("GET", "/v1/users")
    assert (asked.status, asked.body["code"]) == (421, "wrong_listener")
    assert "Location" not in asked.headers
    assert asked.body["detail"].endswith(f"use {url_of(node)} on this node's own machine")


async def test_the_query_goes_along(node: Node) -> None:
    answer = await node.call("GET", "/v1/users?limit=3&after=a%26b")
    assert answer.headers["Location"] == f"{url_of(node)}/v1/users?limit=3&after=a%26b"


async def test_a_request_by_its_whole_url_is_sent_on_to_the_same_path(node: Node) -> None:
    """RFC 9112 has servers accept it (3.2.2). A client sends it that takes the node for a proxy."""
    address = node.core.config.http_address()
    reader, writer = await asyncio.open_connection(address.host, address.port)
    target = f"http://{address}/v1/users?limit=3&after=a%26b"
    writer.write(f"GET {target} HTTP/1.1\r\nHost: {address}\r\n\r\n".encode())
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    writer.close()
    assert "307 Temporary Redirect" in head
    assert f"Location: {url_of(node)}/v1/users?limit=3&after=a%26b\r\n" in head


@pytest.mark.parametrize(
    ("url", "client", "goes"),
    [
        ("http://127.0.0.1:7071", "127.0.0.1", True),
        ("http://[::1]:7071", "127.0.0.1", True),
        ("http://127.0.0.1:7071", "10.0.0.1", False),
        ("https://localhost:7071", "10.0.0.1", False),
        ("https://[::1]:7071", "2001:db8::1", False),
        ("https://127.9.9.9:7071", "", False),
        ("https://node:7071", "10.0.0.1", True),
    ],
)
def test_nobody_is_sent_to_a_loopback_address_of_another_machine(url: str, client: str, goes: bool) -> None:
    assert may_go_to(url, client) == goes


async def test_each_listener_names_itself_where_this_node_leads(node: Node) -> None:
    """A client that asks for the leader at one listener goes on there: a firewall may close the other."""
    assert (await node.call("GET", "/v1/cluster")).body["leader_url"] == node.core.config.advertised_url()
    there = (await node.call("GET", f"{url_of(node)}/v1/cluster")).body
    assert there["leader_url"] == url_of(node)
    assert [each["url"] for each in there["nodes"]] == [node.core.config.advertised_url()]


async def test_a_node_tells_its_listener_to_whoever_may_describe_the_cluster(tmp_path: Path, node: Node) -> None:
    for url in ("", url_of(node)):
        assert (await node.call("GET", f"{url}/v1/cluster")).body["admin_url"] == url_of(node)
    async with running_node(node_config(tmp_path / "without"), []) as without:
        assert (await without.call("GET", "/v1/cluster")).body["admin_url"] is None


async def test_both_listeners_are_measured_as_one(node: Node) -> None:
    for url in ("", url_of(node)):
        assert (await node.call("GET", f"{url}/v1/cluster")).status == 200
    text = (await node.call("GET", f"{url_of(node)}/metrics")).body.decode()
    counts = re.findall(r'keelmq_http_request_seconds_count{method="GET",route="/v1/cluster"} (\S+)', text)
    assert len(counts) == 1
    assert float(counts[0]) >= 2
    assert f"keelmq_admin_connections_limit {ADMINISTRATION_CONNECTIONS_MAX:.1f}" in text


async def test_connections_of_administration_are_counted_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("cluster.budgets.connection_limits.ADMINISTRATION_CONNECTIONS_MAX", CONNECTIONS)
    async with running_node(two_listeners(tmp_path), []) as node, contextlib.AsyncExitStack() as opened:
        own = node.core.admin_connections
        assert own is not None
        host, _, port = (node.core.config.admin_listen or "").partition(":")
        for _ in range(FLOOD):
            opened.callback((await asyncio.open_connection(host, int(port)))[1].close)

        async def is_flooded() -> bool:
            return own.closed["idle"] + own.reserved >= FLOOD - CONNECTIONS

        await node.wait(is_flooded)
        text = (await node.call("GET", f"{url_of(node)}/metrics")).body.decode()

        def counted(name: str) -> dict[str, float]:
            return {labels: float(count) for labels, count in re.findall(rf"^{name}_total(\S*) (\S+)$", text, re.M)}

        assert counted("keelmq_admin_connections_reserved") == {"": own.reserved}
        assert counted("keelmq_admin_connections_closed") == {
            f'{{reason="{reason}"}}': count for reason, count in own.closed.items()
        }
        assert set(counted("keelmq_http_connections_closed").values()) == {0}
        assert counted("keelmq_http_connections_reserved") == {"": 0}
    assert "HTTP connections are open at admin_listen" in caplog.text
    assert "HTTP connections are open at http_listen" not in caplog.text


async def test_a_flood_at_the_listener_of_clients_takes_nothing_of_administration(node: Node) -> None:
    """The administrator has the address of the flood, and its idle connection stays open all the same."""
    config = node.core.config
    assert config.admin_listen is not None
    admin_host, _, admin_port = config.admin_listen.partition(":")
    host, port = config.http_address()
    async with contextlib.AsyncExitStack() as opened:

        async def connect(to_host: str, to_port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            reader, writer = await asyncio.open_connection(to_host, to_port)
            opened.callback(writer.close)
            return reader, writer

        reader, writer = await connect(admin_host, int(admin_port))

        async def is_answered() -> bool:
            writer.write(b"GET /v1/users HTTP/1.1\r\nHost: localhost\r\n\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"Content-Length: (\d+)", head)
            assert length is not None
            await reader.readexactly(int(length[1]))
            return head.startswith(b"HTTP/1.1 200")

        assert await is_answered()
        for _ in range(FLOOD):
            await connect(host, port)

        async def is_flooded() -> bool:
            return node.core.connections.closed["idle"] + node.core.connections.reserved >= CONNECTIONS

        await node.wait(is_flooded)
        assert await is_answered()
    assert node.core.admin_connections is not None
    assert not any(node.core.admin_connections.closed.values())


def test_files_are_kept_for_the_connections_of_both_listeners(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (10_000, 10_000))
    alone = 10_000 - FILES_RESERVED - RESERVED_CONNECTIONS - HEARD_MAX
    assert connections_max(100_000) == alone
    beside = alone - ADMINISTRATION_CONNECTIONS_MAX - RESERVED_CONNECTIONS - HEARD_MAX
    assert connections_max(100_000, beside_administration=True) == beside
    assert connections_max(50, beside_administration=True) == 50


async def test_at_the_end_both_listeners_wait_for_their_requests_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that is stopped takes no longer because it has a second listener."""
    seen, end = list[str](), HttpServer.end

    async def noted(server: HttpServer) -> None:
        seen.append("begins")
        await end(server)
        seen.append("ends")

    monkeypatch.setattr(HttpServer, "end", noted)
    async with running_node(two_listeners(tmp_path), []):
        pass
    assert seen == ["begins", "begins", "ends", "ends"]


async def test_a_taken_address_ends_the_start_and_leaves_nothing_open(tmp_path: Path) -> None:
    config = two_listeners(tmp_path)
    taken = await asyncio.start_server(lambda *_: None, *(config.admin_listen or "").split(":"))
    async with taken:
        fatal: list[str] = []
        broker = Broker.open(config, fatal.append)
        with pytest.raises(StartupError) as error:
            await broker.serve(asyncio.Event(), lambda: None)
        broker.close()
    assert error.value.code == ExitCode.ADDRESS_UNAVAILABLE
    assert f"admin_listen {config.admin_listen}" in str(error.value)
    async with running_node(config, []) as node:
        assert (await node.call("GET", "/healthz")).status == 200


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"admin_listen": "127.0.0.1:7081"}, "admin_listen: 127.0.0.1:7081 is http_listen 127.0.0.1:7081, too"),
        ({"admin_listen": "0.0.0.0:7081", "insecure_http": "true"}, "is http_listen 127.0.0.1:7081, too"),
        (
            {"admin_listen": "127.0.0.1:7091", "peer_listen": "0.0.0.0:7091", "insecure_peers": "true"},
            "is peer_listen 0.0.0.0:7091, too",
        ),
        ({"admin_listen": "127.0.0.1"}, "admin_listen: '127.0.0.1' is not HOST:PORT"),
        ({"admin_listen": "127.0.0.1:0"}, "admin_listen: '127.0.0.1:0' is not HOST:PORT"),
        ({"admin_listen": "127.0.0.1:70000"}, "is not HOST:PORT"),
        ({"admin_listen": ""}, "admin_listen"),
        ({"admin_url": "http://node:7071"}, "admin_url: nothing listens there without admin_listen"),
        ({"admin_listen": "127.0.0.1:7071", "admin_url": "node:7071"}, "admin_url: 'node:7071' is not a URL"),
        ({"admin_listen": "127.0.0.1:7071", "admin_url": "http://node/x"}, "is not a URL"),
        (
            {"admin_listen": "10.0.0.1:7071"},
            "admin_listen: other machines can reach 10.0.0.1:7071, which requires http_tls_cert and http_tls_key and "
            "auth enforce",
        ),
    ],
)
def test_an_address_that_cannot_be_is_refused(tmp_path: Path, options: dict[str, str], expected: str) -> None:
    secret = tmp_path / "secret"
    secret.touch(0o600)
    secret.write_text("x" * 40)
    with pytest.raises(ConfigError) as error:
        load(None, {}, {**options, "peer_secret_file": str(secret)})
    assert expected in str(error.value)


@pytest.mark.parametrize(
    ("options", "url"),
    [
        ({"admin_listen": "127.0.0.1:7071"}, "http://127.0.0.1:7071"),
        ({"admin_listen": "[::1]:7071"}, "http://[::1]:7071"),
        ({"admin_listen": "0.0.0.0:7071", "http_url": "http://node:7081"}, "http://node:7071"),
        ({"admin_listen": "10.9.0.1:7071", "http_url": "https://node"}, "https://node:7071"),
        ({"admin_listen": "10.9.0.1:7071", "admin_url": "http://inside:80/"}, "http://inside:80"),
    ],
)
def test_the_url_follows_from_the_address_unless_it_is_given(options: dict[str, str], url: str) -> None:
    config = load(None, {}, {**options, "insecure_http": "true"})
    assert (config.advertised_admin_url() or "").rstrip("/") == url


def test_the_certificate_names_both_listeners(tmp_path: Path) -> None:
    tls = Authority().issue_server(tmp_path, "node", hosts=("localhost",))
    files = {"http_tls_cert": tls.certificate_file, "http_tls_key": tls.key_file, "http_url": "https://localhost:7081"}
    config = load(None, {}, {**files, "admin_listen": "127.0.0.1:7071", "admin_url": "https://localhost:7071"})
    assert config.advertised_admin_url() == "https://localhost:7071"
    with pytest.raises(ConfigError, match=r"does not name 127\.0\.0\.1, at which clients reach this node"):
        load(None, {}, {**files, "admin_listen": "127.0.0.1:7071"})
    with pytest.raises(ConfigError, match="admin_url: http://localhost:7071: http_tls_cert is given"):
        load(None, {}, {**files, "admin_listen": "127.0.0.1:7071", "admin_url": "http://localhost:7071"})
