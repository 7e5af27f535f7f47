"""Measures consumer groups: messages per second from the SDK's producer to a committed offset, and the cost of a dead
member.
"""

import asyncio
import contextlib
import secrets
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import keelmq
from tests.bench import load
from tests.bench.cluster import BenchCluster
from tests.bench.figures import Figure, Figures

ROOT: Final = Path(__file__).parents[2]
MEMBER_COUNTS: Final = (1, 4, 16)
PROCESSES_MAX: Final = 2
"""Maximum number of processes that members share: the nodes and the producer need the other cores."""

QUEUES: Final = 16
BATCH: Final = 256
BODY_BYTES: Final = 1024
PRODUCERS: Final = 8
POLL_S: Final = 0.05
TIMEOUT_S: Final = 120.0
END_TO_END_GOAL: Final = 50_000

REBALANCE_QUEUES: Final = 64
REBALANCE_MEMBERS: Final = 8
SESSION_TIMEOUT_MS: Final = 6_000
RESUME_GOAL_S: Final = SESSION_TIMEOUT_MS / 1_000 + 1.0
TRICKLE_S: Final = 0.1
SETTLE_S: Final = 3.0
Assignment = dict[str, set[int]]


async def measure(cluster: BenchCluster, seconds: float, figures: Figures) -> None:
    connection = keelmq.Connection(cluster.urls)
    try:
        for members in MEMBER_COUNTS:
            rate = await _end_to_end(cluster, connection, members, seconds)
            what = f"group of {members:>2}: produced, handled and committed, 1 KiB"
            figures.add(Figure(f"group_{members}", what, rate, "msg/s", END_TO_END_GOAL, ">="))
        await _rebalance(cluster, connection, figures)
    finally:
        connection.close()


async def _end_to_end(cluster: BenchCluster, connection: keelmq.Connection, members: int, seconds: float) -> float:
    """Return the rate from the first send until the group has committed the last message."""
    topic = f"bench-group-{secrets.token_hex(4)}"
    admin = keelmq.Admin(connection)
    await admin.put_topic(topic, queues=QUEUES)
    make_batch = load.batches_of(BATCH, BODY_BYTES)
    processes = min(members, PROCESSES_MAX)
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(processes):
            await stack.enter_async_context(_member(cluster, topic, "--members", str(members // processes)))
        await _until_assigned(admin, topic, members)
        producer = await stack.enter_async_context(
            keelmq.Producer(cluster.urls, send_timeout_ms=load.SEND_TIMEOUT_MS, compress=False)
        )
        loop, sent = asyncio.get_running_loop(), 0
        begin_s = loop.time()

        async def work() -> None:
            nonlocal sent
            while loop.time() < begin_s + seconds:
                result = await producer.send_batch(topic, make_batch())
                sent += result.count  # not in one statement: other tasks add meanwhile

        await asyncio.gather(*(work() for _ in range(PRODUCERS)))
        async with asyncio.timeout(TIMEOUT_S):
            while sum(each.offset for each in (await admin.group(topic)).offsets) < sent:
                await asyncio.sleep(POLL_S)
        return sent / (loop.time() - begin_s)


async def _rebalance(cluster: BenchCluster, connection: keelmq.Connection, figures: Figures) -> None:
    """Kill one of eight members; a trickle of messages to all 64 queues shows when each queue is handled again."""
    topic = f"bench-rebalance-{secrets.token_hex(4)}"
    admin = keelmq.Admin(connection)
    await admin.put_topic(topic, queues=REBALANCE_QUEUES)
    session = ("--session-timeout-ms", str(SESSION_TIMEOUT_MS), "--trace")
    async with contextlib.AsyncExitStack() as stack:
        survivors = await stack.enter_async_context(
            _member(cluster, topic, "--members", str(REBALANCE_MEMBERS - 1), *session)
        )
        handled: dict[int, list[int]] = defaultdict(list)
        await stack.enter_async_context(_reading(survivors, handled))
        await _until_assigned(admin, topic, REBALANCE_MEMBERS - 1)
        known = set(await _assignment(admin, topic))
        victim = await stack.enter_async_context(_member(cluster, topic, *session))
        await stack.enter_async_context(_reading(victim, defaultdict(list)))
        await _until_assigned(admin, topic, REBALANCE_MEMBERS)
        await stack.enter_async_context(_trickle(cluster, topic))
        await asyncio.sleep(SETTLE_S)
        before = await _assignment(admin, topic)
        [dead] = set(before) - known
        killed_ms = time.time_ns() // 1_000_000
        victim.kill()
        async with asyncio.timeout(TIMEOUT_S):
            while not all(handled[queue] and handled[queue][-1] > killed_ms for queue in before[dead]):
                await asyncio.sleep(POLL_S)
        after = await _assignment(admin, topic)
        resumed_ms = [min(at for at in handled[queue] if at > killed_ms) - killed_ms for queue in before[dead]]
        others = {queue for member in after for queue in after[member] - before.get(member, set())} - before[dead]
        figures.add(
            Figure(
                "rebalance_moved", "1 of 8 members dies, 64 queues: queues of others that moved", len(others), "", 0
            ),
            Figure(
                "rebalance_resumed",
                f"… its {len(before[dead])} queues handled again, slowest, session of {SESSION_TIMEOUT_MS / 1000:g} s",
                max(resumed_ms) / 1_000,
                "s",
                RESUME_GOAL_S,
            ),
        )


@contextlib.asynccontextmanager
async def _member(cluster: BenchCluster, topic: str, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a process with members of the group, which has the topic's name."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "tests.bench.member", ",".join(cluster.urls), "--group", topic, "--topic", topic),
        *arguments,
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@contextlib.asynccontextmanager
async def _reading(process: asyncio.subprocess.Process, handled: dict[int, list[int]]) -> AsyncIterator[None]:
    """Append to `handled` the times at which the process handled a message of each queue, within the block."""

    async def read() -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            queue, at_ms = line.split()
            handled[int(queue)].append(int(at_ms))

    reading = asyncio.create_task(read())
    try:
        yield
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


@contextlib.asynccontextmanager
async def _trickle(cluster: BenchCluster, topic: str) -> AsyncIterator[None]:
    """Send a message to each queue every 0.1 s within the block."""

    async def send_forever() -> None:
        async with keelmq.Producer(cluster.urls, send_timeout_ms=load.SEND_TIMEOUT_MS) as producer:
            while True:
                await asyncio.gather(*(producer.send(topic, b"x", queue=queue) for queue in range(REBALANCE_QUEUES)))
                await asyncio.sleep(TRICKLE_S)

    sending = asyncio.create_task(send_forever())
    try:
        yield
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


async def _until_assigned(admin: keelmq.Admin, group: str, members: int) -> None:
    """Wait until the group has this number of members in its assignment."""
    async with asyncio.timeout(TIMEOUT_S):
        while len(await _assignment(admin, group)) != members:
            await asyncio.sleep(POLL_S)


async def _assignment(admin: keelmq.Admin, group: str) -> Assignment:
    try:
        found = await admin.group(group)
    except keelmq.KeelMQError:
        return {}
    return {each.member_id: {place.queue for place in each.assignment} for each in found.members}
