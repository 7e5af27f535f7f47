"""A real node in this process: real files, real Raft (a group of one), real HTTP, and a clock of our own."""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest
from aiohttp import web

from cluster.broker import Broker
from cluster.core.core import Core
from cluster.http.openapi import codes_of
from cluster.problems import CODE
from cluster.process.config import NodeConfig
from cluster.process.http_tls import trusting
from deploy.local_nodes import free_ports
from raft.health.clock import Clock
from tests.patience import PATIENCE_S

START_MS = 1_700_000_000_000


class HeldClock:
    """A clock that moves only when told to: the test decides when something is due by the replicated clock."""

    def __init__(self) -> None:
        self.now_ms = START_MS
        self.leapt_ms = 0
        """Milliseconds by which the wall clock has leapt ahead of the monotonic one."""

    def clock(self) -> Clock:
        return Clock(lambda: self.now_ms + self.leapt_ms, lambda: self.now_ms / 1000)


class Answer(NamedTuple):
    status: int
    body: Any
    headers: Any


class Node:
    """A running node, its clock and a client of it."""

    def __init__(self, broker: Broker, clock: HeldClock, session: aiohttp.ClientSession) -> None:
        self.broker = broker
        self.clock = clock
        self.session = session

    @property
    def core(self) -> Core:
        return self.broker.core

    async def call(self, method: str, path: str, payload: Any = None) -> Answer:
        headers = {"Content-Type": "application/json"} if method in ("POST", "PUT") else {}
        async with self.session.request(method, path, json=payload, headers=headers, allow_redirects=False) as response:
            is_json = response.content_type.endswith("json") and response.status != 204
            body = await response.json(content_type=None) if is_json else await response.read()
            return Answer(response.status, body, response.headers)

    def waiting_requests(self) -> int:
        """Return the number of long polls of this machine that wait."""
        return self.core.holdings.held_by("127.0.0.1", "long_polls")

    async def until_waiting(self, count: int) -> None:
        """Wait until `count` long polls of this machine wait."""

        async def so_many() -> bool:
            return self.waiting_requests() == count

        await self.wait(so_many)

    async def wait(self, condition: Callable[[], Awaitable[Any]]) -> Any:
        """Return the first truthy answer of `condition`."""
        async with asyncio.timeout(PATIENCE_S):
            while not (value := await condition()):
                await asyncio.sleep(0.01)
            return value


@pytest.fixture(autouse=True)
def late_loop_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nodes of this process be ready although its loop stood, as on a busy machine."""
    monkeypatch.setattr("cluster.health.readiness.STALL_S", math.inf)


def node_config(path: Path, **changes: Any) -> NodeConfig:
    http_port, peer_port = free_ports(2)
    settings: dict[str, Any] = {
        "data_dir": str(path / "data"),
        "http_listen": f"127.0.0.1:{http_port}",
        "peer_listen": f"127.0.0.1:{peer_port}",
        "segment_bytes": 1 << 20,
        "min_free_bytes": 0,
        "election_timeout_ms": 50,
        "heartbeat_ms": 10,
        "check_webhook_timeout_ms": 60_000,
    }
    return NodeConfig(**{**settings, **changes})


def note_undescribed_codes(broker: Broker) -> set[tuple[str, str, str]]:
    """Return a set that gets the method, path and code of each error that the broker answers and does not describe."""
    described = {(route.method, route.path): codes_of(route) for route in broker.services.routes}
    undescribed: set[tuple[str, str, str]] = set()

    async def note(request: web.Request, response: web.StreamResponse) -> None:
        resource, code = request.match_info.route.resource, response.get(CODE)
        if resource is None or code is None:
            return
        if code not in described[request.method, resource.canonical]:
            undescribed.add((request.method, resource.canonical, code))

    for application in (broker.services.application, broker.services.administration):
        if application is not None:
            application.on_response_prepare.append(note)
    return undescribed


async def _look_on(node: Node) -> None:
    """Do nothing before the node is ready."""


@contextlib.asynccontextmanager
async def running_node(
    config: NodeConfig,
    fatal: list[str],
    leapt_ms: int = 0,
    before_ready: Callable[[Node], Awaitable[None]] = _look_on,
    ca_file: str | None = None,
) -> AsyncIterator[Node]:
    """Run a node until it is ready. Reasons for which it would have to stop are appended to `fatal`. `before_ready`
    runs while the node gets ready. With `ca_file` the node is called over TLS.
    """
    clock, ready, stop = HeldClock(), asyncio.Event(), asyncio.Event()
    clock.leapt_ms = leapt_ms
    broker = Broker.open(config, fatal.append, clock.clock())
    undescribed = note_undescribed_codes(broker)
    serving = asyncio.create_task(broker.serve(stop, ready.set))
    try:
        await asyncio.wait([serving, asyncio.create_task(ready.wait())], return_when=asyncio.FIRST_COMPLETED)
        scheme, tls = ("http", True) if ca_file is None else ("https", trusting(ca_file))
        connector = aiohttp.TCPConnector(ssl=tls)
        async with aiohttp.ClientSession(f"{scheme}://{config.http_listen}", connector=connector) as session:
            node = Node(broker, clock, session)

            async def is_ready() -> bool:
                await before_ready(node)
                return (await node.call("GET", "/readyz")).status == 200

            await node.wait(is_ready)
            yield node
    finally:
        stop.set()
        await serving
        broker.close()
    assert not undescribed, "/openapi.json does not name these errors"


@pytest.fixture(autouse=True)
def patient_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give pages much time: a machine that stands still for a quarter of a second would make one end early."""
    monkeypatch.setattr("cluster.budgets.pace.SEARCH_S_MAX", 60.0)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    """Return a ready node."""
    fatal: list[str] = []
    async with running_node(node_config(tmp_path), fatal) as node:
        yield node
    assert not fatal
