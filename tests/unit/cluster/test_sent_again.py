"""A request that is sent again after it was stored is answered from the index. No body crosses the peers' links
twice.
"""

from typing import Any

import pytest

from cluster.core.core import SOUGHT_BYTES_MIN
from tests.unit.cluster.conftest import Answer, Node

BODY = "x" * SOUGHT_BYTES_MIN


async def produce(node: Node, key: str, body: str = BODY) -> Answer:
    return await send(node, "/v1/topics/t/messages", {"messages": [{"body": body}]}, {"Idempotency-Key": key})


async def prepare(node: Node, transaction_id: str, body: str = BODY) -> Answer:
    half = {"producer_group": "g", "transaction_id": transaction_id, "messages": [{"topic": "t", "body": body}]}
    return await send(node, "/v1/transactions", half)


async def send(node: Node, path: str, payload: Any, headers: dict[str, str] | None = None) -> Answer:
    async with node.session.post(path, json=payload, headers=headers) as response:
        return Answer(response.status, await response.json(content_type=None), response.headers)


@pytest.fixture(autouse=True)
async def topic(node: Node) -> None:
    assert (await node.call("PUT", "/v1/topics/t", {"queues": 2})).status == 201


@pytest.mark.parametrize("ask", [produce, prepare])
async def test_what_was_stored_is_not_replicated_again(node: Node, ask: Any) -> None:
    """Seed 667018217 of the simulation: a client waited for less time than its message took over a slow link, so that
    one came to the log for ever, and nothing else did.
    """
    first = await ask(node, "k")
    await produce(node, "another")
    last_index = node.core.log.last_index
    again = await ask(node, "k")
    assert node.core.log.last_index == last_index
    assert again.status == first.status
    expected, found = dict(first.body), dict(again.body)  # the receipt is that of the first
    if ask is produce:
        expected["results"][0]["duplicate"] = True
    else:
        expected["duplicate"] = True
    assert found == expected


@pytest.mark.parametrize("ask", [produce, prepare])
async def test_other_content_is_refused_as_ever(node: Node, ask: Any) -> None:
    await ask(node, "k")
    other = await ask(node, "k", BODY + "y")
    assert (other.status, other.body["code"]) == (409, "idempotency_conflict")


async def test_a_batch_that_is_known_in_part_is_stored(node: Node) -> None:
    """One queue of the batch is new."""
    await produce(node, "k")
    messages = [{"body": BODY, "queue": queue} for queue in range(2)]
    mixed = await send(node, "/v1/topics/t/messages", {"messages": messages}, {"Idempotency-Key": "k"})
    assert mixed.status == 200
    assert [each["duplicate"] for each in mixed.body["results"]] == [True, False]
    assert sum(node.core.state.max_offset("t", queue) for queue in range(2)) == 2


async def test_a_topic_that_was_made_anew_knows_nothing(node: Node) -> None:
    await produce(node, "k")
    assert (await node.call("DELETE", "/v1/topics/t")).status == 204
    assert (await node.call("PUT", "/v1/topics/t", {"queues": 2})).status == 201
    again = await produce(node, "k")
    assert (again.status, again.body["results"][0]["duplicate"]) == (200, False)


@pytest.mark.parametrize("message", [{"delay_ms": 1}, {}], ids=["delayed", "in a transaction"])
async def test_what_another_entry_made_visible_is_replicated_again(node: Node, message: dict[str, Any]) -> None:
    """The receipt names an entry that holds the message."""
    body = {**message, "body": BODY, "queue": 0}
    if message:
        await send(node, "/v1/topics/t/messages", {"messages": [body]}, {"Idempotency-Key": "k"})
        node.clock.now_ms += 1
    else:
        half = {"producer_group": "g", "transaction_id": "k", "messages": [{**body, "topic": "t"}]}
        await send(node, "/v1/transactions", half)
        await node.call("POST", "/v1/transactions/k/commit", {"producer_group": "g"})

    async def visible() -> bool:
        return node.core.state.max_offset("t", 0) == 1

    await node.wait(visible)
    (row,) = node.core.state.rows("t", 0, 0, 1, 1 << 20)
    last_index = node.core.log.last_index
    again = await send(
        node, "/v1/topics/t/messages", {"messages": [{"body": BODY, "queue": 0}]}, {"Idempotency-Key": row.batch_id}
    )
    assert again.body["results"][0]["duplicate"]
    assert again.body["receipt"]["index"] > last_index
