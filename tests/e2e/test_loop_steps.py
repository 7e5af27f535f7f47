"""Tests the costliest requests within the limits: none takes a step of more than STEP_MS_MAX."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard
from crc32c import crc32c

from cluster.limits import (
    BATCHES_MAX,
    BODY_BYTES_MAX,
    GROUP_QUEUES_MAX,
    KEYS_MAX,
    QUEUES_MAX,
    REQUEST_KEYS_MAX,
    REQUEST_MESSAGES_MAX,
)
from tests.e2e.cluster_process import OPTIONS, ClusterProcess, NodeProcess, wait_for
from tests.e2e.loop_steps import STEP_MS_MAX, VARIABLE, in_short_steps

pytestmark = pytest.mark.process
pack = msgspec.msgpack.encode
ZSTD = {"encoding": "zstd"}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    environment = {VARIABLE: str(STEP_MS_MAX)}
    with ClusterProcess(tmp_path_factory.mktemp("steps"), nodes=1, options=OPTIONS, environment=environment) as cluster:
        node = cluster.wait_leader()
        assert node.request("PUT", "/v1/topics/costly", payload={"queues": 4}).status == 201
        yield node


def check_status(status: int, expected: int) -> None:
    assert status == expected


def send(node: NodeProcess, messages: list[dict[str, Any]]) -> int:
    return node.request("POST", "/v1/topics/costly/messages", payload={"messages": messages}).status


@pytest.mark.long_steps
def test_a_long_step_is_noticed(tmp_path: Path) -> None:
    """Shows that the tests prove something: with a bound of 1 ms the largest request takes longer."""
    with ClusterProcess(tmp_path, nodes=1, options=OPTIONS, environment={VARIABLE: "1"}) as cluster:
        node = cluster.wait_leader()
        assert node.request("PUT", "/v1/topics/costly", payload={"queues": 1}).status == 201
        assert send(node, [{"body": "x" * 100}] * REQUEST_MESSAGES_MAX) == 200


@pytest.mark.parametrize("delay_ms", [0, 1])
def test_all_the_keys_of_a_request(node: NodeProcess, delay_ms: int) -> None:
    keys = [f"key-{number}" for number in range(REQUEST_KEYS_MAX)]
    messages = [
        {"body": "x", "keys": keys[i : i + KEYS_MAX], "delay_ms": delay_ms} for i in range(0, len(keys), KEYS_MAX)
    ]
    in_short_steps(lambda _: check_status(send(node, messages), 200))
    assert send(node, [*messages, {"body": "x", "keys": ["one"]}]) == 413


@pytest.mark.parametrize("delay_ms", [0, 1])
def test_all_the_ids_of_a_request(node: NodeProcess, delay_ms: int) -> None:
    def attempt(number: int) -> None:
        ids = [f"{number}-{delay_ms}-{i}" for i in range(REQUEST_KEYS_MAX)]
        messages = [{"body": "x", "message_id": each, "delay_ms": delay_ms} for each in ids]
        assert send(node, messages) == 200
        assert send(node, messages) == 200, "all of them known already"
        assert send(node, [*messages, {"body": "x", "message_id": "one"}]) == 413

    in_short_steps(attempt)


def test_transactions_with_all_keys_that_are_decided_by_one_request(node: NodeProcess) -> None:
    def attempt(number: int) -> None:
        names = [f"keyed-{number}-{i}" for i in range(8)]
        for name in names:
            keys = [f"{name}-{i}" for i in range(REQUEST_KEYS_MAX)]
            messages = [
                {"topic": "costly", "body": "x", "keys": keys[i : i + KEYS_MAX]} for i in range(0, len(keys), KEYS_MAX)
            ]
            half = {"transaction_id": name, "producer_group": "pg", "messages": messages}
            assert node.request("POST", "/v1/transactions", payload=half).status == 201
        decisions = [{"transaction_id": name, "decision": "commit"} for name in names]
        answer = node.request("POST", "/v1/transactions/decisions", payload={"decisions": decisions})
        assert [each["state"] for each in answer.json()["results"]] == ["committed"] * len(names)

    in_short_steps(attempt)


def test_a_transaction_of_all_batches_with_all_ids(node: NodeProcess) -> None:
    """Each queue gets a batch. Their commit is seen at once, and is no step of its own for that."""
    assert node.request("PUT", "/v1/topics/spread", payload={"queues": BATCHES_MAX}).status == 201
    ids_per_queue = REQUEST_KEYS_MAX // BATCHES_MAX

    def attempt(number: int) -> None:
        messages = [
            {"topic": "spread", "body": "x", "queue": i // ids_per_queue, "message_id": f"{number}-{i}"}
            for i in range(BATCHES_MAX * ids_per_queue)
        ]
        half = {"transaction_id": f"spread-{number}", "producer_group": "pg", "messages": messages}
        assert node.request("POST", "/v1/transactions", payload=half).status == 201
        committed = node.request("POST", f"/v1/transactions/spread-{number}/commit").json()
        assert len(committed["positions"]) == BATCHES_MAX

    in_short_steps(attempt)


def test_all_the_queues_of_a_group(node: NodeProcess) -> None:
    def attempt(number: int) -> None:
        topics = [f"wide-{number}-{i}" for i in range(GROUP_QUEUES_MAX // QUEUES_MAX)]
        for topic in topics:
            assert node.request("PUT", f"/v1/topics/{topic}", payload={"queues": QUEUES_MAX}).status == 201
        for member in range(4):
            joining = {"member_id": f"m{member}", "topics": topics}
            assert node.request("POST", f"/v1/groups/wide-{number}/members", payload=joining).status == 201
        for member in range(4):
            assert node.request("DELETE", f"/v1/groups/wide-{number}/members/m{member}").status == 204

    in_short_steps(attempt)


def test_offsets_of_all_the_queues_of_a_group_are_cloned_and_listed_and_their_topics_deleted(node: NodeProcess) -> None:
    def attempt(number: int) -> None:
        topics = [f"read-{number}-{i}" for i in range(GROUP_QUEUES_MAX // QUEUES_MAX)]
        for topic in topics:
            assert node.request("PUT", f"/v1/topics/{topic}", payload={"queues": QUEUES_MAX}).status == 201
            offsets = [{"topic": topic, "queue": queue, "offset": 0} for queue in range(QUEUES_MAX)]
            assert node.request("PUT", f"/v1/groups/read-{number}/offsets", payload={"offsets": offsets}).status == 200
        clone = {"source": f"read-{number}"}
        cloned = node.request("POST", f"/v1/groups/copy-{number}/clone-offsets", payload=clone)
        assert len(cloned.json()["offsets"]) == GROUP_QUEUES_MAX
        assert len(node.request("GET", f"/v1/groups/copy-{number}/offsets").json()["offsets"]) == GROUP_QUEUES_MAX
        for topic in topics:
            assert node.request("DELETE", f"/v1/topics/{topic}").status == 204

    in_short_steps(attempt)


def test_all_the_queues_of_a_topic_are_shown(node: NodeProcess) -> None:
    assert node.request("PUT", "/v1/topics/shown", payload={"queues": QUEUES_MAX}).status == 201
    each = [{"body": "x", "queue": queue} for queue in range(QUEUES_MAX)]
    for messages in (each[: QUEUES_MAX // 2], each[QUEUES_MAX // 2 :]):
        assert node.request("POST", "/v1/topics/shown/messages", payload={"messages": messages}).status == 200

    def attempt(_: int) -> None:
        shown = node.request("GET", "/v1/topics/shown").json()["queue_offsets"]
        assert all(queue["first_stored_at_ms"] == queue["last_stored_at_ms"] for queue in shown)

    in_short_steps(attempt)


def test_many_batches_with_all_keys_that_are_due_at_once(node: NodeProcess) -> None:
    """Several entries deliver the batches; each is applied in one step."""

    def attempt(number: int) -> None:
        deliver_at_ms = int(time.time() * 1_000) + 5_000
        for batch in range(8):
            keys = [f"key-{number}-{batch}-{i}" for i in range(REQUEST_KEYS_MAX)]
            messages = [
                {"body": "x", "keys": keys[i : i + KEYS_MAX], "deliver_at_ms": deliver_at_ms, "queue": 3}
                for i in range(0, len(keys), KEYS_MAX)
            ]
            assert send(node, messages) == 200
        wait_for(lambda: not node.request("GET", "/v1/topics/costly/scheduled").json()["messages"], "all of them")

    in_short_steps(attempt)


def test_what_a_message_caused_among_as_much_as_can_hide_it(node: NodeProcess) -> None:
    """The search meets messages that all name the cause, large blocks, and small ones that become large."""
    cause = "e" * 8  # is in all of it
    assert send(node, [{"body": "x", "message_id": cause}]) == 200
    properties = {"causation_id": ",".join([cause] * 30), "causation_topic": "costly"}
    assert send(node, [{"body": "x", "properties": properties}] * REQUEST_MESSAGES_MAX) == 200
    large = pack([[b"f" * (BODY_BYTES_MAX - 1_000)], [b"f" * (BODY_BYTES_MAX - 1_000), None, [], properties]])
    frame = zstandard.ZstdCompressor().compress(large)
    for number, (block, more) in enumerate(((large, {}), (frame, ZSTD | {"uncompressed_bytes": len(large)}))):
        batch = {"queue": 0, "batch_id": f"large-{number}", "crc32c": crc32c(block), "block": block, **more}
        reply = node.request(
            "POST",
            "/v1/topics/costly/messages",
            body=pack({"batches": [batch]}),
            headers={"Content-Type": "application/msgpack"},
        )
        assert reply.status == 200, reply

    def attempt(_: int) -> None:
        path = f"/v1/messages/{cause}/caused?topic=costly&limit=1000"
        page = node.request("GET", path).json()
        found = len(page["messages"])
        while page["next"] is not None:
            page = node.request("GET", f"{path}&after={page['next']}").json()
            found += len(page["messages"])
        assert found == REQUEST_MESSAGES_MAX + 2

    in_short_steps(attempt)
