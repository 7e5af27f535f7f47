"""`GET /v1/messages/{message_id}/caused`: what a message caused, looked for in the log behind it."""

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
import zstandard
from crc32c import crc32c

from cluster.budgets.pace import Pace
from cluster.budgets.turns import PAGE_TURN_BYTES
from cluster.core.log_reads import LogReads
from cluster.messages import caused_search
from cluster.messages.caused_api import SEARCH_TURN_BYTES
from cluster.messages.caused_search import CausedSearch, Place
from cluster.problems import Problem
from keelmq.causation import CAUSATION_ID, CAUSATION_TOPIC, PRODUCER_GROUP
from store.commands.entry import Proposal
from store.commands.messages import BatchHeader, Produce
from store.log.errors import LogTruncated
from tests.unit.cluster.conftest import Node, node_config, running_node

pack = msgspec.msgpack.encode


async def topic(node: Node, *names: str) -> None:
    for name in names:
        assert (await node.call("PUT", f"/v1/topics/{name}", {"queues": 1, "type": "any"})).status == 201


async def send(node: Node, to: str, message_id: str, ids: str = "", topics: str = "", **fields: Any) -> None:
    """Send one message, which names its causes."""
    node.clock.now_ms += 1
    message = {"body": "x", "message_id": message_id, "properties": named(ids, topics), **fields}
    answer = await node.call("POST", f"/v1/topics/{to}/messages", {"messages": [message]})
    assert answer.status == 200, answer


def named(ids: str, topics: str) -> dict[str, str]:
    return {name: value for name, value in {CAUSATION_ID: ids, CAUSATION_TOPIC: topics}.items() if value}


async def page(node: Node, message_id: str = "order", of: str = "orders", **query: Any) -> Any:
    asked = "".join(f"&{name}={value}" for name, value in query.items())
    answer = await node.call("GET", f"/v1/messages/{message_id}/caused?topic={quote(of, safe='')}{asked}")
    assert answer.status == 200, answer
    return answer.body


async def search(node: Node, message_id: str = "order", of: str = "orders", **query: Any) -> list[Any]:
    """Return the messages of all pages."""
    found: list[Any] = []
    answer = await page(node, message_id, of, **query)
    while True:
        found += answer["messages"]
        if answer["next"] is None:
            assert answer["left_bytes"] == 0
            return found
        answer = await page(node, message_id, of, **query, after=answer["next"])


def ids_of(found: list[Any]) -> list[str]:
    return [each["message_id"] for each in found]


async def test_what_a_message_caused_is_found_with_its_place(node: Node) -> None:
    await topic(node, "orders", "points")
    await send(node, "points", "before", "order", "orders")
    await send(node, "orders", "order")
    await send(node, "points", "point", "order", "orders")
    await send(node, "points", "of-another", "order-1", "orders")
    await send(node, "points", "without", "")
    answer = await page(node)
    (found,) = answer["messages"]
    assert (found["message_id"], found["topic"], found["queue"], found["offset"]) == ("point", "points", 0, 1)
    assert (found["state"], found["at_ms"], found["names_topic"]) == ("visible", node.clock.now_ms - 2, True)
    (stored,) = (await node.call("GET", "/v1/messages/point?topic=points")).body["messages"]
    assert found["raft_index"] == stored["raft_index"]
    applied_index = node.core.raft.applied_index
    assert (answer["next"], answer["left_bytes"], answer["applied_index"]) == (None, 0, applied_index)
    (cause,) = (await node.call("GET", "/v1/messages/order?topic=orders")).body["messages"]
    assert answer["from_index"] == cause["raft_index"], "it begins at the entry of the cause itself"
    assert (answer["log_removed"], answer["topics_left_out"]) == (False, False)


async def test_causes_are_told_by_their_topics_where_these_are_named(node: Node) -> None:
    await topic(node, "orders", "points")
    await send(node, "orders", "order")
    for number, (ids, topics) in enumerate(
        (
            ("order", ""),  # it may be of any topic
            ("order", "bills"),
            ("a,order,b", "orders"),
            ("a,order", "bills,orders"),
            ("order,order", "bills,orders"),
            ("order,a", "bills,orders"),
            ("order,a,b", "bills,orders"),  # as many topics as nobody means: only the ids are taken
            ("a,order", "orders,"),
            ("reorder,order2", "orders"),
        )
    ):
        await send(node, "points", str(number), ids, topics)
    found = {each["message_id"]: each["names_topic"] for each in await search(node)}
    assert found == {"0": False, "2": True, "3": True, "4": True, "6": False, "7": False}


