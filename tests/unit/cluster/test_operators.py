"""Operators over HTTP resume, force, and refuse new transactions; the half topics are those that RocketMQ has."""

import asyncio
from typing import Any

import msgspec
import pytest

from cluster.messages.blocks import read_block
from store.commands.groups import GiveBack, GivenBack
from store.commands.transactions import Discard
from store.messages.topics import DISCARDED_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from tests.unit.cluster.conftest import Answer, Node

INTERVAL_MS = 30_000
WHO = {"operator": "ann", "reason": "shop is back"}
FORCE = {"source": "operator", "force": True, "operator": "ann", "reason": "by phone"}


async def prepare(node: Node, transaction_id: str, *, status: int = 201) -> Answer:
    await node.call("PUT", "/v1/topics/orders", {"queues": 2})
    message = {"topic": "orders", "body": "one", "queue": 1, "properties": {"color": "red"}, "tag": "A"}
    half = {"transaction_id": transaction_id, "producer_group": "shop", "client_id": "c1", "messages": [message]}
    answer = await node.call("POST", "/v1/transactions", half)
    assert answer.status == status, answer
    return answer


async def discard(node: Node, transaction_id: str) -> None:
    """Discard a transaction, as the check service does after the last unanswered check."""
    await prepare(node, transaction_id)
    await node.core.propose(Discard((transaction_id,)))


async def show(node: Node, transaction_id: str) -> Any:
    return (await node.call("GET", f"/v1/transactions/{transaction_id}")).body


async def pull(node: Node, topic: str, more: str = "") -> list[dict[str, Any]]:
    answer = await node.call("GET", f"/v1/topics/{topic}/queues/0/messages?offset=0{more}")
    assert answer.status == 200, answer
    messages: list[dict[str, Any]] = answer.body["messages"]
    return messages


async def test_a_discarded_transaction_is_resumed_and_its_producer_asked_again(node: Node) -> None:
    await discard(node, "t")
    assert (await node.call("POST", "/v1/transactions/t/commit")).status == 409
    resumed = await node.call("POST", "/v1/transactions/t/resume", WHO)
    due_ms = node.clock.now_ms + INTERVAL_MS
    assert resumed.body == {"transaction_id": "t", "state": "prepared", "next_check_at_ms": due_ms}
    checks = "/v1/producer-groups/shop/checks?client_id=c1"
    assert (await node.call("GET", checks)).body["checks"] == []
    node.clock.now_ms = due_ms
    (check,) = (await node.call("GET", checks)).body["checks"]
    assert (check["transaction_id"], check["check_times"]) == ("t", 1)
    answer = {"source": "check", "client_id": "c1", "producer_group": "shop"}
    committed = await node.call("POST", "/v1/transactions/t/commit", answer)
    assert committed.body["positions"] == [{"topic": "orders", "queue": 1, "offset": 0, "count": 1}]
    timeline = (await show(node, "t"))["timeline"]
    names = [event["event"] for event in timeline if event["event"] != "check"]  # it is counted in the background
    assert names == ["prepared", "discarded", "resumed", "answer", "committed"]
    resumption = next(event for event in timeline if event["event"] == "resumed")
    assert (resumption["source"], resumption["operator"], resumption["reason"]) == ("operator", "ann", "shop is back")


@pytest.mark.parametrize(("decision", "state"), [("commit", "committed"), ("rollback", "rolled_back")])
async def test_an_operator_forces_a_decision_of_a_discarded_transaction(node: Node, decision: str, state: str) -> None:
    await discard(node, "t")
    plain = await node.call("POST", f"/v1/transactions/t/{decision}", {"source": "operator"})
    assert (plain.status, plain.body["state"]) == (409, "discarded")
    for _ in range(2):
        forced = await node.call("POST", f"/v1/transactions/t/{decision}", FORCE)
        assert (forced.status, forced.body["state"]) == (200, state)
    record = (await show(node, "t"))["timeline"][-1]
    assert {name: record[name] for name in ("event", "source", "operator", "reason", "forced")} == {
        "event": state,
        "source": "operator",
        "operator": "ann",
        "reason": "by phone",
        "forced": True,
    }
    opposite = {"commit": "rollback", "rollback": "commit"}[decision]
    assert (await node.call("POST", f"/v1/transactions/t/{opposite}", FORCE)).body["state"] == state
    found = await node.call("GET", "/v1/topics/orders/queues/1/messages?offset=0")
    assert len(found.body["messages"]) == (decision == "commit")


@pytest.mark.parametrize(
    "body",
    [
        {**FORCE, "operator": ""},
        {**FORCE, "reason": ""},
        {**FORCE, "reason": "x" * 256},
        {**FORCE, "reason": "é" * 128},
        {**FORCE, "source": "producer"},
        {"source": "check", "reason": "why"},
    ],
)
async def test_what_an_operator_has_to_say_is_checked(node: Node, body: dict[str, Any]) -> None:
    await discard(node, "t")
    answer = await node.call("POST", "/v1/transactions/t/commit", body)
    assert (answer.status, answer.body["code"]) == (400, "invalid_request")
    assert (await show(node, "t"))["state"] == "discarded"


