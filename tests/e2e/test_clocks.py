"""Tests a wall clock that is a year wrong on one of three nodes: nothing goes early or waits, the node reports it."""

import time
from collections.abc import Iterator
from typing import Any, Final

import pytest

from tests.chaos.skewed_node import CLOCK_VARIABLE, set_offset_ns
from tests.e2e.cluster_process import ClusterProcess, NodeProcess, wait_for

pytestmark = pytest.mark.process

DAY_MS: Final = 86_400_000
YEAR_MS: Final = 365 * DAY_MS
TOLERANCE_MS: Final = 60_000
SHORT_MS: Final = 1_000
MESSAGES: Final = 50
OPTIONS: Final = ("--election-timeout-ms", "500", "--heartbeat-ms", "50", "--retention-check-ms", "100")


class Clocks:
    """A running cluster of three whose wall clocks can be set."""

    def __init__(self, cluster: ClusterProcess) -> None:
        self.cluster = cluster
        for node in cluster.nodes.values():
            node.module = "tests.chaos.skewed_node"
            node.environment[CLOCK_VARIABLE] = str(cluster.directory / f"clock{node.node_id}")
            self.shift(node, 0)

    def shift(self, node: NodeProcess, ahead_ms: int) -> None:
        """Set that node's wall clock `ahead_ms` ahead of the true time from now on."""
        set_offset_ns(self.cluster.directory / f"clock{node.node_id}", ahead_ms * 1_000_000)

    def has_alarm(self, node: NodeProcess, code: str, subject: str = "") -> bool:
        return (code, subject) in node.alarms()

    def wait_alarm(self, node: NodeProcess, code: str, subject: str = "") -> None:
        try:
            wait_for(lambda: self.has_alarm(node, code, subject), f"alarm {code} at node {node.node_id}")
        except TimeoutError as error:
            raise AssertionError(f"{error}\n{self.cluster.tails()}") from None


@pytest.fixture
def clocks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clocks]:
    cluster = ClusterProcess(tmp_path_factory.mktemp("clocks"), nodes=3, options=OPTIONS)
    clocks = Clocks(cluster)
    with cluster:
        yield clocks


def true_ms() -> int:
    return time.time_ns() // 1_000_000


def write(cluster: ClusterProcess, method: str, path: str, payload: Any) -> Any:
    """Send a write to the leader, repeatedly until one carries it out; return the answer."""

    def answer() -> Any:
        leader = cluster.leader()
        reply = leader.request(method, path, payload=payload) if leader is not None else None
        return reply.json() if reply is not None and reply.status in (200, 201) else None

    return wait_for(answer, f"{method} {path}")


def send(cluster: ClusterProcess, topic: str, message: dict[str, Any], count: int = 1) -> Any:
    """Send messages and return the answer with the receipt."""
    return write(cluster, "POST", f"/v1/topics/{topic}/messages", {"messages": [{**message, "queue": 0}] * count})


def offsets(cluster: ClusterProcess, topic: str) -> tuple[int, int]:
    """Return the first offset that is kept, and the next one."""
    node = cluster.leader() or cluster.alive()[0]
    (queue,) = node.request("GET", f"/v1/topics/{topic}").json()["queue_offsets"]
    return int(queue["min_offset"]), int(queue["max_offset"])


def prepare(cluster: ClusterProcess) -> str:
    """Store messages to keep for a day, one to deliver in an hour, and a committed transaction; return its id."""
    for topic, retention_ms in (("kept", DAY_MS), ("short", SHORT_MS), ("later", DAY_MS)):
        write(cluster, "PUT", f"/v1/topics/{topic}", {"queues": 1, "retention_ms": retention_ms})
    write(cluster, "PUT", "/v1/topics/paid", {"queues": 1, "type": "transaction"})
    send(cluster, "kept", {"body": "k"}, MESSAGES)
    send(cluster, "later", {"body": "l", "deliver_at_ms": true_ms() + 3_600_000})
    half = {"producer_group": "shop", "messages": [{"topic": "paid", "queue": 0, "body": "t"}]}
    transaction_id = str(write(cluster, "POST", "/v1/transactions", half)["transaction_id"])
    write(cluster, "POST", f"/v1/transactions/{transaction_id}/commit", {"producer_group": "shop"})
    return transaction_id