async def test_pages_go_on_where_the_last_one_ended_even_within_an_entry(node: Node) -> None:
    await topic(node, "orders", "points")
    await send(node, "orders", "order")
    messages = [{"body": "x", "message_id": f"m{n}", "properties": named("order", "orders")} for n in range(5)]
    assert (await node.call("POST", "/v1/topics/points/messages", {"messages": messages})).status == 200
    await send(node, "points", "last", "order", "orders")
    assert ids_of(await search(node, limit=2)) == ["m0", "m1", "m2", "m3", "m4", "last"]
    first = await page(node, limit=2)
    assert ids_of(first["messages"]) == ["m0", "m1"]
    assert first["left_bytes"] > 0
    for wrong in ("x", "1", "1-2-3", "-1-0", "9" * 19 + "-0"):
        answer = await node.call("GET", f"/v1/messages/order/caused?topic=orders&after={wrong}")
        assert (answer.status, answer.body["code"]) == (400, "invalid_request"), wrong


async def test_compressed_blocks_and_implicit_ids_are_looked_into(node: Node) -> None:
    await topic(node, "orders", "points")
    await send(node, "orders", "order")
    properties = named("order", "orders")
    block = pack([[b"a"], [b"b", None, [], properties], [b"c", None, [], properties, None, "own"]])
    frame = zstandard.ZstdCompressor().compress(block)
    batch = {"queue": 0, "batch_id": "batch", "crc32c": crc32c(frame), "block": frame, "encoding": "zstd"}
    request = {"batches": [{**batch, "uncompressed_bytes": len(block)}]}
    headers = {"Content-Type": "application/msgpack"}
    async with node.session.post("/v1/topics/points/messages", data=pack(request), headers=headers) as response:
        assert response.status == 200, await response.read()
    assert [(each["message_id"], each["offset"]) for each in await search(node)] == [("batch-1", 1), ("own", 2)]


async def test_messages_of_transactions_and_delayed_ones_are_told_with_their_state(node: Node) -> None:
    await topic(node, "orders", "points")
    await send(node, "orders", "order")
    for transaction_id in ("kept", "dropped", "open"):
        half = {
            "transaction_id": transaction_id,
            "producer_group": "shop",
            "messages": [{"topic": "points", "body": "x", "properties": named("order", "orders")}],
        }
        assert (await node.call("POST", "/v1/transactions", half)).status == 201
    assert (await node.call("POST", "/v1/transactions/kept/commit", {})).status == 200
    assert (await node.call("POST", "/v1/transactions/dropped/rollback", {})).status == 200
    await send(node, "points", "late", "order", "orders", delay_ms=60_000)
    await send(node, "points", "never", "order", "orders", delay_ms=60_000)
    assert (await node.call("DELETE", "/v1/topics/points/scheduled/never")).status == 204
    found = await search(node)
    assert {each["message_id"]: each["state"] for each in found} == {
        "kept-0": "visible",
        "dropped-0": "rolled_back",
        "open-0": "prepared",
        "late": "scheduled",
        "never": "taken_back",
    }
    assert [(each.get("transaction_id"), each["producer_group"]) for each in found][:1] == [("kept", "shop")]
    late = next(each for each in found if each["message_id"] == "late")
    assert ("offset" in late, late["deliver_at_ms"]) == (False, node.clock.now_ms - 1 + 60_000)


async def test_a_message_is_told_once_however_often_it_was_sent(node: Node) -> None:
    """A repetition is in the log as well, and so is what its topic lost."""
    await topic(node, "orders", "points", "gone")
    await send(node, "orders", "order")
    for _ in range(3):
        await send(node, "points", "point", "order", "orders", queue=0)
    await send(node, "gone", "lost", "order", "orders")
    await node.call("DELETE", "/v1/topics/gone")
    assert [(each["message_id"], each["state"]) for each in await search(node)] == [
        ("point", "visible"),
        ("lost", "removed"),
    ]
    both = [{"body": "x", "message_id": each, "properties": named("order", "orders")} for each in ("point", "more")]
    assert (await node.call("POST", "/v1/topics/points/messages", {"messages": both})).status == 200
    assert ids_of(await search(node)) == ["point", "lost", "more"], "of a batch, what is new"
    state = node.core.state
    state._applied.first_outcome = state.applied_index + 1
    state._outcomes.remove(1, state.applied_index + 1)
    assert ids_of(await search(node)) == ["point", "more"], "as after a snapshot: what is still there"


