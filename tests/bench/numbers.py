"""Measures the cost of many topics, queues, groups, members and waiting pulls for the leader, and the waits it causes.

Processor seconds are those of the leader's process; the longest wait is that of a probe of its /healthz meanwhile.
"""

import argparse
import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import aiohttp

from deploy.local_nodes import LocalNode
from tests.bench import load
from tests.bench.cluster import BenchCluster, processor_s
from tests.bench.figures import Figure, Figures

ROOT: Final = Path(__file__).parents[2]
QUEUES: Final = 8
AT_ONCE: Final = 64
JOINING_AT_ONCE: Final = 8
RATE_TOPIC: Final = "bench-numbers-rate"
PULL_TOPIC: Final = "bench-numbers-pull"
GROUP_TOPIC: Final = "bench-numbers-group"
SESSION_TIMEOUT_MS: Final = 1_800_000
WAIT_MS: Final = 30_000
EVENTS: Final = 200
QUIET_S: Final = 3.0
LEADER_TIMEOUT_S: Final = 30.0
POLL_S: Final = 0.02
JOIN_GOAL_S: Final = 3.0
STEP_GOAL_MS: Final = 20
RATE_GOAL_PERCENT: Final = 90
MEMORY_GOAL_MIB: Final = 400
CHECK_MS: Final = 2_000
"""Interval of the retention walk in ms: short enough that each case sees some walks."""

Call = Callable[[str, str, Any], Awaitable[dict[str, Any]]]


async def measure(directory: Path, settings: argparse.Namespace, figures: Figures) -> None:
    cluster = BenchCluster(directory, {"retention_check_ms": str(CHECK_MS)})
    try:
        cluster.start()
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(120)) as http:
            leader = await _leader(cluster, http)
            bench = _Bench(http, leader, figures)
            async with cluster.watch_memory() as samples:
                await bench.members(settings.members)
                await bench.pulls(settings.pulls)
                await bench.call("PUT", f"/v1/topics/{RATE_TOPIC}", {"queues": QUEUES})
                before, before_us = await bench.sends(cluster, settings.seconds)
                await bench.fill(settings.topics, settings.consumer_groups)
                after, after_us = await bench.sends(cluster, settings.seconds)
                await bench.lists()
            what = f"sends with {settings.topics:,} topics and {settings.consumer_groups:,} groups, of the rate without"
            figures.add(
                Figure("rate_left", what, 100 * after / before, "%", RATE_GOAL_PERCENT, ">="),
                Figure("send_cpu_before", "processor time of a send without", before_us, "us"),
                Figure("send_cpu_after", "… and with", after_us, "us", before_us * 100 / RATE_GOAL_PERCENT),
                Figure("memory", "… resident memory of a node in all of it", max(samples), "MiB", MEMORY_GOAL_MIB),
            )
            await bench.election(cluster, leader)
    finally:
        cluster.close()


