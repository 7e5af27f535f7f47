"""What one hostile client leaves to another one, attack by attack (tests/hostile_clients.py has them).

The attacker is a process of its own with an address of its own, and costs processor time, which the nodes would not
miss if it had a machine of its own. So each attack is made on a sink (tests/bench/sink.py) as well, and what counts is
the rate beside the attack on the leader in per cent of that beside the attack on the sink, in turn.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import keelmq
from tests.bench import load
from tests.bench.cluster import BenchCluster
from tests.bench.figures import Figure, Figures
from tests.hostile_clients import ATTACKS, Target, attacking

ROOT: Final = Path(__file__).parents[2]
TOPIC: Final = "hostile"
QUEUES: Final = 4
FILL_MESSAGES: Final = 16
FILL_BYTES: Final = 1 << 20
ATTACK_BEGINS_S: Final = 2.0
"""The attacker's process starts, and its connections are made."""
KEPT_GOAL_PERCENT: Final = 80
MEMORY_GOAL_MIB: Final = 400


async def measure(cluster: BenchCluster, seconds: float, figures: Figures) -> None:
    """The rate that 64 concurrent sends of 1 KiB keep under each attack, in per cent of the rate beside a sink's."""
    await _prepare(cluster)
    port, term = await _leader(cluster)
    with _sink() as sink_port:
        for name, attack in ATTACKS.items():
            key = f"hostile_{name.replace('-', '_')}"
            calm = await load.concurrent_sends(cluster.urls, TOPIC, 1024, seconds)
            before = await _attacked(cluster, name, sink_port, seconds)
            async with cluster.watch_memory() as samples:
                attacked = await _attacked(cluster, name, port, seconds)
            after = await _attacked(cluster, name, sink_port, seconds)
            beside_percent = 100 * (before + after) / 2 / calm
            kept_percent = 100 * 2 * attacked / (before + after)
            _, term_after = await _leader(cluster)
            figures.add(
                Figure(
                    f"{key}_kept", f"{attack.says}: rate kept by others", kept_percent, "%", KEPT_GOAL_PERCENT, ">="
                ),
                Figure(f"{key}_attacker", "… left by the attacker's own processor time", beside_percent, "%"),
                Figure(f"{key}_memory", "… resident memory of a node", max(samples), "MiB", MEMORY_GOAL_MIB),
                Figure(f"{key}_elections", "… changes of leader", term_after - term, "", 0),
            )
            port, term = await _leader(cluster)


async def _attacked(cluster: BenchCluster, name: str, port: int, seconds: float) -> float:
    with attacking(name, Target(port, TOPIC)):
        await asyncio.sleep(ATTACK_BEGINS_S)
        return await load.concurrent_sends(cluster.urls, TOPIC, 1024, seconds)


@contextlib.contextmanager
def _sink() -> Iterator[int]:
    """Its port."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.bench.sink"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
    )
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


async def _prepare(cluster: BenchCluster) -> None:
    connection = keelmq.Connection(cluster.urls)
    try:
        admin = keelmq.Admin(connection)
        await admin.put_topic(TOPIC, queues=QUEUES)
        await admin.put_topic(f"{TOPIC}-none", queues=1)
    finally:
        connection.close()
    async with keelmq.Producer(cluster.urls, compress=False) as producer:
        for _ in range(FILL_MESSAGES):  # an answer that is worth not reading
            await producer.send(TOPIC, os.urandom(FILL_BYTES), queue=0)


async def _leader(cluster: BenchCluster) -> tuple[int, int]:
    """HTTP port and term."""
    connection = keelmq.Connection(cluster.urls)
    try:
        status = await keelmq.Admin(connection).cluster()
    finally:
        connection.close()
    return int(urlsplit(status["leader_url"]).port or 80), int(status["term"])