async def test_what_a_message_caused_when_it_was_given_again_is_found(node: Node) -> None:
    await topic(node, "orders", "points")
    await send(node, "orders", "order")
    await send(node, "points", "first", "order", "orders", properties={**named("order", "orders"), PRODUCER_GROUP: "g"})
    given = {"messages": [{"topic": "orders", "queue": 0, "offset": 0, "delay_ms": 0}]}
    assert (await node.call("POST", "/v1/groups/g/retries", given)).status == 200
    await send(node, "points", "second", "order", "orders")
    found = await search(node)
    assert ids_of(found) == ["first", "second"], "the redelivery itself is the same message"
    assert [each["producer_group"] for each in found] == ["g", None]


async def test_what_is_not_there_is_not_found(node: Node) -> None:
    await topic(node, "orders")
    for path, status, code in (
        ("/v1/messages/order/caused?topic=orders", 404, "message_not_found"),
        ("/v1/messages/order/caused?topic=none", 404, "topic_not_found"),
        ("/v1/messages/order/caused?topic=a%20b", 400, "invalid_topic"),
        ("/v1/messages/a%20b/caused?topic=orders", 400, "invalid_request"),
        ("/v1/messages/order/caused", 400, "invalid_request"),
        ("/v1/messages/order/caused?topic=orders&limit=0", 400, "invalid_request"),
    ):
        answer = await node.call("GET", path)
        assert (answer.status, answer.body["code"]) == (status, code), path


async def test_topics_that_the_caller_may_not_read_are_left_out_as_if_they_held_nothing(tmp_path: Path) -> None:
    token_file = tmp_path / "admin-token"
    token_file.touch(mode=0o600)
    token_file.write_text("administrator-of-the-tests-0123456789abcdef")
    fatal: list[str] = []
    async with running_node(node_config(tmp_path, auth="enforce", admin_token_file=str(token_file)), fatal) as node:

        def show(token: str) -> None:
            node.session.headers["Authorization"] = f"Bearer {token}"

        show("administrator-of-the-tests-0123456789abcdef")
        await topic(node, "orders", "points", "secrets")
        await send(node, "orders", "order")
        for to, message_id in (("secrets", "s0"), ("points", "p0"), ("secrets", "s1")):
            await send(node, to, message_id, "order", "orders")
        rules = [{"actions": ["read"], "resource": f"topic:{name}"} for name in ("orders", "points")]
        await node.call("PUT", "/v1/users/shop", {"rules": rules})
        show((await node.call("POST", "/v1/users/shop/tokens", {})).body["token"])
        answer = await page(node)
        assert (ids_of(answer["messages"]), answer["topics_left_out"], answer["next"]) == (["p0"], True, None)
        full = await page(node, limit=1)
        assert (ids_of(full["messages"]), full["next"]) == (["p0"], None), "no page ends at what is left out"
        for of in ("secrets", "none"):
            for after in ("", "&after=1-0"):
                answer = await node.call("GET", f"/v1/messages/order/caused?topic={of}{after}")
                assert (answer.status, answer.body["code"]) == (403, "forbidden"), "whether there is one, or not"
    assert not fatal


