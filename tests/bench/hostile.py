"""Measures the rate that one hostile client leaves to another client, attack by attack (tests/hostile_clients.py).

The attacker costs processor time, which the nodes would not miss if it had a machine of its own. So it gets a core of
its own: the nodes and the other client share the remaining cores, with and without the attack. The memory's bandwidth
is shared all the same: a process on the other core that only copies 15 MiB over and over leaves 56 % of the rate.
"""

import asyncio
import os
import statistics
from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

import keelmq
from tests.bench import load
from tests.bench.cluster import BenchCluster
from tests.bench.figures import Figure, Figures
from tests.hostile_clients import ATTACKS, Target, attacking

TOPIC: Final = "hostile"
QUEUES: Final = 4
FILL_MESSAGES: Final = 16
FILL_BYTES: Final = 1 << 20
ROUNDS: Final = 5
"""Rounds with and without the attack in turn, half of the given time each; medians count, since rounds vary by 30 %."""
ATTACK_BEGINS_S: Final = 2.0
"""Seconds in which the attacker's process starts and makes its connections."""
KEPT_GOAL_PERCENT: Final = 80
MEMORY_GOAL_MIB: Final = 400


async def measure(
    cluster: BenchCluster, attacks: Iterable[str], seconds: float, core: int | None, figures: Figures
) -> None:
    """Measure the rate of 64 concurrent sends of 1 KiB under each attack, which comes from `core`, in percent of the
    rate without the attack.
    """
    await _prepare(cluster)
    port, term = await _leader(cluster)
    for name in attacks:
        key, says = f"hostile_{name.replace('-', '_')}", ATTACKS[name].says
        without, attacked, memory = [], [], []
        for number in range(1, ROUNDS + 1):
            figures.step(f"{name}: round {number} of {ROUNDS}, without and with the attack")
            without.append(await load.concurrent_sends(cluster.urls, TOPIC, 1024, seconds / 2))
            async with cluster.watch_memory() as samples:
                with attacking(name, Target(port, TOPIC), core=core):
                    await asyncio.sleep(ATTACK_BEGINS_S)
                    attacked.append(await load.concurrent_sends(cluster.urls, TOPIC, 1024, seconds / 2))
            memory.append(max(samples))
        kept_percent = 100 * statistics.median(attacked) / statistics.median(without)
        _, term_after = await _leader(cluster)
        figures.add(
            Figure(f"{key}_kept", f"{says}: rate kept by others", kept_percent, "%", KEPT_GOAL_PERCENT, ">="),
            Figure(f"{key}_memory", "… resident memory of a node", max(memory), "MiB", MEMORY_GOAL_MIB),
            Figure(f"{key}_elections", "… changes of leader", term_after - term, "", 0),
        )
        port, term = await _leader(cluster)


async def _prepare(cluster: BenchCluster) -> None:
    connection = keelmq.Connection(cluster.urls)
    try:
        admin = keelmq.Admin(connection)
        await admin.put_topic(TOPIC, queues=QUEUES)
        await admin.put_topic(f"{TOPIC}-none", queues=1)
    finally:
        connection.close()
    async with keelmq.Producer(cluster.urls, compress=False) as producer:
        for _ in range(FILL_MESSAGES):  # large answers for clients that do not read them
            await producer.send(TOPIC, os.urandom(FILL_BYTES), queue=0)


async def _leader(cluster: BenchCluster) -> tuple[int, int]:
    """Return the leader's HTTP port and its term."""
    connection = keelmq.Connection(cluster.urls)
    try:
        status = await keelmq.Admin(connection).cluster()
    finally:
        connection.close()
    return urlsplit(status.leader_url or "").port or 80, status.term
