"""The holder of the log's front is shown to operators: its name, since when, how many bytes, and an alarm."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from store.commands.groups import GiveBack, GivenBack
from store.commands.transactions import Decide, Discard
from tests.unit.cluster.conftest import START_MS, Node, node_config, running_node

BODY = "x" * 200_000
HELD_MAX = 6 << 20


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    """Run a node that looks at its log all the time and raises the alarm at few bytes."""
    fatal: list[str] = []
    config = node_config(tmp_path, retention_check_ms=10, segment_bytes=1 << 16, log_held_alarm_bytes=HELD_MAX)
    async with running_node(config, fatal) as node:
        assert (await node.call("PUT", "/v1/topics/orders", {"queues": 1, "retention_ms": 5_000})).status == 201
        yield node
    assert not fatal


async def send(node: Node, count: int = 1, topic: str = "orders", **fields: Any) -> None:
    for _ in range(count):
        payload = {"messages": [{"body": BODY, "queue": 0, **fields}]}
        assert (await node.call("POST", f"/v1/topics/{topic}/messages", payload)).status == 200


async def view(node: Node) -> dict[str, Any]:
    found: dict[str, Any] = (await node.call("GET", "/v1/cluster")).body
    return found


async def wait_for_front(node: Node, kind: str | None) -> dict[str, Any]:
    """Wait until the holder of most of the log is of this kind and return it. None waits until there is no holder and
    returns {}.
    """

    async def is_shown() -> list[dict[str, Any]]:
        holders = (await view(node))["log_holders"]
        return [holders[0]] if holders and holders[0]["kind"] == kind else [{}] if not holders and kind is None else []

    found: dict[str, Any] = (await node.wait(is_shown))[0]
    return found


async def prepare(node: Node) -> None:
    half = {"transaction_id": "t-1", "producer_group": "pg", "messages": [{"topic": "orders", "body": "half"}]}
    assert (await node.call("POST", "/v1/transactions", half)).status == 201


async def test_a_fresh_transaction_in_an_old_block_is_shown_from_its_own_entry_on(node: Node) -> None:
    """Bytes are those of the block, of which the log keeps all or nothing."""
    assert (await node.call("PUT", "/v1/topics/kept", {"queues": 1, "retention_ms": 3_600_000})).status == 201
    await send(node, topic="kept")
    old_ms = node.clock.now_ms
    node.clock.now_ms += 600_000
    await prepare(node)

    async def is_shown() -> dict[str, Any] | None:
        found = {each["kind"]: each for each in (await view(node))["log_holders"]}
        return found if found.keys() >= {"message", "transaction"} else None

    found = await node.wait(is_shown)
    transaction = (await node.call("GET", "/v1/transactions/t-1")).body
    shown = found["transaction"]
    assert (shown["subject"], shown["raft_index"]) == ("t-1", transaction["timeline"][0]["raft_index"])
    assert shown["since_ms"] == transaction["prepared_at_ms"] == node.clock.now_ms
    assert shown["bytes"] == found["message"]["bytes"] > len(BODY)
    assert found["message"]["since_ms"] == old_ms
    node.clock.now_ms += 5_000
    metrics = (await node.call("GET", "/metrics")).body.decode()
    assert 'keelmq_log_held_seconds{holder="transaction"} 5.0' in metrics
    assert 'keelmq_log_held_seconds{holder="message"} 605.0' in metrics


async def test_a_message_of_a_transaction_is_shown_from_its_half_on(node: Node) -> None:
    """Rows name the entry of the commit, and blocks are in an earlier one."""
    await prepare(node)
    prepared_ms = node.clock.now_ms
    node.clock.now_ms += 1_000
    assert (await node.call("POST", "/v1/transactions/t-1/commit", {"source": "producer"})).status == 200
    assert (await wait_for_front(node, "message"))["since_ms"] == prepared_ms


async def held_alarms(node: Node) -> list[Any]:
    """Return the alarms about the log's holder. A busy machine may raise others, for a loop that was held up."""
    return [alarm for alarm in (await view(node))["alarms"] if alarm["code"] == "log_held"]


async def test_messages_within_their_retention_hold_the_log_without_an_alarm(node: Node) -> None:
    await send(node, 60)
    front = await wait_for_front(node, "message")
    assert (front["subject"], front["since_ms"]) == ("orders", START_MS)

    async def holds_all() -> bool:  # it looked while some were still to come
        return bool((await view(node))["log_holders"][0]["bytes"] > 60 * len(BODY))

    await node.wait(holds_all)
    assert await held_alarms(node) == []


async def test_an_undecided_transaction_is_named_and_raises_an_alarm_until_it_is_decided(node: Node) -> None:
    await prepare(node)
    node.clock.now_ms += 1_000
    await send(node, 60)
    node.clock.now_ms += 5_000
    front = await wait_for_front(node, "transaction")
    assert (front["subject"], front["since_ms"]) == ("t-1", START_MS)

    async def is_raised() -> Any:
        return await held_alarms(node)

    (alarm,) = await node.wait(is_raised)
    assert (alarm["code"], alarm["severity"], alarm["since_ms"]) == ("log_held", "warning", START_MS + 6_000)
    assert alarm["detail"].startswith("transaction t-1, of 2023-11-14T22:13:20+00:00, holds ")
    shown = (await node.call("GET", "/metrics")).body.decode()
    assert 'keelmq_log_held_seconds{holder="transaction"} 6.0' in shown
    assert 'keelmq_log_held_bytes{holder="retry"} 0.0' in shown
    await node.core.propose(Discard(("t-1",)))
    assert (await wait_for_front(node, "transaction"))["subject"] == "t-1"
    await node.core.propose(Decide("t-1", "rollback", "operator", force=True, operator="ann", reason="by phone"))

    async def is_over() -> bool:
        return not await held_alarms(node)

    await node.wait(is_over)
    assert await wait_for_front(node, None) == {}


@pytest.mark.parametrize(
    ("kind", "subject", "delay_ms"), [("retry", "g", 0), ("scheduled", "orders", 1 << 30)], ids=["retry", "scheduled"]
)
async def test_what_waits_is_named(node: Node, kind: str, subject: str, delay_ms: int) -> None:
    if kind == "retry":
        await send(node)
        await node.core.propose(GiveBack("g", None, None, (GivenBack("orders", 0, 0, delay_ms=delay_ms),)))
    else:
        await send(node, delay_ms=delay_ms)
    await send(node, 30)
    node.clock.now_ms += 5_000
    assert (await wait_for_front(node, kind))["subject"] == subject


async def test_a_topic_that_keeps_messages_for_ever_is_named(node: Node) -> None:
    assert (await node.call("PUT", "/v1/topics/ledger", {"queues": 1, "retention_ms": -1})).status == 201
    await send(node, topic="ledger")
    await send(node, 30)
    node.clock.now_ms += 5_000

    async def is_named() -> bool:
        return [each["subject"] for each in (await view(node))["log_holders"]] == ["ledger"]

    await node.wait(is_named)
    assert await held_alarms(node) == []
