"""Tests one full or slow disk of three, and two full ones: writing goes on if it can, or a refusal says why not."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.e2e.cluster_process import ClusterProcess, NodeProcess, Reply, wait_for
from tests.e2e.small_disk import MIB, fill, mounted_at
from tests.e2e.test_faults_disk import inject
from tests.requirements import TRACING

pytestmark = pytest.mark.process

PATH: Final = "/v1/topics/disk/messages"
MIN_FREE_BYTES: Final = 40 * MIB
OPTIONS: Final = (
    *("--election-timeout-ms", "500", "--heartbeat-ms", "50", "--segment-bytes", str(2 * MIB)),
    *("--min-free-bytes", str(MIN_FREE_BYTES), "--warn-free-bytes", "0", "--request-timeout-ms", "4000"),
    *("--log-sync", "thread"),  # strace can slow down a thread, and not the kernel
)
SLOWER_MS: Final = 400


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcess]:
    """Return three nodes, each on a small disk of its own, with a topic."""
    with contextlib.ExitStack() as stack:
        for node_id in (1, 2, 3):
            stack.enter_context(mounted_at(tmp_path / f"node{node_id}"))
        cluster = stack.enter_context(ClusterProcess(tmp_path, nodes=3, options=OPTIONS))
        cluster.make_topic("disk")
        yield cluster


def takes_writes(cluster: ClusterProcess) -> NodeProcess | None:
    """Return a node that says that it takes writes, and does; None if there is none."""
    for node in cluster.alive():
        ready = node.request("GET", "/readyz?for=writes").status
        if ready == 200 and node.send(PATH, f"at-{time.monotonic_ns()}").status == 200:
            return node
    return None


@pytest.mark.parametrize("room", ["low", "none"])
def test_writing_goes_on_at_another_leader_while_the_leaders_disk_is_full(cluster: ClusterProcess, room: str) -> None:
    full = cluster.wait_leader()
    ballast = full.data_dir / "ballast"
    if room == "none":
        fill(ballast)
    else:
        ballast.write_bytes(bytes(70 * MIB))
    wait_for(lambda: takes_writes(cluster) not in (None, full), "writes to go on elsewhere")
    leader = cluster.wait_leader(among=[node for node in cluster.alive() if node is not full])
    wait_for(lambda: ("disk_low", str(full.node_id)) in leader.alarms(), "the others to say whose disk is full")
    wait_for(lambda: ("disk_low", "") in full.alarms(), "the node to say that its disk is full")
    assert full.request("GET", "/readyz?for=writes").status == 503
    ballast.unlink()
    wait_for(lambda: not leader.alarms() and not full.alarms(), "all to be well")
    cluster.wait_same_state()


def test_a_majority_that_is_full_is_told_at_once_and_by_name(cluster: ClusterProcess) -> None:
    leader = cluster.wait_leader()
    full = [node for node in cluster.alive() if node is not leader]
    for node in full:
        fill(node.data_dir / "ballast")
    codes: list[Any] = []

    def is_refused() -> Reply | None:
        reply = leader.send(PATH, f"k{len(codes)}")
        codes.append(reply.json().get("code"))
        return reply if reply.status == 507 else None

    refused = wait_for(is_refused, "writes to be refused")
    assert refused.json()["code"] == "disk_full"
    named = " and ".join(f"node {node.node_id}" for node in full)
    assert named in refused.json()["detail"]
    assert refused.json()["full_nodes"] == [node.node_id for node in full]
    assert {leader.send(PATH, f"again{n}").status for n in range(20)} == {507}
    ready = leader.request("GET", "/readyz?for=writes")
    assert (ready.status, named in ready.json()["detail"]) == (503, True)
    assert leader.ready()
    (full[0].data_dir / "ballast").unlink()
    wait_for(lambda: takes_writes(cluster), "writes to be taken again, by two of three")


def test_a_follower_whose_disk_takes_no_more_is_stuck_and_says_so(cluster: ClusterProcess) -> None:
    cluster.wait_leader()
    stuck = cluster.follower()
    fill(stuck.data_dir / "ballast")

    def is_stuck() -> bool:
        payload = {"messages": [{"body": "x" * 100_000}]}
        if cluster.wait_leader().request("POST", PATH, payload=payload).status != 200:
            return False
        reply = stuck.request("GET", "/readyz")
        return reply.status == 503 and "stuck: applied" in reply.json()["detail"]

    wait_for(is_stuck, "the node to say that it is stuck")
    told = ("node_behind", str(stuck.node_id))
    wait_for(lambda: told in cluster.wait_leader().alarms(), "the leader to say it as well")
    (stuck.data_dir / "ballast").unlink()
    wait_for(stuck.ready, "the node to catch up")


def test_a_leader_whose_disk_has_become_slow_hands_over(cluster: ClusterProcess) -> None:
    TRACING.require()
    slow = cluster.wait_leader()
    tracer = inject(slow, f"fdatasync:delay_enter={SLOWER_MS * 1000}")
    try:

        def others_lead() -> NodeProcess | None:
            for node in cluster.alive():
                node.send(PATH, f"k{time.monotonic_ns()}")
            leader = cluster.leader()
            return leader if leader is not slow else None

        leader = wait_for(others_lead, "another node to lead")
        wait_for(lambda: ("disk_slow", str(slow.node_id)) in leader.alarms(), "the others to say whose disk is slow")
        assert leader.send(PATH, "fast").status == 200
    finally:
        tracer.kill()
        tracer.wait()
        assert tracer.stderr is not None
        tracer.stderr.close()
