"""Tests readers of data that is not in memory: they cause no long step (conftest.py), and read little for a small
answer.
"""

from collections.abc import Iterator

import pytest

from tests.e2e.cluster_process import ClusterProcess, NodeProcess
from tests.e2e.loop_steps import metric

pytestmark = pytest.mark.process

TOPICS = 100
ROUNDS = 16
BODY_BYTES = 16 * 1024
MIB = 1 << 20
MSGPACK = {"Accept": "application/msgpack"}
FAST = ("--election-timeout-ms", "500", "--heartbeat-ms", "50", "--cache-bytes", str(1 << 16))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    """Return a node with records of 1.6 MiB that hold a message for each of 100 topics, none of them in memory any
    more.
    """
    with ClusterProcess(tmp_path_factory.mktemp("cold"), nodes=1, options=FAST) as running:
        node = running.wait_leader()
        for number in range(TOPICS):
            assert node.request("PUT", f"/v1/topics/t{number}", payload={"queues": 1}).status == 201
        for number in range(ROUNDS):
            body = f"{number:04}" * (BODY_BYTES // 4)
            messages = [{"topic": f"t{topic}", "body": body} for topic in range(TOPICS)]
            half = {"transaction_id": f"tx{number}", "producer_group": "pg", "messages": messages}
            assert node.request("POST", "/v1/transactions", payload=half).status == 201
            assert node.request("POST", f"/v1/transactions/tx{number}/commit").status == 200
        yield running


def read_bytes(node: NodeProcess) -> float:
    return metric(node, "keelmq_log_read_bytes_total")


@pytest.mark.parametrize("headers", [{}, MSGPACK], ids=["JSON", "msgpack"])
def test_a_queue_whose_messages_share_their_records(cluster: ClusterProcess, headers: dict[str, str]) -> None:
    """The node reads the answered bytes and a page or two per message, not the records with 100 times as much."""
    node = cluster.wait_leader()
    before = read_bytes(node)
    path = f"/v1/topics/t7/queues/0/messages?offset=0&max_messages=10000&max_bytes={16 * MIB}"
    answer = node.request("GET", path, headers=headers)
    assert answer.status == 200
    assert f"{ROUNDS - 1:04}".encode() in answer.body
    assert ROUNDS * BODY_BYTES < read_bytes(node) - before < ROUNDS * (BODY_BYTES + 4 * 4096)


@pytest.mark.parametrize(
    "path",
    [
        f"/v1/log?from_index=1&max_bytes={16 * MIB}",
        f"/v1/log/events?from_index=1&max_bytes={16 * MIB}",
        "/v1/topics/t7/messages?from_ms=0&limit=1000",
        "/v1/topics/t7/queues/0/messages?offset=0&filter=x%20%3D%20'y'",
    ],
)
def test_other_readers_of_old_records(cluster: ClusterProcess, path: str) -> None:
    node = cluster.wait_leader()
    before = read_bytes(node)
    assert node.request("GET", path).status == 200
    assert read_bytes(node) > before