class _Bench:
    def __init__(self, http: aiohttp.ClientSession, leader: LocalNode, figures: Figures) -> None:
        self._http = http
        self._leader = leader
        self._figures = figures

    async def call(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        async with self._http.request(method, self._leader.url + path, json=body) as response:
            response.raise_for_status()
            if not response.content_type.endswith("json"):
                await response.read()
                return {}
            answer: dict[str, Any] = await response.json()
            return answer

    async def members(self, count: int) -> None:
        """Measure joins of a few members at a time, which wait for rebalances; and another group's events without and
        with them.
        """
        await self.call("PUT", f"/v1/topics/{GROUP_TOPIC}", {"queues": QUEUES})
        async with self._measured("events_alone", f"{EVENTS} events of a group, nobody waits"):
            await self._events()
        tasks: list[asyncio.Task[None]] = []
        try:
            async with self._measured("members_join", f"{count:,} members join, all are told", JOIN_GOAL_S):
                told = [asyncio.Event() for _ in range(count)]

                async def start(number: int) -> None:
                    joined = asyncio.Event()
                    tasks.append(asyncio.create_task(self._member(number, count, joined, told[number])))
                    await joined.wait()

                await _all(start, count, JOINING_AT_ONCE)
                await asyncio.gather(*(each.wait() for each in told))
            async with self._measured("events_beside", f"… the {EVENTS} events again, {count:,} members wait"):
                await self._events()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _member(self, number: int, count: int, joined: asyncio.Event, told: asyncio.Event) -> None:
        """Run a member; `told` is set once it knows the generation in which all `count` members have joined."""
        path = "/v1/groups/bench-many/members"
        member = await self.call("POST", path, _joining(f"m{number}"))
        joined.set()
        while True:
            if member["generation"] >= count:
                told.set()
            beat = {"generation": member["generation"], "wait_ms": WAIT_MS}
            member = await self.call("POST", f"{path}/m{number}/heartbeat", beat)

    async def _events(self) -> None:
        for _ in range(EVENTS // 2):
            await self.call("POST", "/v1/groups/bench-other/members", _joining("m"))
            await self.call("DELETE", "/v1/groups/bench-other/members/m")

    async def pulls(self, count: int) -> None:
        await self.call("PUT", f"/v1/topics/{PULL_TOPIC}", {"queues": 1})
        path = f"/v1/topics/{PULL_TOPIC}/queues/0/messages?offset=0&wait_ms={WAIT_MS}"
        waiting = [asyncio.create_task(self.call("GET", path)) for _ in range(count)]
        while await self._gauge("keelmq_waiting_pulls") < count:
            await asyncio.sleep(POLL_S)
        async with self._measured("pulls", f"{count:,} waiting pulls answered"):
            await self.call("POST", f"/v1/topics/{PULL_TOPIC}/messages", {"messages": [{"body": "x", "queue": 0}]})
            await asyncio.gather(*waiting)

    async def sends(self, cluster: BenchCluster, seconds: float) -> tuple[float, float]:
        """Return messages per second, and microseconds of the leader's processor for each, warm-up included."""
        produced, cpu_s = await self._gauge("keelmq_produced_messages_total"), processor_s(self._leader)
        rate = await load.concurrent_sends(cluster.urls, RATE_TOPIC, 1024, seconds)
        cpu_s, produced = (
            processor_s(self._leader) - cpu_s,
            await self._gauge("keelmq_produced_messages_total") - produced,
        )
        return rate, cpu_s / produced * 1_000_000

    async def fill(self, topics: int, groups: int) -> None:
        async def topic(number: int) -> None:
            await self.call("PUT", f"/v1/topics/bench-{number}", {"queues": QUEUES})
            messages = [{"body": "x", "queue": queue} for queue in range(QUEUES)]
            await self.call("POST", f"/v1/topics/bench-{number}/messages", {"messages": messages})

        async def group(number: int) -> None:
            await self.call("POST", f"/v1/groups/bench-{number}/members", _joining("m", f"bench-{number % topics}"))

        async with self._measured("topics", f"{topics:,} topics of {QUEUES} queues made, a message in each"):
            await _all(topic, topics)
        async with self._measured("groups", f"{groups:,} groups of a member made"):
            await _all(group, groups)
        async with self._measured("quiet", f"{QUIET_S:.0f} s in which nobody asks anything", step_goal=STEP_GOAL_MS):
            await asyncio.sleep(QUIET_S)

    async def lists(self) -> None:
        for name in ("topics", "groups"):
            async with self._measured(f"list_{name}", f"all {name} listed", step_goal=STEP_GOAL_MS):
                path = f"/v1/{name}"
                while (page := await self.call("GET", path)).get("next"):
                    path = f"/v1/{name}?after={page['next']}"
        async with self._measured("scrape", "/metrics", step_goal=STEP_GOAL_MS):
            await self.call("GET", "/metrics")

    async def election(self, cluster: BenchCluster, killed: LocalNode) -> None:
        """Kill the leader, and measure the next one, which walks over everything for the first time."""
        killed.kill()
        others = [node for node in cluster.nodes if node is not killed]
        self._leader = await _leader(cluster, self._http, others)
        async with self._measured("elected", f"{QUIET_S:.0f} s of a new leader", step_goal=STEP_GOAL_MS):
            await asyncio.sleep(QUIET_S)
        now = await _leader(cluster, self._http, others)
        self._figures.add(
            Figure("leader_changed", "… leaders that it lost meanwhile", int(now is not self._leader), "", 0)
        )

    async def _gauge(self, name: str) -> float:
        async with self._http.get(self._leader.url + "/metrics") as response:
            lines = (await response.text()).splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith(name + " "))

    @contextlib.asynccontextmanager
    async def _measured(
        self, key: str, what: str, goal_s: float | None = None, *, step_goal: float | None = None
    ) -> AsyncIterator[None]:
        probe = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "tests.bench.probe", self._leader.url),
            cwd=ROOT,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        self._figures.step(what)
        begun_s = processor_s(self._leader)
        try:
            yield
        finally:
            taken_s = processor_s(self._leader) - begun_s
            longest, _ = await probe.communicate(b"")
        self._figures.add(
            Figure(f"{key}_cpu", f"{what}: processor time", taken_s, "s", goal_s),
            Figure(f"{key}_longest", "… longest wait meanwhile", float(longest), "ms", step_goal),
        )


def _joining(member_id: str, topic: str = GROUP_TOPIC) -> dict[str, Any]:
    return {"topics": [topic], "member_id": member_id, "session_timeout_ms": SESSION_TIMEOUT_MS}


async def _all(work: Callable[[int], Awaitable[None]], count: int, at_once: int = AT_ONCE) -> None:
    """Run `work` for each number below `count`, `at_once` at a time."""
    numbers = iter(range(count))

    async def some() -> None:
        for number in numbers:
            await work(number)

    await asyncio.gather(*(some() for _ in range(at_once)))


async def _leader(
    cluster: BenchCluster, http: aiohttp.ClientSession, among: list[LocalNode] | None = None
) -> LocalNode:
    async with asyncio.timeout(LEADER_TIMEOUT_S):
        while True:
            for node in among or cluster.nodes:
                async with http.get(f"{node.url}/readyz?for=writes") as response:
                    if response.status == 200:
                        return node
            await asyncio.sleep(POLL_S)
