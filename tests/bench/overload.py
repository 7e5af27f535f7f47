"""Measures overload: the acknowledged share when twice the capacity is offered, over loopback and over a far link.

The capacity is measured with enough callers to keep everything busy, each awaiting its batch, in turn with the load.
Then batches are offered at twice that rate, whether they are answered or not, each with the budget of the producer.
The offering process has a core of its own, the nodes have the others: the cost of offering, and of being refused, is
not taken from the nodes, as it would not be on separate machines.
"""

import asyncio
import contextlib
import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import keelmq
from deploy.local_nodes import free_ports, wait_ready
from tests.bench import cores, load
from tests.bench.bodies import Bodies
from tests.bench.cluster import BenchCluster
from tests.bench.figures import Figure, Figures
from tests.far_link import FarLink

ONE_WAY_MS: Final = 20.0
"""Delay of the far link in one direction: a round trip takes 40 ms."""
BATCH: Final = 20
BODY_BYTES: Final = 1_000
SEND_BODY_BYTES: Final = 16_000
"""Size of single messages: with small ones the process that offers twice the capacity would be the overloaded one."""
CALLERS: Final = 256
SEND_TIMEOUT_MS: Final = 2_000
ROUNDS: Final = 3
"""Number of rounds, in turn with the capacity; their medians are compared."""
STEP_S: Final = 0.01
WARM_UP_S: Final = 1.5
"""Seconds until the queue in a producer has reached the length that its budget allows."""
GOODPUT_GOAL_PERCENT: Final = 90.0
PACED_BATCHES_PER_S: Final = 60
PACED_S: Final = 8.0
TOPICS: Final = ("overload-capacity", "overload-paced", "overload-batches", "overload-sends")


class Offered(NamedTuple):
    """Outcomes of the offered messages. `goodput` is the number acknowledged per second after the warm-up."""

    goodput: float
    offered: int
    acknowledged: int
    unknown: int
    refused: int
    stored: int
    errors: Counter[str]


async def measure(directory: Path, seconds: float, figures: Figures) -> None:
    core = cores.set_core_aside()
    for name in ("far", "near"):
        cluster = BenchCluster(directory / name)
        if name == "near":
            cluster.start()
            try:
                with cores.on(core):
                    await _measure(cluster.urls, name, seconds, figures)
            finally:
                cluster.close()
            continue
        targets = {}
        for node, port in zip(cluster.nodes, free_ports(len(cluster.nodes)), strict=True):
            node.options["http_listen"] = f"127.0.0.1:{port}"
            targets[node.http_port] = port
        try:
            for node in cluster.nodes:
                node.start()
            with FarLink(targets, ONE_WAY_MS):
                wait_ready(cluster.nodes)
                with cores.on(core):
                    await _measure(cluster.urls, name, seconds, figures)
        finally:
            cluster.close()


async def _measure(urls: Sequence[str], name: str, seconds: float, figures: Figures) -> None:
    where = "over 40 ms" if name == "far" else "over loopback"
    with contextlib.closing(keelmq.Connection(urls)) as connection:
        admin = keelmq.Admin(connection)
        for topic in TOPICS:
            await admin.put_topic(topic, queues=4)
        small, large = Bodies(BODY_BYTES), Bodies(SEND_BODY_BYTES)
        if name == "far":
            paced = await _offer(urls, admin, "overload-paced", small, BATCH, PACED_BATCHES_PER_S, PACED_S)
            _tell(
                figures,
                name,
                "paced",
                f"{PACED_BATCHES_PER_S} batches of {BATCH} a second {where}",
                paced,
                PACED_BATCHES_PER_S * BATCH,
            )
        for kind, count, bodies in (("batches", BATCH, small), ("sends", 1, large)):
            figures.step(f"{kind} {where}: the capacity")
            capacities = [await _capacity(urls, bodies, count, seconds / 2)]
            rounds = []
            for number in range(1, ROUNDS + 1):
                figures.step(f"{kind} {where}: round {number} of {ROUNDS}, twice the capacity offered")
                per_s = 2 * capacities[-1] / count
                rounds.append(await _offer(urls, admin, f"overload-{kind}", bodies, count, per_s, seconds + WARM_UP_S))
                capacities.append(await _capacity(urls, bodies, count, seconds / 2))
            capacity = statistics.median(capacities)
            figures.add(Figure(f"{name}_{kind}_capacity", f"{kind} {where}: the capacity", capacity, "msg/s"))
            _tell(figures, name, kind, f"{kind} {where}, twice that offered", _median(rounds), capacity)


