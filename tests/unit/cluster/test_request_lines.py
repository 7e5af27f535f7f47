"""Log lines carry the ids of their request; slow requests are logged, long polls are not slow."""

import asyncio
import json
import logging
from collections.abc import Iterator

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from cluster.health.quorum_watch import QuorumWatch
from cluster.process import request_scope
from cluster.process.config import NodeConfig
from cluster.process.config_description import describe
from cluster.process.logging_setup import JsonFormatter, PlainFormatter, note_request
from cluster.process.request_scope import CURRENT, RequestScope, trace_id_of
from cluster.telemetry.requests import RequestTimes
from tests.unit.cluster.conftest import Node

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = f"00-{TRACE}-00f067aa0ba902b7-01"
POLL_S = 0.05
SLOW_LOGGER = "cluster.telemetry.requests"


class Lines(logging.Handler):
    """Keeps the JSON lines that are logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[dict[str, object]] = []
        self.setFormatter(JsonFormatter())
        self.addFilter(note_request)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(json.loads(self.format(record)))

    def of(self, logger: str) -> list[dict[str, object]]:
        return [line for line in self.lines if line["logger"] == logger]


@pytest.fixture
def lines() -> Iterator[Lines]:
    handler = Lines()
    logging.getLogger().addHandler(handler)
    yield handler
    logging.getLogger().removeHandler(handler)


@pytest.mark.parametrize("version", ["00", "01", "fe"])
def test_a_traceparent_that_is_valid(version: str) -> None:
    assert trace_id_of(f"{version}-{TRACE}-00f067aa0ba902b7-00") == TRACE


def test_a_later_version_may_have_more_fields() -> None:
    assert trace_id_of(f"01{TRACEPARENT[2:]}-more") == TRACE


@pytest.mark.parametrize(
    "text",
    [
        "",
        TRACEPARENT[:-1],
        f"{TRACEPARENT}-more",
        f"{TRACEPARENT}\n",
        TRACEPARENT.upper(),
        f"ff{TRACEPARENT[2:]}",
        f"00-{'0' * 32}-00f067aa0ba902b7-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"01{TRACEPARENT[2:]}-{'x' * request_scope.TRACEPARENT_CHARACTERS_MAX}",
    ],
)
def test_a_traceparent_that_is_not_valid_is_ignored(text: str) -> None:
    assert trace_id_of(text) is None


@pytest.mark.parametrize("given", ["", "a b", "x" * 65, "a\x1b[2J", "-a", "é", "a\n"])
def test_an_id_that_is_not_valid_is_replaced(given: str) -> None:
    scope, other = (RequestScope({"X-Request-Id": given}) for _ in range(2))
    assert scope.given_id is None
    assert scope.id == scope.id != other.id
    assert RequestScope({"X-Request-Id": scope.id}).id == scope.id


def test_lines_of_a_request_have_its_ids_until_its_answer() -> None:
    scope = RequestScope({"X-Request-Id": "order-1", "traceparent": TRACEPARENT})
    token = CURRENT.set(scope)
    try:
        own, of_many = (
            logging.LogRecord(name, 30, "x.py", 1, "hello", (), None) for name in ("cluster.a", "raft.node")
        )
        assert note_request(own)
        assert note_request(of_many)
        scope.ended = True
        after = logging.LogRecord("cluster.a", 30, "x.py", 1, "hello", (), None)
        assert note_request(after)
    finally:
        CURRENT.reset(token)
    assert f"cluster.a: [request order-1 trace {TRACE}] hello" in PlainFormatter().format(own)
    line = json.loads(JsonFormatter().format(own))
    assert (line["request_id"], line["trace_id"], line["message"]) == ("order-1", TRACE, "hello")
    for record in (of_many, after):
        assert "request" not in PlainFormatter().format(record)
        assert "request_id" not in json.loads(JsonFormatter().format(record))


async def test_answers_tell_the_id(node: Node) -> None:
    async with node.session.get("/v1/topics", headers={"X-Request-Id": "mine"}) as answer:
        assert answer.headers["X-Request-Id"] == "mine"
    async with node.session.get("/v1/topics") as answer:
        assert "X-Request-Id" not in answer.headers
    for path in ("/v1/topics/none", "/nothing"):
        async with node.session.get(path) as answer:
            assert answer.status == 404
            assert answer.headers["X-Request-Id"]


async def test_an_answer_before_the_body_is_read_tells_the_id(node: Node) -> None:
    reader, writer = await asyncio.open_connection(*node.broker.config.http_listen.split(":"))  # type: ignore[union-attr]
    writer.write(
        b"POST /v1/topics/orders/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: 9999999999\r\nX-Request-Id: abc-7\r\n\r\n"
    )
    async with asyncio.timeout(30):
        head = await reader.readuntil(b"\r\n\r\n")
    writer.close()
    assert head.startswith(b"HTTP/1.1 4")
    assert b"X-Request-Id: abc-7\r\n" in head


async def test_the_time_in_which_a_refused_body_goes_on_arriving_is_not_slow(node: Node, lines: Lines) -> None:
    host, port = str(node.broker.config.http_listen).split(":")
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(
        b"POST /v1/topics/orders/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: 9999999999\r\n\r\n"
    )
    async with asyncio.timeout(30):
        await reader.readuntil(b"\r\n\r\n")
        while await reader.read(4096):  # until the node gives up, after more than slow_request_ms
            pass
    writer.close()
    assert lines.of(SLOW_LOGGER) == []


async def test_a_bug_is_logged_under_the_id_of_its_answer(
    node: Node, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node.core.raft, "propose", None)  # calling it is a bug
    headers = {"traceparent": TRACEPARENT}
    async with node.session.put("/v1/topics/orders", json={"queues": 1}, headers=headers) as answer:
        assert answer.status == 500
        request_id = answer.headers["X-Request-Id"]
    [line] = [line for line in lines.of("cluster.http.app") if "failed" in str(line["message"])]
    assert (line["request_id"], line["trace_id"]) == (request_id, TRACE)


async def test_the_time_for_which_a_request_asks_to_wait_is_counted(node: Node) -> None:
    waiters = node.core.waiters
    for wait in (
        waiters.wait_queue("orders", 0, POLL_S),
        waiters.wait_topics(["orders"], POLL_S),
        waiters.wait_group("workers", POLL_S),
        waiters.entries.wait(1_000_000, POLL_S),
    ):
        scope = RequestScope({})
        CURRENT.set(scope)
        assert not await wait
        scope.ended = True
        assert scope.polled_s >= POLL_S * 0.9


async def test_each_write_has_a_line_at_debug(node: Node, lines: Lines) -> None:
    logger = logging.getLogger(SLOW_LOGGER)
    headers = {"X-Request-Id": "shop-1"}
    for level in (logging.INFO, logging.DEBUG):
        logger.setLevel(level)
        try:
            async with node.session.put("/v1/topics/orders", json={"queues": 1}, headers=headers) as answer:
                assert answer.ok
            async with node.session.get("/v1/topics/orders", headers=headers) as answer:
                assert answer.ok
        finally:
            logger.setLevel(logging.NOTSET)
    (line,) = lines.of(SLOW_LOGGER)
    shown = [line[name] for name in ("level", "request_id", "method", "route", "raft_index")]
    assert shown[:4] == ["debug", "shop-1", "PUT", "/v1/topics/{topic}"]
    assert shown[4] == node.core.raft.applied_index


async def test_a_long_poll_is_not_slow(lines: Lines) -> None:
    now_s = [0.0]
    times = RequestTimes(1_000, lambda request: "alice", lambda: now_s[0])

    async def handler(request: web.Request) -> web.Response:
        now_s[0] += 30.5
        CURRENT.get().polled_s += 30.0  # type: ignore[union-attr]
        return web.Response()

    application = web.Application(middlewares=[times.middleware()])
    application.router.add_get("/poll", handler)
    async with TestClient(TestServer(application)) as client, asyncio.timeout(30):
        await client.get("/poll")
    assert lines.of(SLOW_LOGGER) == []


@pytest.mark.parametrize(("slow_ms", "logged"), [(1_000, 1), (2_001, 0), (0, 0)])
async def test_slow_requests_are_logged_with_route_principal_and_times(slow_ms: int, logged: int, lines: Lines) -> None:
    now_s = [0.0]
    times = RequestTimes(slow_ms, lambda request: "alice", lambda: now_s[0])

    async def handler(request: web.Request) -> web.Response:
        request_scope.note_queued(0.5)
        request_scope.note_replicated(1.25)
        now_s[0] += 2.0
        return web.Response()

    application = web.Application(middlewares=[times.middleware()])
    application.router.add_get("/things/{name}", handler)
    async with TestClient(TestServer(application)) as client, asyncio.timeout(30):
        await client.get("/things/secret", headers={"X-Request-Id": "r1"})
    found = lines.of(SLOW_LOGGER)
    assert len(found) == logged
    for line in found:
        fields = ("level", "request_id", "method", "route", "principal", "duration_ms", "queued_ms", "replication_ms")
        shown = [line[name] for name in fields]
        assert shown == ["warning", "r1", "GET", "/things/{name}", "alice", 2_000, 500, 1_250]
        assert "secret" not in str(line["message"])


async def test_quorum_lost_and_won_is_logged_once_with_names(
    node: Node, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch, leadership = QuorumWatch(node.core), node.core.raft.leadership
    name = "cluster.health.quorum_watch"
    watch.look()
    heard = leadership.heard_voters
    lines.lines.clear()
    monkeypatch.setattr(leadership, "heard_voters", frozenset)
    watch.look()
    watch.look()
    [lost] = lines.of(name)
    url = node.core.url_of(1)
    assert (lost["level"], lost["message"]) == ("warning", f"quorum lost: 0 of 1 voters answer; silent: node 1 ({url})")
    monkeypatch.setattr(leadership, "heard_voters", heard)
    watch.look()
    watch.look()
    [_, won] = lines.of(name)
    assert won["level"] == "warning"
    assert str(won["message"]).endswith(f"1 of 1 voters answer: node 1 ({url})")


async def test_a_fresh_node_that_waits_for_a_majority_has_lost_none(
    node: Node, lines: Lines, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    watch, leadership = QuorumWatch(node.core), node.core.raft.leadership
    name = "cluster.health.quorum_watch"
    caplog.set_level(logging.INFO, name)
    lines.lines.clear()
    with monkeypatch.context() as alone:
        alone.setattr(leadership, "heard_voters", frozenset)
        watch.look()
        watch.look()
    watch.look()
    [line] = lines.of(name)
    message = f"quorum: 1 of 1 voters answer: node 1 ({node.core.url_of(1)})"
    assert (line["level"], line["message"]) == ("info", message)


def test_the_line_at_the_start_shows_no_credentials() -> None:
    config = NodeConfig(webhook_allow=("https://user:hidden@shop.example/checks?key=hidden",), log_level="debug")
    text = describe(config)
    assert 'log_level="debug"' in text
    assert 'webhook_allow=["https://shop.example/checks"]' in text
    assert "hidden" not in text
    assert "\n" not in text