async def test_new_transactions_are_switched_off_and_on(node: Node) -> None:
    path = "/v1/cluster/settings"
    taken, refused = ({"reject_transactions": each, "log_retention_bytes": -1} for each in (False, True))
    assert (await node.call("GET", path)).body == taken
    await prepare(node, "t")
    assert (await node.call("PUT", path, {"reject_transactions": True})).body == refused
    assert (await prepare(node, "u", status=403)).body["code"] == "transactions_rejected"
    assert (await node.call("GET", path)).body == refused
    assert (await node.call("PUT", path, {})).body == refused
    assert (await node.call("POST", "/v1/transactions/t/commit")).status == 200
    await node.call("PUT", path, {"reject_transactions": False})
    await prepare(node, "u")


@pytest.mark.parametrize("body", [{"reject_transactions": "yes"}, {"other": True}, []])
async def test_settings_that_are_none_are_refused(node: Node, body: Any) -> None:
    answer = await node.call("PUT", "/v1/cluster/settings", body)
    assert (answer.status, answer.body["code"]) == (400, "invalid_request")


async def test_the_half_topics_show_what_rocketmq_users_know(node: Node) -> None:
    await discard(node, "t")
    await node.call("POST", "/v1/transactions/t/resume", WHO)
    node.clock.now_ms += INTERVAL_MS
    await node.call("GET", "/v1/producer-groups/shop/checks?client_id=c1")

    async def asked() -> bool:
        return bool((await show(node, "t"))["check_times"] == 1)

    await node.wait(asked)
    for topic in (HALF_TOPIC, DISCARDED_TOPIC):
        (message,) = await pull(node, topic)
        assert (message["transaction_id"], message["topic"], message["offset"], message["body"]) == (
            "t",
            topic,
            0,
            "one",
        )
        assert message["properties"] == {
            "color": "red",
            "REAL_TOPIC": "orders",
            "REAL_QID": "1",
            "PGROUP": "shop",
            "TRAN_MSG": "true",
            "TRANSACTION_CHECK_TIMES": "1",
        }
    await node.call("POST", "/v1/transactions/t/commit")
    (delivered,) = (await node.call("GET", "/v1/topics/orders/queues/1/messages?offset=0")).body["messages"]
    assert (delivered["transaction_id"], delivered["properties"]) == ("t", {"color": "red"})


async def test_the_op_topic_tells_of_decisions_as_they_come(node: Node) -> None:
    await discard(node, "t")
    await prepare(node, "u")
    assert [message["body"] for message in await pull(node, OP_HALF_TOPIC)] == ["discarded"]
    path = f"/v1/topics/{OP_HALF_TOPIC}/queues/0/messages?offset=1&wait_ms=30000"
    waiting = asyncio.create_task(node.call("GET", path))

    async def waits() -> bool:
        return len(node.core.waiters) == 1

    await node.wait(waits)
    await node.call("POST", "/v1/transactions/u/rollback")
    (message,) = (await waiting).body["messages"]
    assert (message["body"], message["tag"], message["keys"], message["transaction_id"]) == (
        "rolled_back",
        "d",
        ["u"],
        "u",
    )
    assert message["properties"] == {
        "TRANSACTION_ID": "u",
        "STATE": "rolled_back",
        "PGROUP": "shop",
        "SOURCE": "producer",
    }
    by_hand = await pull(node, OP_HALF_TOPIC, "&filter=STATE%20%3D%20%27discarded%27")
    assert [message["transaction_id"] for message in by_hand] == ["t"]


async def test_the_op_topic_is_read_in_batches_too(node: Node) -> None:
    await discard(node, "t")
    path = f"/v1/topics/{OP_HALF_TOPIC}/queues/0/messages?offset=0"
    async with node.session.get(path, headers={"Accept": "application/msgpack"}) as response:
        answer = msgspec.msgpack.decode(await response.read())
    (batch,) = answer["batches"]
    assert (batch["base_offset"], batch["count"], answer["max_offset"]) == (0, 1, 1)
    assert [message.body for message in read_block(batch["block"], None)] == [b"discarded"]


async def test_decisions_of_one_entry_are_told_apart(node: Node) -> None:
    await prepare(node, "t")
    await prepare(node, "u")
    await node.core.propose(Discard(("t", "u")))
    assert [message["keys"] for message in await pull(node, OP_HALF_TOPIC)] == [["t"], ["u"]]


async def test_a_message_of_the_op_topic_can_be_given_back(node: Node) -> None:
    """The message is in no log record, so the command carries it."""
    await discard(node, "t")
    item = GivenBack(OP_HALF_TOPIC, 0, 0, delay_ms=0)
    await node.core.propose(GiveBack("audit", None, None, (item,)))
    (again,) = await pull(node, "%25RETRY%25audit")
    assert (again["body"], again["keys"], again["transaction_id"]) == ("discarded", ["t"], "t")
