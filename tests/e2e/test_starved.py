"""Nodes without file descriptors, threads, memory or inodes: they keep their promise, and come back by themselves.

The limits are those of the kernel, lowered while the nodes run. Only the system's own limit of files is not lowered:
other programs share it.
"""

import contextlib
import os
import resource
import socket
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from cluster.process.exit_codes import ExitCode
from store.log.segment_files import FILES_RESERVE
from tests.descriptors import limit_descriptors, restore_descriptors
from tests.e2e.cluster_process import OPTIONS, ClusterProcess, NodeProcess, ok, wait_for
from tests.e2e.small_disk import MIB, mounted_at
from tests.e2e.test_retention import log_bytes

pytestmark = pytest.mark.process

SEGMENT_BYTES = 64 << 10
BODY = "x" * (8 << 10)
TOPIC = "/v1/topics/starved"
PATH = f"{TOPIC}/messages"


@pytest.fixture(scope="module")
def starved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    """A cluster with small segments, and a topic whose messages expire at once, so that files come and go. Node 1 has
    a disk of its own. The loop is the one that nodes have in production: the one that measures steps takes as many
    connections as wait at once, before the broker hears of the first.
    """
    directory = tmp_path_factory.mktemp("starved")
    small = ("--segment-bytes", str(SEGMENT_BYTES), "--cache-bytes", "65536", "--retention-check-ms", "50")
    options = (*OPTIONS, *small, "--loop-step-ms-max", "0")
    with mounted_at(directory / "node1", inodes=4096), ClusterProcess(directory, nodes=3, options=options) as cluster:
        ok(cluster.wait_leader().request("PUT", TOPIC, payload={"queues": 1, "retention_ms": 500}))
        yield cluster


def send_all(cluster: ClusterProcess, name: str, count: int) -> None:
    """Send messages, each until it is taken, by whoever leads."""

    def is_taken(key: str) -> bool:
        node = cluster.leader()
        with contextlib.suppress(OSError):
            return node is not None and node.send(PATH, key, BODY).status == 200
        return False

    for number in range(count):
        wait_for(partial(is_taken, f"{name}{number}"), "a message to be taken")


def has_alarm(node: NodeProcess, code: str) -> str:
    """Return the text of the node's own alarm; empty without one."""
    return node.alarms().get((code, ""), "")


@contextlib.contextmanager
def few_descriptors(nodes: list[NodeProcess], left: int = 0) -> Iterator[None]:
    for node in nodes:
        limit_descriptors(node.pid, left)
    try:
        yield
    finally:
        for node in nodes:
            if node.running():
                restore_descriptors(node.pid)


def test_nodes_without_descriptors_go_on_with_log_index_and_votes(starved: ClusterProcess) -> None:
    """Segments are begun and removed, the index is flushed, and a leader is elected: all of it opens files."""
    nodes = list(starved.nodes.values())
    with few_descriptors(nodes):
        for node in nodes:
            wait_for(partial(has_alarm, node, "descriptors_low"), "the alarm")
        send_all(starved, "a", 100)
        wait_for(lambda: all(log_bytes(node) < 8 * SEGMENT_BYTES for node in nodes), "old segments to be removed")
        leader = starved.wait_leader()
        leader.kill()
        send_all(starved, "b", 20)
        leader.start()
        starved.wait_ready()
        send_all(starved, "c", 20)
    wait_for(lambda: not any(has_alarm(node, "descriptors_low") for node in nodes), "the end of the alarm")
    starved.wait_same_state()
    assert starved.wait_leader().max_offset("starved") == 140


def test_clients_that_take_all_descriptors_do_not_end_the_node(starved: ClusterProcess) -> None:
    """The limit was lowered, so the node takes more connections than it can bear, and closes idle ones."""
    leader = starved.wait_leader()
    with few_descriptors([leader], 100), contextlib.ExitStack() as held:
        for _ in range(150):
            connection = held.enter_context(socket.create_connection(("127.0.0.1", leader.http_port)))
            with contextlib.suppress(OSError):
                connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        send_all(starved, "d", 40)
        follower = starved.follower()
        follower.kill()
        follower.start()
        starved.wait_ready()
        assert leader.running()
    starved.wait_same_state()


def test_a_disk_without_inodes_has_another_node_lead_and_stays_in_order(starved: ClusterProcess) -> None:
    """Bytes are left, so the space alone says nothing."""
    small = starved.nodes[1]
    starved.hand_over(small)
    taken = small.data_dir / "taken"
    taken.mkdir()
    for number in range(os.statvfs(taken).f_favail - FILES_RESERVE + 8):
        os.mknod(taken / str(number))
    wait_for(lambda: "inodes" in has_alarm(small, "disk_low"), "the alarm")
    wait_for(lambda: starved.wait_leader() is not small, "another node to lead")
    send_all(starved, "e", 40)
    assert small.running()
    for each in taken.iterdir():
        each.unlink()
    taken.rmdir()
    wait_for(lambda: not has_alarm(small, "disk_low"), "the end of the alarm")
    starved.wait_same_state()


def test_a_node_on_a_disk_that_is_read_only_starts_once_it_is_not(starved: ClusterProcess) -> None:
    node = starved.nodes[1]
    assert node.terminate() == ExitCode.STOPPED
    remount = ["mount", "-o", "remount,ro", str(node.data_dir)]
    subprocess.run(remount, check=True)
    try:
        node.start()
        assert node.wait_exit() == ExitCode.DISK_REFUSES, node.log_tail(5)
        assert "Read-only file system" in node.output()
    finally:
        subprocess.run([*remount[:2], "remount,rw", str(node.data_dir)], check=True)
    node.start()
    starved.wait_ready()
    starved.wait_same_state()


def test_a_node_without_memory_and_threads_refuses_and_goes_on(starved: ClusterProcess) -> None:
    """The follower has not read its log for clients yet: the thread that reads has no room for its stack. One that runs
    has none for the answer, as long as it has not made one that large: the allocator keeps what it had.
    """
    topic, follower = "/v1/topics/kept", starved.follower()
    leader = starved.wait_leader()
    ok(leader.request("PUT", topic, payload={"queues": 1}))
    for _ in range(6):
        ok(leader.request("POST", f"{topic}/messages", payload={"messages": [{"body": "x" * (2 * MIB)}]}))
    starved.wait_same_state()
    pages = f"{topic}/queues/0/messages?offset=0&max_messages="
    read = partial(follower.request, "GET", f"{pages}100")
    with few_bytes(follower, 256 << 10):
        for _ in range(3):
            assert (reply := read()).json().get("code") == "overloaded", reply.status
    assert len(ok(follower.request("GET", f"{pages}1"))["messages"]) == 1
    with few_bytes(follower, 256 << 10):
        assert (reply := read()).json().get("code") == "overloaded", reply.status
    assert len(ok(read())["messages"]) > 0
    starved.wait_same_state()


@contextlib.contextmanager
def few_bytes(node: NodeProcess, left: int) -> Iterator[None]:
    """Let the node take no more than `left` bytes of memory from the system within the block."""
    taken = int(Path(f"/proc/{node.pid}/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.prlimit(node.pid, resource.RLIMIT_AS, (taken + left, resource.RLIM_INFINITY))
    try:
        yield
    finally:
        resource.prlimit(node.pid, resource.RLIMIT_AS, before)
