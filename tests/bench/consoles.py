"""Measures what browsers that show the console cost: rounds in turn without and with them, in one run.

The processor time of the leader says it with less noise than rates do: by view for drawing it once, and for a second in
which nobody sends, without and with the browsers.
"""

import asyncio
import statistics
from functools import partial
from typing import Final

import aiohttp

from deploy.local_nodes import LocalNode
from tests.bench import load
from tests.bench.browsers import ANEW, DRAWN_S, GROUP, TAKEN, TOPIC, VIEWS, browsers, cost_ms
from tests.bench.cluster import BenchCluster, processor_s
from tests.bench.figures import Figure, Figures

QUEUES: Final = 256
HALVES: Final = 100
DRAWS: Final = 200
IDLE_S: Final = 2 * DRAWN_S
IDLE_ROUNDS: Final = 3
KEPT_GOAL_PERCENT: Final = 97


async def measure(cluster: BenchCluster, count: int, rounds: int, seconds: float, figures: Figures) -> None:
    """Measure `count` browsers on the leader."""
    leader = await _prepare(cluster)
    draws: dict[str, float] = {}
    for view in VIEWS:
        figures.step(f"{2 * DRAWS} draws of {view}")
        draws[view], shared = [await cost_ms(leader, view, DRAWS, taken) for taken in (ANEW, TAKEN)]
        figures.add(
            Figure(f"draw_{view}_anew", f"{view} drawn once, made anew: processor time", draws[view], "ms"),
            Figure(f"draw_{view}", "… as others had it in the same two seconds", shared, "ms"),
        )
    view = max(draws, key=lambda each: draws[each])
    await _idle(leader, count, view, figures)
    without: list[tuple[float, float]] = []
    beside: list[tuple[float, float]] = []
    for number in range(1, rounds + 1):
        figures.step(f"64 senders: round {number} of {rounds}, without and with {count} browsers")
        for shown in (0, count) if number % 2 else (count, 0):  # what changes meanwhile is on either side as often
            async with browsers(leader.url, shown, view):
                (beside if shown else without).append(await _send(cluster, leader, seconds))
    ratios = [100 * after[0] / before[0] for before, after in zip(without, beside, strict=True)]
    spread = f"rounds {min(ratios):.0f} to {max(ratios):.0f} %"
    figures.add(
        Figure(
            "rate",
            "64 concurrent sends of 1 KiB without browsers",
            statistics.median(each[0] for each in without),
            "msg/s",
        ),
        Figure(
            "rate_kept",
            f"… kept with {count} browsers on {view}, median ({spread})",
            statistics.median(ratios),
            "%",
            KEPT_GOAL_PERCENT,
            ">=",
        ),
        Figure(
            "send_cpu",
            "processor time of the leader for a send, without",
            statistics.median(each[1] for each in without),
            "us",
        ),
        Figure(
            "send_cpu_beside",
            "… and with browsers, theirs included",
            statistics.median(each[1] for each in beside),
            "us",
        ),
    )


async def _idle(leader: LocalNode, count: int, view: str, figures: Figures) -> None:
    """Measure a second in which nobody sends, in turn without browsers and with those that share answers and do not."""
    kinds = {"none": (0, TAKEN), "anew": (count, ANEW), "shared": (count, TAKEN)}
    taken_ms: dict[str, list[float]] = {kind: [] for kind in kinds}
    for number in range(1, IDLE_ROUNDS + 1):
        for kind, (shown, taken) in kinds.items():
            figures.step(f"nobody sends: round {number} of {IDLE_ROUNDS}, {shown} browsers ({kind})")
            async with browsers(leader.url, shown, view, taken):
                begun_s = processor_s(leader)
                await asyncio.sleep(IDLE_S)
                taken_ms[kind].append(1_000 * (processor_s(leader) - begun_s) / IDLE_S)
    for kind, what in (
        ("none", "nobody sends: processor time of the leader a second"),
        ("anew", f"… with {count} browsers on {view}, each answer made anew"),
        ("shared", "… and with shared answers"),
    ):
        figures.add(Figure(f"idle_{kind}", what, statistics.median(taken_ms[kind]), "ms"))


async def _send(cluster: BenchCluster, leader: LocalNode, seconds: float) -> tuple[float, float]:
    """Return messages per second, and microseconds of the leader's processor for each, the warm-up included."""
    begun_s = processor_s(leader)
    rate = await load.concurrent_sends(cluster.urls, TOPIC, 1024, seconds)
    sent = rate * seconds * 1.2
    return rate, 1_000_000 * (processor_s(leader) - begun_s) / sent


async def _prepare(cluster: BenchCluster) -> LocalNode:
    """Make what the views show. Return the leader."""
    async with aiohttp.ClientSession(raise_for_status=True) as http:
        call = partial(cluster.call, http)
        await call("PUT", f"/v1/topics/{TOPIC}", {"queues": QUEUES, "type": "any"})
        offsets = [{"topic": TOPIC, "queue": queue, "offset": 0} for queue in range(QUEUES)]
        await call("PUT", f"/v1/groups/{GROUP}/offsets", {"offsets": offsets})
        for number in range(HALVES):
            half = {"transaction_id": f"t{number}", "producer_group": "p", "messages": [{"topic": TOPIC, "body": "1"}]}
            await call("POST", "/v1/transactions", half)
        status = await call("GET", "/v1/cluster")
    return next(node for node in cluster.nodes if node.node_id == status["leader_id"])
