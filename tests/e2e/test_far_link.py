"""Tests producers at the end of a long way, with more to send than their budget allows: all outcomes are reported
truly.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import keelmq
from deploy.local_nodes import free_ports
from tests.e2e.cluster_process import ClusterProcess
from tests.e2e.undisturbed import judged_unless, terms, undisturbed
from tests.far_link import FarLink

pytestmark = pytest.mark.process

ONE_WAY_MS = 20.0
BATCH = 20
BATCHES_PER_S = 60
SECONDS = 4
BUDGET_MS = 400


def test_what_is_stored_is_what_was_acknowledged_or_said_to_be_unknown(tmp_path: Path) -> None:
    """Found: with two batches per round trip, nearly all were stored and reported as SendTimeout or NoLeader.

    NoLeader is true during an election, which other work on the machine can cause; such a run is repeated."""
    undisturbed(send_far, tmp_path)


def send_far(directory: Path) -> None:
    with far_cluster(directory) as cluster:
        before = newest_term(cluster)

        def elected() -> str | None:
            now = newest_term(cluster)
            return f"an election: term {before} became {now}" if now != before else None

        told, stored = asyncio.run(send_batches(cluster.urls))
        assert told["acknowledged"] <= stored <= told["acknowledged"] + told["unknown"], told
        assert sum(told.values()) == BATCHES_PER_S * SECONDS * BATCH
        with judged_unless(elected):
            assert told["acknowledged"] > 0
            assert told["no_leader"] == 0, told


@contextmanager
def far_cluster(directory: Path) -> Iterator[ClusterProcess]:
    """Yield nodes that clients reach over the far link; the nodes reach each other directly."""
    directory.mkdir()
    running = ClusterProcess(directory, nodes=3)
    targets = {}
    for node in running.nodes.values():
        (port,) = free_ports(1)
        node.arguments += ["--http-listen", f"127.0.0.1:{port}"]
        targets[node.http_port] = port
    with FarLink(targets, ONE_WAY_MS), running:
        running.wait_leader()
        yield running


def newest_term(cluster: ClusterProcess) -> int:
    """Return the newest term that a node knows; every election begins a newer one."""
    return max((term for term, _ in terms(cluster)), default=0)


async def send_batches(urls: list[str]) -> tuple[Counter[str], int]:
    """Send more than the budget allows; return the messages by outcome, and the number of stored messages."""
    told: Counter[str] = Counter()
    batch = [b"x" * 1_000] * BATCH

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
    return told, sum(queue.max_offset for queue in queues)