def expire_short(cluster: ClusterProcess) -> None:
    """Check that retention works: messages stored now are removed when their second is over."""
    end = send(cluster, "short", {"body": "s"})["results"][0]["offset"] + 1
    wait_for(lambda: offsets(cluster, "short") == (end, end), "messages of a second to expire")


def check_nothing_went(cluster: ClusterProcess, transaction_id: str) -> None:
    assert offsets(cluster, "kept") == (0, MESSAGES)
    assert offsets(cluster, "later") == (0, 0)
    assert cluster.wait_leader().request("GET", f"/v1/transactions/{transaction_id}").status == 200
    stamped_ms = send(cluster, "short", {"body": "now"})["receipt"]["timestamp_ms"]
    assert abs(stamped_ms - true_ms()) < TOLERANCE_MS


@pytest.mark.parametrize("ahead_ms", [YEAR_MS, -YEAR_MS], ids=["ahead", "behind"])
def test_the_clock_of_the_leader_is_a_year_wrong(clocks: Clocks, ahead_ms: int) -> None:
    cluster = clocks.cluster
    transaction_id = prepare(cluster)
    wrong = cluster.wait_leader()
    clocks.shift(wrong, ahead_ms)
    expire_short(cluster)
    check_nothing_went(cluster, transaction_id)
    clocks.wait_alarm(wrong, "clock_skew")
    wait_for(lambda: cluster.leader() not in (wrong, None), "another node to lead")
    leader = cluster.wait_leader()
    clocks.wait_alarm(leader, "clock_skew", str(wrong.node_id))
    expire_short(cluster)
    check_nothing_went(cluster, transaction_id)
    clocks.shift(wrong, 0)
    wait_for(lambda: not clocks.has_alarm(wrong, "clock_skew"), "the alarm to be over")
    send(cluster, "later", {"body": "soon", "delay_ms": 200})
    wait_for(lambda: offsets(cluster, "later") == (0, 1), "a delayed message to be delivered")
    cluster.wait_same_state()


def restart_until_led_by(cluster: ClusterProcess, favored: NodeProcess, other: NodeProcess) -> None:
    """Let `favored` lead the two nodes that are left: `other` is started with a long election timeout, again and again.

    A node that has just started remembers no leader, so it elects `favored` at once; it stands for election itself only
    where the machine keeps `favored` waiting for seconds.
    """
    while cluster.leader() is not favored or not favored.ready():
        other.terminate()
        other.start(extra=("--election-timeout-ms", "8000"))
        wait_for(lambda: any(node is cluster.leader() and node.ready() for node in (favored, other)), "a leader")


def test_a_follower_whose_clock_is_a_year_ahead_leads(clocks: Clocks) -> None:
    """Two nodes are left, whose clocks disagree: nothing is removed until the third one decides which is right."""
    cluster = clocks.cluster
    transaction_id = prepare(cluster)
    leader = cluster.wait_leader()
    wrong, other = (node for node in cluster.alive() if node is not leader)
    leader.kill()
    clocks.shift(wrong, YEAR_MS)  # not before: while three clocks can be compared, the wrong one does not stand
    restart_until_led_by(cluster, wrong, other)
    clocks.wait_alarm(wrong, "clock_in_doubt")
    end = send(cluster, "short", {"body": "s"})["results"][0]["offset"] + 1
    check_nothing_went(cluster, transaction_id)
    leader.start()
    wait_for(lambda: cluster.leader() not in (wrong, None), "another node to lead")
    wait_for(lambda: offsets(cluster, "short")[0] >= end, "messages of a second to expire")
    check_nothing_went(cluster, transaction_id)


def test_the_time_that_a_cluster_was_off_has_passed(clocks: Clocks) -> None:
    """All clocks agree that it is a day later, so the replicated clock follows at once."""
    cluster = clocks.cluster
    prepare(cluster)
    cluster.stop()
    for node in cluster.nodes.values():
        clocks.shift(node, 2 * DAY_MS)
    cluster.start()
    cluster.wait_ready()
    stamped_ms = send(cluster, "short", {"body": "now"})["receipt"]["timestamp_ms"]
    assert abs(stamped_ms - true_ms() - 2 * DAY_MS) < TOLERANCE_MS
    wait_for(lambda: offsets(cluster, "kept") == (MESSAGES, MESSAGES), "what is older than a day to expire")
    wait_for(lambda: offsets(cluster, "later") == (0, 1), "the delayed message to be delivered")
