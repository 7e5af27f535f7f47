"""Tests producers at the end of a long way, with more to send than their budget allows: all outcomes are reported
truly.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import keelmq
from deploy.local_nodes import free_ports
from tests.e2e.cluster_process import ClusterProcess
from tests.far_link import FarLink

pytestmark = pytest.mark.process

ONE_WAY_MS = 20.0
BATCH = 20
BATCHES_PER_S = 60
SECONDS = 4
BUDGET_MS = 400


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcess]:
    """Return nodes that clients reach over the far link; the nodes reach each other directly."""
    running = ClusterProcess(tmp_path, nodes=3)
    targets = {}
    for node in running.nodes.values():
        (port,) = free_ports(1)
        node.arguments += ["--http-listen", f"127.0.0.1:{port}"]
        targets[node.http_port] = port
    with FarLink(targets, ONE_WAY_MS), running:
        running.wait_leader()
        yield running


async def test_what_is_stored_is_what_was_acknowledged_or_said_to_be_unknown(cluster: ClusterProcess) -> None:
    """Found: with two batches per round trip, nearly all were stored and reported as SendTimeout or NoLeader."""
    told: Counter[str] = Counter()
    batch = [b"x" * 1_000] * BATCH
    urls = cluster.urls

    async def send(producer: keelmq.Producer) -> None:
        try:
            await producer.send_batch("far", batch)
        except keelmq.KeelMQError as error:
            told["unknown" if error.outcome_unknown else error.code] += BATCH
        else:
            told["acknowledged"] += BATCH

    with contextlib.closing(keelmq.Connection(urls)) as connection:
        admin = keelmq.Admin(connection)
        await admin.put_topic("far", queues=4)
        async with keelmq.Producer(urls, send_timeout_ms=BUDGET_MS) as producer, asyncio.TaskGroup() as sends:
            for _ in range(BATCHES_PER_S * SECONDS):
                sends.create_task(send(producer))
                await asyncio.sleep(1 / BATCHES_PER_S)
        queues = (await admin.topic("far")).queue_offsets
    stored = sum(queue.max_offset for queue in queues)
    assert told["acknowledged"] > 0
    assert told["acknowledged"] <= stored <= told["acknowledged"] + told["unknown"], told
    assert told["no_leader"] == 0, told
    assert sum(told.values()) == BATCHES_PER_S * SECONDS * BATCH
