"""Each holder of the log is tried on a real node, with expired messages all around a settled one.

Whatever was done to that one message, the log shrinks as if it had been like the others.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from store.commands.groups import (
    CommitOffsets,
    DeleteGroup,
    GiveBack,
    GivenBack,
    PutGroup,
    QueueOffset,
    ReplayDeadLetters,
)
from store.commands.messages import CancelScheduled
from store.commands.pops import AckPopped, Pop, Popped
from store.commands.topics import DeleteTopic
from store.commands.transactions import Decide, Discard, ResumeTransaction
from tests.unit.cluster.conftest import Node, node_config, running_node

RETENTION_MS = 2_000
BODY_BYTES = 200_000
BODIES = 60
LOG_BYTES_MAX = 5 << 20
"""Maximum bytes left of 12 MB: the range that is counted as a whole, and some."""

RETRY = "%RETRY%g"
DAY_MS = 24 * 3_600_000

Settle = Callable[[Node], Awaitable[None]]


async def send(node: Node, topic: str, body: str, **fields: object) -> None:
    payload = {"messages": [{"body": body, "queue": 0, **fields}]}
    answer = await node.call("POST", f"/v1/topics/{topic}/messages", payload)
    assert answer.status == 200, answer


async def make_topic(node: Node, name: str, retention_ms: int = RETENTION_MS) -> None:
    assert (await node.call("PUT", f"/v1/topics/{name}", {"queues": 1, "retention_ms": retention_ms})).status == 201


async def prepare(node: Node) -> None:
    half = {"transaction_id": "t", "producer_group": "pg", "messages": [{"topic": "orders", "body": "half"}]}
    answer = await node.call("POST", "/v1/transactions", half)
    assert answer.status == 201, answer


async def next_offset(node: Node) -> int:
    await send(node, "orders", "the one")
    return node.core.state.max_offset("orders", 0) - 1


async def nothing(node: Node) -> None:
    """Change nothing: the node as it is without any of the other cases."""


async def committed(node: Node) -> None:
    await prepare(node)
    await node.core.propose(Decide("t", "commit"))


async def rolled_back(node: Node) -> None:
    await prepare(node)
    await node.core.propose(Decide("t", "rollback"))


async def discarded_and_forced(node: Node) -> None:
    await prepare(node)
    await node.core.propose(Discard(("t",)))
    await node.core.propose(Decide("t", "rollback", "operator", force=True, reason="by phone", operator="ann"))


async def discarded_resumed_and_committed(node: Node) -> None:
    await prepare(node)
    await node.core.propose(Discard(("t",)))
    await node.core.propose(ResumeTransaction("t", "ann", "by phone", 0))
    await node.core.propose(Decide("t", "commit"))


async def give_back(node: Node, topic: str, offset: int, delay_ms: int = 0) -> None:
    await node.core.propose(GiveBack("g", None, None, (GivenBack(topic, 0, offset, delay_ms=delay_ms),)))


async def process(node: Node, topic: str, offset: int) -> None:
    await node.core.propose(CommitOffsets("g", None, None, (QueueOffset(topic, 0, offset + 1),)))


async def given_back_and_processed(node: Node) -> None:
    offset = await next_offset(node)
    await give_back(node, "orders", offset)
    await process(node, "orders", offset)
    await process(node, RETRY, 0)


async def given_back_twice_and_processed(node: Node) -> None:
    await give_back(node, "orders", await next_offset(node))
    await give_back(node, RETRY, 0)
    await process(node, RETRY, 0)
    await process(node, RETRY, 1)


async def pop_all(node: Node) -> None:
    while True:
        popped = (await node.core.propose(Pop("g", "orders", "c", 32, 60_000))).result
        assert isinstance(popped, Popped)
        if not popped.messages:
            return
        for each in popped.messages:
            await node.core.propose(AckPopped("g", tuple(map(each.handle, each.offsets))))


async def popped_and_acknowledged(node: Node) -> None:
    await send(node, "orders", "the one")
    await pop_all(node)


async def given_back_popped_and_acknowledged(node: Node) -> None:
    await give_back(node, "orders", await next_offset(node))
    await pop_all(node)


async def dead_replayed_and_processed(node: Node) -> None:
    await node.core.propose(PutGroup("g", retry_max_attempts=1))
    await give_back(node, "orders", await next_offset(node))
    await give_back(node, RETRY, 0)
    await process(node, RETRY, 0)
    await node.core.propose(ReplayDeadLetters("g", (0,)))
    await process(node, RETRY, 1)


async def delayed_and_delivered(node: Node) -> None:
    await send(node, "orders", "the one", delay_ms=1_000)


async def delayed_and_taken_back(node: Node) -> None:
    await send(node, "orders", "the one", delay_ms=DAY_MS, message_id="m")
    await node.core.propose(CancelScheduled("orders", "m"))


async def topic_deleted_with_messages_for_ever(node: Node) -> None:
    await make_topic(node, "gone", -1)
    await send(node, "gone", "the one")
    await node.core.propose(DeleteTopic("gone"))


async def topic_deleted_while_one_waits(node: Node) -> None:
    await make_topic(node, "gone", -1)
    await send(node, "gone", "the one", delay_ms=DAY_MS)
    await node.core.propose(DeleteTopic("gone"))


async def group_deleted_while_one_waits(node: Node) -> None:
    await give_back(node, "orders", await next_offset(node), delay_ms=DAY_MS)
    await node.core.propose(DeleteGroup("g", with_dead_letters=True))


SETTLED = (
    nothing,
    committed,
    rolled_back,
    discarded_and_forced,
    discarded_resumed_and_committed,
    given_back_and_processed,
    given_back_twice_and_processed,
    popped_and_acknowledged,
    given_back_popped_and_acknowledged,
    dead_replayed_and_processed,
    delayed_and_delivered,
    delayed_and_taken_back,
    topic_deleted_with_messages_for_ever,
    topic_deleted_while_one_waits,
    group_deleted_while_one_waits,
)


@pytest.mark.parametrize("settle", SETTLED, ids=lambda settle: settle.__name__)
async def test_the_log_shrinks_around_a_message_that_is_settled(tmp_path: Path, settle: Settle) -> None:
    fatal: list[str] = []
    async with running_node(node_config(tmp_path, retention_check_ms=10, segment_bytes=1 << 16), fatal) as node:
        log = node.core.log

        async def is_short() -> bool:
            node.clock.now_ms += 100
            return log.end_position - log.base.position < LOG_BYTES_MAX

        await make_topic(node, "orders")
        await settle(node)
        for _ in range(BODIES):
            await send(node, "orders", "x" * BODY_BYTES)
        assert not await is_short()
        for _ in range(2):
            node.clock.now_ms += 15 * 60_000  # a dead letter that was replayed is kept for as long
            await send(node, "orders", "last")
        await node.wait(is_short)
    assert not fatal
