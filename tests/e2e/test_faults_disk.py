"""Disks that are full or fail while the node runs."""

import os
import subprocess
from pathlib import Path

import pytest

from cluster.exit_codes import ExitCode
from tests.e2e.cluster_process import ClusterProcess, NodeProcess, Reply, wait_for
from tests.e2e.small_disk import DISK_BYTES, MIB, fill
from tests.requirements import TRACING

pytestmark = pytest.mark.process

BALLAST_BYTES = 32 * MIB
PATH = "/v1/topics/disk/messages"


def send(node: NodeProcess, key: str, body: str = "x") -> Reply:
    return node.request("POST", PATH, payload={"messages": [{"body": body}]}, headers={"Idempotency-Key": key})


def count(node: NodeProcess) -> int:
    return int(node.request("GET", "/v1/topics/disk").json()["queue_offsets"][0]["max_offset"])


def test_a_full_disk_refuses_writes_reads_go_on_and_space_brings_writes_back(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    with open(ballast, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, BALLAST_BYTES)
    options = ("--election-timeout-ms", "300", "--heartbeat-ms", "50", "--segment-bytes", str(2 * MIB))
    with ClusterProcess(small_disk, nodes=1, options=options) as cluster:
        node = cluster.wait_leader()
        assert node.request("PUT", "/v1/topics/disk", payload={"queues": 1}).status == 201
        sent = 0
        while (reply := send(node, f"k{sent}", "x" * MIB)).status == 200:
            sent += 1
            assert sent < DISK_BYTES // MIB
        assert (reply.status, reply.json()["code"]) == (507, "disk_full")
        assert reply.headers["retry-after"]
        assert sent > 0
        assert count(node) == sent
        read = node.request("GET", f"/v1/topics/disk/queues/0/messages?offset={sent - 1}").json()
        assert read["messages"][0]["message_id"] == f"k{sent - 1}-0"
        assert node.running()
        ballast.unlink()
        assert wait_for(lambda: send(node, f"k{sent}").status == 200, "writes to be taken again")
        assert count(node) == sent + 1


def test_a_node_stops_in_order_on_a_full_disk_and_starts_again_once_there_is_space(small_disk: Path) -> None:
    """What the index could not bring to disk is applied again from the log."""
    with ClusterProcess(small_disk, nodes=1) as cluster:
        node = cluster.wait_leader()
        assert node.request("PUT", "/v1/topics/disk", payload={"queues": 1}).status == 201
        assert send(node, "k1").status == 200
        fill(small_disk / "ballast")
        assert node.terminate() == ExitCode.STOPPED, node.output()
        assert "was not brought to disk" in node.output()
        node.start()
        assert node.wait_exit() == ExitCode.DATA_DIR_UNUSABLE, node.output()
        (small_disk / "ballast").unlink()
        node.start()
        cluster.wait_leader()
        assert count(node) == 1


def test_writes_stop_before_the_disk_is_full(tmp_path: Path) -> None:
    """min_free_bytes beyond what any disk here has: the node starts, reads, and refuses writes."""
    with ClusterProcess(tmp_path, nodes=1) as cluster:
        node = cluster.wait_leader()
        assert node.request("PUT", "/v1/topics/disk", payload={"queues": 1}).status == 201
        assert send(node, "k1").status == 200
        node.terminate()
        node.arguments[node.arguments.index("--min-free-bytes") + 1] = str(1 << 62)
        node.start()
        cluster.wait_leader()
        reply = send(node, "k2")
        assert (reply.status, reply.json()["code"]) == (507, "disk_full")
        assert count(node) == 1
        assert b"keelmq_disk_is_low 1.0" in node.request("GET", "/metrics").body


def inject(node: NodeProcess, what: str) -> "subprocess.Popen[bytes]":
    """Attach strace to the running node."""
    command = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync", "-e", f"inject={what}"]
    tracer = subprocess.Popen([*command, "-p", str(node.pid)], stderr=subprocess.PIPE)

    def attached() -> bool:
        if tracer.poll() is not None:
            assert tracer.stderr is not None
            raise AssertionError(f"strace ended: {tracer.stderr.read().decode().strip()}")
        status = Path(f"/proc/{node.pid}/status").read_text()
        return f"TracerPid:\t{tracer.pid}" in status

    wait_for(attached, "strace to attach")
    return tracer


def test_a_failed_fsync_stops_the_node_and_loses_nothing(tmp_path: Path) -> None:
    TRACING.require()
    with ClusterProcess(tmp_path, nodes=3) as cluster:
        leader = cluster.wait_leader()
        assert leader.request("PUT", "/v1/topics/disk", payload={"queues": 1}).status == 201
        acknowledged = [key for key in (f"k{n}" for n in range(10)) if send(leader, key).status == 200]
        tracer = inject(leader, "fdatasync:error=EIO:when=1+")
        try:
            with pytest.raises(OSError):  # noqa: PT011 - reset, closed or timed out: it ends before it can answer
                send(leader, "last")
            assert leader.wait_exit() == ExitCode.FATAL
        finally:
            tracer.kill()
            tracer.wait()
            assert tracer.stderr is not None
            tracer.stderr.close()
        assert "keelmqd: fatal:" in leader.output()
        assert "fdatasync" in leader.output()
        successor = cluster.wait_leader()
        assert send(successor, "last").status == 200
        leader.start()
        cluster.wait_ready()
        cluster.wait_same_state()
        for node in cluster.nodes.values():
            path = "/v1/topics/disk/queues/0/messages?offset=0&max_messages=100"
            found = [message["message_id"] for message in node.request("GET", path).json()["messages"]]
            assert found == [f"{key}-0" for key in [*acknowledged, "last"]]