async def test_it_goes_on_where_the_log_begins(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries may be removed before and while they are read; the answer tells that some were not looked through."""
    await topic(node, "orders", "points")
    await send(node, "orders", "order")
    await send(node, "points", "point", "order", "orders")
    applied_index, records, firsts = node.core.raft.applied_index, LogReads.records, [7]

    async def removed(reads: LogReads, first: int, last: int, max_bytes: int) -> tuple[bytes, int]:
        if firsts:
            monkeypatch.setattr(type(node.core.log), "first_index", applied_index)
            raise LogTruncated(f"index {first}", firsts.pop())
        return await records(reads, first, last, max_bytes)

    monkeypatch.setattr(LogReads, "records", removed)
    answer = await page(node, after="1-0")
    assert (answer["log_removed"], ids_of(answer["messages"]), answer["next"]) == (True, ["point"], None)


async def test_a_page_is_bounded_and_many_at_once_take_turns(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    await topic(node, "orders", "points")
    await send(node, "orders", "order")
    for number in range(3):
        await send(node, "points", f"p{number}", "order", "orders", body="x" * 2000)
    monkeypatch.setattr(caused_search, "READ_STEP_BYTES", 1)
    monkeypatch.setattr(caused_search, "READ_BYTES_MAX", 1)
    first = await page(node)
    assert (first["looked_bytes"] > 0, first["next"]) == (True, f"{first['from_index'] + 1}-0")
    assert ids_of(await search(node)) == ["p0", "p1", "p2"]
    assert [ids_of(each) for each in await asyncio.gather(*(search(node) for _ in range(12)))] == [
        ["p0", "p1", "p2"]
    ] * 12
    assert node.core.log_page_turns.taken_max == PAGE_TURN_BYTES, "no address has more than its turns"
    assert PAGE_TURN_BYTES // SEARCH_TURN_BYTES == 4


async def test_a_page_whose_time_is_over_ends_and_the_next_one_goes_on(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    await topic(node, "orders", "points")
    await send(node, "orders", "order")
    messages = [{"body": "x", "message_id": f"m{n}", "properties": named("order", "orders")} for n in range(3)]
    assert (await node.call("POST", "/v1/topics/points/messages", {"messages": messages})).status == 200
    await send(node, "points", "last", "order", "orders")
    whole = (await page(node))["looked_bytes"]
    monkeypatch.setattr("cluster.budgets.pace.SEARCH_S_MAX", 0.0)
    first = await page(node)
    assert (first["messages"], first["next"]) == ([], f"{first['from_index'] + 1}-0"), (
        "an entry with the id is the last"
    )
    second = await page(node, after=first["next"])
    assert (ids_of(second["messages"]), second["next"]) == (["m0"], f"{first['from_index'] + 1}-1")
    assert ids_of(await search(node)) == ["m0", "m1", "m2", "last"]
    third = await page(node, after=f"{first['from_index'] + 2}-0")
    assert (ids_of(third["messages"]), third["next"]) == (["last"], None)
    assert first["looked_bytes"] + second["looked_bytes"] + third["looked_bytes"] < whole


async def test_a_page_without_its_share_of_the_disk_ends_with_what_it_has(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    await topic(node, "orders", "points")
    await send(node, "orders", "order")
    await send(node, "points", "p0", "order", "orders")
    records, calls = LogReads.records, list[int]()

    async def crowded(reads: LogReads, first: int, last: int, max_bytes: int) -> tuple[bytes, int]:
        calls.append(first)
        if len(calls) == 2:
            raise Problem("overloaded", "too many old messages are being read")
        return await records(reads, first, first, max_bytes)

    monkeypatch.setattr(LogReads, "records", crowded)
    first = await page(node)
    assert (first["messages"], first["next"]) == ([], f"{first['from_index'] + 1}-0")


async def test_the_loop_rests_while_long_entries_are_looked_through(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    await topic(node, "orders", "points")
    await send(node, "orders", "order")
    messages = [{"body": "x" * 100, "message_id": f"m{n}", "properties": named("order", "orders")} for n in range(300)]
    assert (await node.call("POST", "/v1/topics/points/messages", {"messages": messages})).status == 200
    monkeypatch.setattr(Pace, "is_tired", property(lambda _: True))
    search = CausedSearch(node.core, "orders", "order", 1000, lambda _: True)
    assert await search.look(Place(1, 0), node.core.raft.applied_index) is None
    assert len(search.found) == 300
    assert search._pace.rests >= 300


async def test_a_block_that_was_damaged_before_it_was_stored_is_passed_over(node: Node) -> None:
    await topic(node, "orders", "points")
    await send(node, "orders", "order")
    block = b"causation_id: order"
    header = BatchHeader("points", 0, 1, "damaged", None, crc32c(block) ^ 1, len(block))
    (outcome,) = await node.core.propose_all([Proposal(Produce((header,)), (block,))])
    assert not isinstance(outcome, Exception)
    await send(node, "points", "point", "order", "orders")
    assert ids_of(await search(node)) == ["point"]
    assert list(node.core.reads.damages.batches.values()) == ["damaged"], "the node raises its alarm"


async def test_it_looks_through_segments_that_are_not_in_memory(tmp_path: Path) -> None:
    """A node that was started again knows the places of old records by the sidecars, which it reads first."""
    fatal: list[str] = []
    config = node_config(tmp_path)
    async with running_node(config, fatal) as node:
        await topic(node, "orders", "points")
        await send(node, "orders", "order")
        for number in range(4):
            await send(node, "points", f"p{number}", "order", "orders", body="x" * 900_000)
    async with running_node(config, fatal) as node:
        assert ids_of(await search(node)) == ["p0", "p1", "p2", "p3"]
        first = await page(node, limit=1)
        assert 2_000_000 < first["left_bytes"] < 4_000_000
    assert not fatal
