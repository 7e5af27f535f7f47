"""Tests disks that are full or fail while the node runs."""

import contextlib
import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.process.exit_codes import ExitCode
from store.index.index import Index
from store.log.errors import DiskError, DiskFull
from tests.e2e.cluster_process import OPTIONS, ClusterProcess, NodeProcess, wait_for
from tests.e2e.small_disk import DISK_BYTES, MIB, fill
from tests.e2e.test_retention import log_bytes
from tests.requirements import TRACING

pytestmark = pytest.mark.process

BALLAST_BYTES = 32 * MIB
PATH = "/v1/topics/disk/messages"


def test_a_full_disk_refuses_writes_reads_go_on_and_space_brings_writes_back(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    with open(ballast, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, BALLAST_BYTES)
    options = ("--election-timeout-ms", "300", "--heartbeat-ms", "50", "--segment-bytes", str(2 * MIB))
    with ClusterProcess(small_disk, nodes=1, options=options) as cluster:
        node = cluster.wait_leader()
        assert node.request("PUT", "/v1/topics/disk", payload={"queues": 1}).status == 201
        sent = 0
        while (reply := node.send(PATH, f"k{sent}", "x" * MIB)).status == 200:
            sent += 1
            assert sent < DISK_BYTES // MIB
        assert (reply.status, reply.json()["code"]) == (507, "disk_full")
        assert reply.headers["retry-after"]
        assert sent > 0
        assert node.max_offset("disk") == sent
        read = node.request("GET", f"/v1/topics/disk/queues/0/messages?offset={sent - 1}").json()
        assert read["messages"][0]["message_id"] == f"k{sent - 1}-0"
        assert node.running()
        ballast.unlink()
        assert wait_for(lambda: node.send(PATH, f"k{sent}").status == 200, "writes to be taken again")
        assert node.max_offset("disk") == sent + 1


def test_what_holds_the_log_of_a_full_disk_is_told_and_can_be_let_go(small_disk: Path) -> None:
    """Tests the remedy of docs/retention.md: `cluster status` names the holder, which can be released on a low disk."""
    options = ("--segment-bytes", str(2 * MIB), "--min-free-bytes", str(24 * MIB), "--retention-check-ms", "50")
    with ClusterProcess(small_disk, nodes=1, options=options) as cluster:
        node = cluster.wait_leader()
        assert node.request("PUT", "/v1/topics/disk", payload={"queues": 1, "retention_ms": 500}).status == 201
        half = {"transaction_id": "t-1", "producer_group": "pg", "messages": [{"topic": "disk", "body": "half"}]}
        assert node.request("POST", "/v1/transactions", payload=half).status == 201
        sent = 0

        def is_full() -> bool:
            nonlocal sent
            reply = node.send(PATH, f"k{sent}", "x" * MIB)
            sent += 1
            assert sent < 2 * DISK_BYTES // MIB
            return reply.status == 507

        wait_for(is_full, "the disk to be full of what has expired")
        with open(small_disk / "ballast", "wb") as file:
            os.posix_fallocate(file.fileno(), 0, 12 * MIB)
        wait_for(lambda: b"keelmq_disk_is_low 1.0" in node.request("GET", "/metrics").body, "the disk to be low")
        status = node.known_status()
        assert (status["log_holders"][0]["kind"], status["log_holders"][0]["subject"]) == ("transaction", "t-1")
        commit = node.request("POST", "/v1/transactions/t-1/commit", payload={"source": "operator"})
        assert commit.status == 507
        rollback = node.request("POST", "/v1/transactions/t-1/rollback", payload={"source": "operator"})
        assert rollback.status == 200
        wait_for(lambda: log_is_short(node), "the log to go")
        assert wait_for(lambda: node.send(PATH, "again").status == 200, "writes to be taken again")


def log_is_short(node: NodeProcess) -> bool:
    return log_bytes(node) < 16 * MIB


def test_a_node_stops_in_order_on_a_full_disk_and_starts_again_once_there_is_space(small_disk: Path) -> None:
    """Entries that the index could not bring to disk are applied again from the log."""
    with ClusterProcess(small_disk, nodes=1) as cluster:
        node = cluster.wait_leader()
        assert node.request("PUT", "/v1/topics/disk", payload={"queues": 1}).status == 201
        assert node.send(PATH, "k1").status == 200
        fill(small_disk / "ballast")
        assert node.terminate() == ExitCode.STOPPED, node.output()
        assert "was not brought to disk" in node.output()
        node.start()
        assert node.wait_exit() == ExitCode.DISK_REFUSES, node.output()
        (small_disk / "ballast").unlink()
        node.start()
        cluster.wait_leader()
        assert node.max_offset("disk") == 1


def test_an_index_that_has_no_room_says_that_the_disk_is_full(small_disk: Path) -> None:
    """The error is not only raised by a flush: RocksDB flushes by itself, and accepts nothing more after a failure."""
    index = Index.open(str(small_disk / "index"))
    fill(small_disk / "ballast")

    def fill_index() -> None:
        for number in range(2 * DISK_BYTES // MIB):
            index.put(number.to_bytes(4, "big"), os.urandom(MIB))
            index.commit()

    with pytest.raises(DiskFull):
        fill_index()
    (small_disk / "ballast").unlink()
    with contextlib.suppress(DiskError):  # it may not have noticed yet that there is room
        index.close()


def test_writes_stop_before_the_disk_is_full(tmp_path: Path) -> None:
    """min_free_bytes is larger than any disk here: the node starts, reads, and refuses writes."""
    with ClusterProcess(tmp_path, nodes=1) as cluster:
        node = cluster.wait_leader()
        assert node.request("PUT", "/v1/topics/disk", payload={"queues": 1}).status == 201
        assert node.send(PATH, "k1").status == 200
        node.terminate()
        node.arguments[node.arguments.index("--min-free-bytes") + 1] = str(1 << 62)
        node.start()
        cluster.wait_leader()
        reply = node.send(PATH, "k2")
        assert (reply.status, reply.json()["code"]) == (507, "disk_full")
        assert node.max_offset("disk") == 1
        assert b"keelmq_disk_is_low 1.0" in node.request("GET", "/metrics").body


def inject(node: NodeProcess, what: str, threads: str | None = None) -> "subprocess.Popen[bytes]":
    """Attach strace to the running node, or to those of its threads whose names begin so."""
    call = what.partition(":")[0]
    command = ["strace", "-qq", "-o", "/dev/null", "-e", f"trace={call}", "-e", f"inject={what}"]
    tasks = Path(f"/proc/{node.pid}/task")
    traced = (
        [node.pid]
        if threads is None
        else [int(each.name) for each in tasks.iterdir() if (each / "comm").read_text().startswith(threads)]
    )
    assert traced, f"no thread is called {threads}"
    if threads is None:
        command.append("-f")
    tracer = subprocess.Popen(
        [*command, *(part for each in traced for part in ("-p", str(each)))], stderr=subprocess.PIPE
    )

    def attached() -> bool:
        if tracer.poll() is not None:
            assert tracer.stderr is not None
            raise AssertionError(f"strace ended: {tracer.stderr.read().decode().strip()}")
        return all(f"TracerPid:\t{tracer.pid}" in (tasks / str(each) / "status").read_text() for each in traced)

    wait_for(attached, "strace to attach")
    return tracer


def sync_call(node: NodeProcess) -> str:
    """Return the system call by which the node syncs its log."""
    return "io_submit" if "the log is synced by the kernel" in node.output() else "fdatasync"


@pytest.mark.parametrize(("error", "kind"), [("EIO", "DiskError"), ("EROFS", "DiskError"), ("EDQUOT", "DiskFull")])
def test_an_index_on_a_disk_that_fails_is_not_called_damaged(tmp_path: Path, error: str, kind: str) -> None:
    """An operator who moved the index aside would rebuild it from the log, on the same disk."""
    TRACING.require()
    calls = "fdatasync,fsync"
    tracer = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={calls}", "-e", f"inject={calls}:error={error}"]
    opening = f"from store.index.index import Index; Index.open({str(tmp_path / 'index')!r})"
    done = subprocess.run([*tracer, sys.executable, "-c", opening], check=False, capture_output=True, text=True)
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"store.log.errors.{kind}: open {tmp_path / 'index'}: "), done.stderr
    assert os.strerror(getattr(errno, error)) in last


@pytest.mark.parametrize("log_sync", ["auto", "thread"])
def test_a_failed_fsync_stops_the_node_and_loses_nothing(tmp_path: Path, log_sync: str) -> None:
    TRACING.require()
    with ClusterProcess(tmp_path, nodes=3, options=(*OPTIONS, "--log-sync", log_sync)) as cluster:
        leader = cluster.wait_leader()
        assert leader.request("PUT", "/v1/topics/disk", payload={"queues": 1}).status == 201
        acknowledged = [key for key in (f"k{n}" for n in range(10)) if leader.send(PATH, key).status == 200]
        tracer = inject(leader, f"{sync_call(leader)}:error=EIO:when=1+")
        try:
            with pytest.raises(OSError):  # noqa: PT011 - reset, closed or timed out: it ends before it can answer
                leader.send(PATH, "last")
            assert leader.wait_exit() == ExitCode.FATAL
        finally:
            tracer.kill()
            tracer.wait()
            assert tracer.stderr is not None
            tracer.stderr.close()
        assert "keelmqd: fatal:" in leader.output()
        assert "fdatasync" in leader.output()
        successor = cluster.wait_leader()
        assert successor.send(PATH, "last").status == 200
        leader.start()
        cluster.wait_ready()
        cluster.wait_same_state()
        for node in cluster.nodes.values():
            path = "/v1/topics/disk/queues/0/messages?offset=0&max_messages=100"
            found = [message["message_id"] for message in node.request("GET", path).json()["messages"]]
            assert found == [f"{key}-0" for key in [*acknowledged, "last"]]