def _median(rounds: Sequence[Offered]) -> Offered:
    """Return the sums of all rounds, with the median of their rates."""
    errors: Counter[str] = Counter()
    for one in rounds:
        errors.update(one.errors)
    return Offered(
        statistics.median(one.goodput for one in rounds),
        sum(one.offered for one in rounds),
        sum(one.acknowledged for one in rounds),
        sum(one.unknown for one in rounds),
        sum(one.refused for one in rounds),
        sum(one.stored for one in rounds),
        errors,
    )


def _tell(figures: Figures, name: str, kind: str, text: str, offered: Offered, reference: float) -> None:
    key = f"{name}_{kind}"
    percent = 100 * offered.goodput / reference
    figures.add(
        Figure(f"{key}_goodput", f"{text}: acknowledged", percent, "%", GOODPUT_GOAL_PERCENT, ">="),
        Figure(f"{key}_offered", "… messages offered", offered.offered, "msg"),
        Figure(
            f"{key}_stored_over_acknowledged",
            "… stored over acknowledged",
            offered.stored / max(offered.acknowledged, 1),
            "x",
        ),
        Figure(f"{key}_unknown", "… told that the outcome is unknown", offered.unknown, "msg"),
        Figure(
            f"{key}_not_told",
            "… stored, neither acknowledged nor told that it is unknown",
            max(offered.stored - offered.acknowledged - offered.unknown, 0),
            "msg",
            0,
        ),
    )
    for error, count in sorted(offered.errors.items()):
        figures.add(Figure(f"{key}_{error}", f"… told {error}", count, "msg"))


async def _capacity(urls: Sequence[str], bodies: Bodies, count: int, seconds: float) -> float:
    async with keelmq.Producer(urls, send_timeout_ms=load.SEND_TIMEOUT_MS, compress=False) as producer:

        async def step() -> int:
            if count == 1:
                await producer.send(TOPICS[0], bodies.next())
            else:
                await producer.send_batch(TOPICS[0], bodies.batch(count))
            return count

        return await load.per_second(step, CALLERS, seconds / 4, seconds)


async def _offer(
    urls: Sequence[str], admin: keelmq.Admin, topic: str, bodies: Bodies, count: int, per_s: float, seconds: float
) -> Offered:
    """Offer `per_s` batches of `count` (or single messages) a second, in steps of 10 ms."""
    loop = asyncio.get_running_loop()
    acknowledged = unknown = refused = in_time = offered = 0
    errors: Counter[str] = Counter()

    async def one() -> None:
        nonlocal acknowledged, unknown, refused, in_time
        try:
            if count == 1:
                await producer.send(topic, bodies.next())
            else:
                await producer.send_batch(topic, bodies.batch(count))
        except keelmq.KeelMQError as error:
            errors[f"{type(error).__name__}.{error.code}"] += count
            if error.outcome_unknown:
                unknown += count
            else:
                refused += count
        else:
            acknowledged += count
            in_time += count if warm_s <= loop.time() < end_s else 0

    async with keelmq.Producer(urls, send_timeout_ms=SEND_TIMEOUT_MS, compress=False) as producer:
        await producer.send(topic, bodies.next())  # finds the leader
        before = await _stored(admin, topic)
        tasks: set[asyncio.Task[None]] = set()
        begin_s = loop.time()
        warm_s, end_s = begin_s + WARM_UP_S, begin_s + seconds
        while (now_s := loop.time()) < end_s:
            while offered < (now_s - begin_s) * per_s:
                offered += 1
                task = asyncio.create_task(one())
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            await asyncio.sleep(STEP_S)
        await asyncio.gather(*tasks)
    stored = await _stored(admin, topic) - before
    goodput = in_time / (seconds - WARM_UP_S)
    return Offered(goodput, offered * count, acknowledged, unknown, refused, stored, errors)


async def _stored(admin: keelmq.Admin, topic: str) -> int:
    """Return the number of messages that the topic ever got."""
    info = await admin.topic(topic)
    return sum(queue.max_offset for queue in info.queue_offsets)
