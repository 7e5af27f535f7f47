"""Tests a node that was away while segments were removed under load: it gets a snapshot, and it and the sender die
meanwhile.
"""

import threading
import time
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from store.log.base import read_base
from store.log.disk import PosixDisk
from tests.e2e.cluster_process import ClusterProcess, NodeProcess, wait_for
from tests.e2e.fixtures import own_cluster

pytestmark = pytest.mark.process

OPTIONS = (
    *("--election-timeout-ms", "500", "--heartbeat-ms", "50", "--retention-check-ms", "50"),
    *("--segment-bytes", str(64 << 10), "--retain-behind-bytes", str(64 << 10)),
)
KEPT_MS = 1_000
FOR_EVER = -1
BATCH_MESSAGES = 200
BODY = "x" * 1_200
RECEIVING = "receiving the state after entry"
STARTED = "starting with the state after entry"


class Stored(NamedTuple):
    name: str
    first_offset: int
    begun_ms: int


class Sender:
    """Sends batches one after the other until it is stopped; a batch without an answer is sent to another node."""

    def __init__(self, cluster: ClusterProcess) -> None:
        self.stored: list[Stored] = []
        self._cluster = cluster
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def wait_some(self, batches: int) -> None:
        wanted = len(self.stored) + batches
        wait_for(lambda: len(self.stored) >= wanted, f"{batches} batches to be stored")

    def _run(self) -> None:
        number = 0
        while not self._stopping.is_set():
            name, begun_ms = f"b{number}", time.time_ns() // 1_000_000
            offset = None
            while offset is None and not self._stopping.is_set():
                offset = self._send(name)
            if offset is not None:
                self.stored.append(Stored(name, offset, begun_ms))
            number += 1

    def _send(self, name: str) -> int | None:
        messages = [{"body": BODY, "queue": 0, "message_id": f"{name}-{at}"} for at in range(BATCH_MESSAGES)]
        for node in self._cluster.alive():
            try:
                reply = node.request(
                    "POST",
                    "/v1/topics/short/messages",
                    payload={"messages": messages},
                    headers={"Idempotency-Key": name},
                    timeout_s=5.0,
                )
            except OSError:
                continue
            if reply.status == 200:
                return int(reply.json()["results"][0]["offset"])
        return None


def put_topic(cluster: ClusterProcess, retention_ms: int) -> None:
    settings = {"queues": 1, "retention_ms": retention_ms}

    def done() -> bool:
        try:
            return cluster.wait_leader().request("PUT", "/v1/topics/short", payload=settings).status in (200, 201)
        except OSError:
            return False

    wait_for(done, "the topic's retention to be set")


def base_index(node: NodeProcess) -> int:
    return read_base(PosixDisk(), str(node.data_dir / "log")).base.index


def read_all(node: NodeProcess) -> Iterator[tuple[int, str]]:
    """Yield offset and id of every message that is kept."""
    offset = 0
    while True:
        page = node.request("GET", f"/v1/topics/short/queues/0/messages?offset={offset}&max_messages=1000").json()
        yield from ((message["offset"], message["message_id"]) for message in page["messages"])
        if not page["messages"]:
            return
        offset = page["next_offset"]


cluster = own_cluster(OPTIONS)


def test_a_node_gets_a_snapshot_while_the_log_goes_on_being_shortened(cluster: ClusterProcess) -> None:
    put_topic(cluster, KEPT_MS)
    away = cluster.follower()
    sender = Sender(cluster)
    try:
        sender.wait_some(5)
        away.kill()
        lacks = cluster.wait_leader().known_status()["applied_index"]
        others = [node for node in cluster.nodes.values() if node is not away]
        wait_for(lambda: min(map(base_index, others)) > lacks, "what the node lacks to be removed")
        away.start()
        wait_for(lambda: RECEIVING in away.output(), "a snapshot to begin")
        away.kill()
        away.start()
        wait_for(lambda: away.output().count(RECEIVING) > 1 or STARTED in away.output(), "another one")
        leader = cluster.wait_leader()
        leader.kill()
        sender.wait_some(3)
        leader.start()
        sender.wait_some(3)
        put_topic(cluster, FOR_EVER)
        kept_from_ms = time.time_ns() // 1_000_000 - KEPT_MS
        sender.wait_some(3)
    finally:
        sender.stop()
    cluster.wait_ready()
    cluster.wait_same_state()
    assert STARTED in away.output()
    promised = [batch for batch in sender.stored if batch.begun_ms > kept_from_ms]
    assert promised
    for node in cluster.nodes.values():
        found = dict(read_all(node))
        assert list(found) == list(range(min(found), max(found) + 1))
        for name, first_offset, _ in promised:
            ids = [found.get(first_offset + at) for at in range(BATCH_MESSAGES)]
            assert ids == [f"{name}-{at}" for at in range(BATCH_MESSAGES)]
