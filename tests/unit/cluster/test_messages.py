"""Messages are found by id, key and time, and traced, over HTTP."""

from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from crc32c import crc32c

from cluster.budgets.pace import Pace
from cluster.limits import KEYS_MAX, MESSAGES_OF_ID_MAX, REQUEST_KEYS_MAX
from store.limits import DEDUPE_WINDOW_MS
from tests.unit.cluster.conftest import START_MS, Answer, Node

MESSAGES = "/v1/topics/orders/messages"
pack = msgspec.msgpack.encode


async def topic(node: Node, name: str = "orders", queues: int = 2) -> None:
    assert (await node.call("PUT", f"/v1/topics/{name}", {"queues": queues})).status == 201


async def send(node: Node, body: str, *, to: str = "orders", **fields: Any) -> Any:
    """Send one message and return its result. The clock moves on by a millisecond after it."""
    answer = await node.call("POST", f"/v1/topics/{to}/messages", {"messages": [{"body": body, **fields}]})
    assert answer.status == 200, answer
    node.clock.now_ms += 1
    return answer.body["results"][0]


async def send_block(node: Node, messages: list[list[Any]], batch_id: str, status: int = 200) -> Answer:
    block = pack(messages)
    request = {"batches": [{"queue": 0, "batch_id": batch_id, "crc32c": crc32c(block), "block": block}]}
    headers = {"Content-Type": "application/msgpack"}
    async with node.session.post(MESSAGES, data=pack(request), headers=headers) as response:
        body = await response.read()
        decoded = msgspec.msgpack.decode(body) if status == 200 else msgspec.json.decode(body)
        assert response.status == status, decoded
        return Answer(response.status, decoded, response.headers)


async def get(node: Node, path: str, status: int = 200) -> Any:
    answer = await node.call("GET", path)
    assert answer.status == status, answer
    return answer.body


async def by_id(node: Node, message_id: str, more: str = "") -> list[Any]:
    found: list[Any] = (await get(node, f"/v1/messages/{message_id}{more}"))["messages"]
    return found


async def trace(node: Node, message_id: str) -> list[Any]:
    """Return the events of the only message with this id."""
    (only,) = (await get(node, f"/v1/messages/{message_id}/trace"))["traces"]
    events: list[Any] = only["events"]
    return events


async def bodies(node: Node, query: str, name: str = "orders") -> list[str]:
    return [each["body"] for each in (await get(node, f"/v1/topics/{name}/messages?{query}"))["messages"]]


def names(events: list[Any]) -> list[str]:
    return [event["event"] for event in events]


async def test_a_message_is_found_by_either_form_of_its_id(node: Node) -> None:
    await topic(node)
    first = await send(node, "one", queue=1)
    named = await send(node, "two", queue=1, message_id="order-1")
    (found,) = await by_id(node, first["message_id"])
    assert {name: found[name] for name in ("body", "topic", "queue", "offset", "state", "stored_at_ms")} == {
        "body": "one",
        "topic": "orders",
        "queue": 1,
        "offset": 0,
        "state": "visible",
        "stored_at_ms": START_MS,
    }
    assert f"{found['batch_id']}-0" == first["message_id"]
    (found,) = await by_id(node, "order-1")
    assert (found["body"], found["offset"]) == ("two", named["offset"])
    # The message has an id of its own: what would be its implicit one is nobody's.
    assert (await get(node, f"/v1/messages/{found['batch_id']}-0", 404))["code"] == "message_not_found"
    assert (await get(node, f"/v1/messages/{first['message_id']}0", 404))["code"] == "message_not_found"


async def test_every_message_of_a_batch_is_found(node: Node) -> None:
    await topic(node)
    await send_block(node, [[b"a"], [b"b", None, [], {}, None, "own"], [b"c"]], "batch")
    assert [(await by_id(node, each))[0]["body"] for each in ("batch-0", "own", "batch-2")] == ["a", "b", "c"]
    for nobody in ("batch-1", "batch-3", "batch-00", "batch", "batch-"):
        await get(node, f"/v1/messages/{nobody}", 404)


async def test_an_id_is_found_after_the_dedupe_window_and_every_time_it_was_used(node: Node) -> None:
    await topic(node)
    await topic(node, "other")
    await send(node, "one", message_id="m")
    node.clock.now_ms += DEDUPE_WINDOW_MS
    for _ in range(3):  # each entry forgets a little
        await send(node, "x")
    assert [each["body"] for each in await by_id(node, "m")] == ["one"]
    await send(node, "elsewhere", to="other", message_id="m")
    found = await by_id(node, "m")
    assert sorted((each["topic"], each["body"]) for each in found) == [("orders", "one"), ("other", "elsewhere")]
    assert [each["body"] for each in await by_id(node, "m", "?topic=other")] == ["elsewhere"]
    assert (await get(node, "/v1/messages/m?topic=none", 404))["code"] == "topic_not_found"
    await node.call("DELETE", "/v1/topics/other")
    assert [each["body"] for each in await by_id(node, "m")] == ["one"]


async def test_an_id_of_many_topics_is_shown_up_to_the_limit(node: Node) -> None:
    for number in range(MESSAGES_OF_ID_MAX + 1):
        await topic(node, f"t{number}")
        await send(node, "x", to=f"t{number}", message_id="m")
    assert len(await by_id(node, "m")) == MESSAGES_OF_ID_MAX
    assert len((await get(node, "/v1/messages/m/trace"))["traces"]) == MESSAGES_OF_ID_MAX


async def test_a_message_is_found_before_it_is_visible_and_after_it_was_dropped(node: Node) -> None:
    await topic(node)
    await send(node, "later", message_id="late", delay_ms=1_000)
    half = {"transaction_id": "t", "producer_group": "g", "messages": [{"topic": "orders", "body": "half"}]}
    assert (await node.call("POST", "/v1/transactions", half)).status == 201
    (late,) = await by_id(node, "late")
    assert (late["state"], late["deliver_at_ms"], late["body"]) == ("scheduled", START_MS + 1_000, "later")
    assert "offset" not in late
    (found,) = await by_id(node, "t-0")
    assert (found["state"], found["transaction_id"], found["body"]) == ("prepared", "t", "half")
    await node.call("POST", "/v1/transactions/t/rollback")
    (found,) = await by_id(node, "t-0")
    assert found["state"] == "rolled_back"
    assert names(await trace(node, "t-0")) == ["prepared", "rolled_back"]
    assert (await node.call("DELETE", "/v1/topics/orders/scheduled/late")).status == 204
    await get(node, "/v1/messages/late", 404)  # nothing is left of it but what happened
    assert names(await trace(node, "late")) == ["scheduled", "taken_back"]


async def test_messages_are_found_by_key_in_time_order(node: Node) -> None:
    await topic(node)
    await send(node, "one", keys=["a", "b"], queue=1)
    await send(node, "two", keys=["b"], queue=0)
    await send(node, "three", keys=["b", "b"], queue=1)
    await send(node, "four", queue=0)
    assert await bodies(node, "key=a") == ["one"]
    assert await bodies(node, "key=b") == ["one", "two", "three"]
    assert await bodies(node, "key=c") == []
    assert await bodies(node, f"key=b&from_ms={START_MS + 1}") == ["two", "three"]
    assert await bodies(node, f"key=b&to_ms={START_MS + 2}") == ["one", "two"]
    first = await get(node, f"{MESSAGES}?key=b&limit=2")
    assert [each["body"] for each in first["messages"]] == ["one", "two"]
    rest = await get(node, f"{MESSAGES}?key=b&limit=2&after={first['next']}")
    assert ([each["body"] for each in rest["messages"]], rest["next"]) == (["three"], None)


async def test_keys_of_blocks_transactions_and_delayed_messages_are_found(node: Node) -> None:
    await topic(node)
    await send_block(node, [[b"a", None, ["k", "é"]], [b"b"], [b"c", None, ["k"]]], "batch")
    message = {"topic": "orders", "body": "half", "keys": ["k"]}
    half = {"transaction_id": "t", "producer_group": "g", "messages": [message]}
    assert (await node.call("POST", "/v1/transactions", half)).status == 201
    await send(node, "late", keys=["k"], delay_ms=1_000)
    assert await bodies(node, "key=k") == ["a", "c"]
    assert await bodies(node, "key=" + quote("é")) == ["a"]
    node.clock.now_ms += 1
    assert (await node.call("POST", "/v1/transactions/t/commit")).status == 200
    assert await bodies(node, "key=k") == ["a", "c", "half"]
    node.clock.now_ms += 2_000

    async def fired() -> bool:
        return await bodies(node, "key=k") == ["a", "c", "half", "late"]

    await node.wait(fired)
    (late,) = (await get(node, f"{MESSAGES}?key=k&from_ms={node.clock.now_ms}"))["messages"]
    events = await trace(node, late["message_id"])
    assert names(events) == ["scheduled", "visible"]
    assert (events[0]["due_at_ms"], events[1]["offset"]) == (events[0]["at_ms"] + 1_000, late["offset"])


async def test_what_is_known_already_is_not_indexed_again(node: Node) -> None:
    await topic(node)
    await send_block(node, [[b"a", None, ["k"], {}, None, "x"]], "b1")
    answer = await send_block(node, [[b"a", None, ["k"], {}, None, "x"], [b"b", None, ["k"], {}, None, "y"]], "b2")
    assert [each["duplicate"] for each in answer.body["results"][0]["messages"]] == [True, False]
    assert await bodies(node, "key=k") == ["a", "b"]
    assert [each["offset"] for each in await by_id(node, "x") + await by_id(node, "y")] == [0, 1]


async def test_a_deleted_topic_leaves_nothing_to_be_found(node: Node) -> None:
    await topic(node)
    await send(node, "one", keys=["k"], message_id="m")
    await node.call("DELETE", "/v1/topics/orders")
    await get(node, "/v1/messages/m", 404)
    assert (await get(node, f"{MESSAGES}?key=k", 404))["code"] == "topic_not_found"
    await topic(node)
    assert await bodies(node, "key=k") == []


async def test_messages_are_listed_by_time_over_all_queues(node: Node) -> None:
    await topic(node, queues=3)
    sent = [await send(node, str(number), queue=number % 3) for number in range(9)]
    together = {"messages": [{"body": "p", "queue": 2}, {"body": "q", "queue": 0}, {"body": "r", "queue": 2}]}
    await node.call("POST", MESSAGES, together)
    everything = [*map(str, range(9)), "q", "p", "r"]
    assert await bodies(node, "") == everything
    assert await bodies(node, f"from_ms={START_MS + 3}&to_ms={START_MS + 6}") == ["3", "4", "5"]
    assert await bodies(node, f"from_ms={START_MS + 100}") == []
    listed: list[str] = []
    after = ""
    while True:
        page = await get(node, f"{MESSAGES}?limit=5{after}")
        listed += [each["body"] for each in page["messages"]]
        if page["next"] is None:
            break
        after = f"&after={page['next']}"
    assert listed == everything
    assert len(sent) == 9


@pytest.mark.parametrize("query", ["after=x", "after=1-1-1-1", "after=1-1024-0", "key=", "limit=0", "from_ms=-1"])
async def test_odd_queries_are_refused(node: Node, query: str) -> None:
    await topic(node)
    assert (await get(node, f"{MESSAGES}?{query}", 400))["code"] == "invalid_request"


async def test_a_request_has_at_most_so_many_keys(node: Node) -> None:
    await topic(node)
    keys = [f"k{number}" for number in range(KEYS_MAX)]
    full, rest = divmod(REQUEST_KEYS_MAX, KEYS_MAX)
    messages: list[list[Any]] = [[b"x", None, keys] for _ in range(full)] + [[b"x", None, keys[:rest]]]
    answer = await send_block(node, [*messages, [b"x", None, ["one"]]], "b1", status=413)
    assert answer.body["code"] == "batch_too_large"
    answer = await send_block(node, [*messages, [b"x", None, [], {}, None, "m1"]], "b1", status=413)
    assert answer.body["code"] == "batch_too_large", "an explicit id counts as a key"
    await send_block(node, messages, "b1")


async def test_the_trace_tells_who_consumed_a_message_and_when(node: Node) -> None:
    await topic(node, queues=1)
    for number in range(4):
        await send(node, str(number), message_id=f"m{number}")
    joined = await node.call("POST", "/v1/groups/g/members", {"topics": ["orders"], "client_id": "ann"})
    member = {"member_id": joined.body["member_id"], "generation": joined.body["generation"]}
    for offset in (1, 3):
        node.clock.now_ms += 10
        commit = {**member, "offsets": [{"topic": "orders", "queue": 0, "offset": offset}]}
        assert (await node.call("PUT", "/v1/groups/g/offsets", commit)).status == 200
    produced, consumed = await trace(node, "m1")
    assert (produced["event"], produced["topic"], produced["queue"], produced["offset"]) == ("produced", "orders", 0, 1)
    assert (produced["at_ms"], produced["term"]) == (START_MS + 1, 1)
    assert {name: consumed.get(name) for name in ("event", "group", "member_id", "client_id", "committed_offset")} == {
        "event": "consumed",
        "group": "g",
        "member_id": member["member_id"],
        "client_id": "ann",
        "committed_offset": 3,
    }
    assert consumed["at_ms"] == node.clock.now_ms
    assert "first_commit" not in consumed
    assert (await trace(node, "m0"))[1]["first_commit"] is True
    assert names(await trace(node, "m3")) == ["produced"]


async def test_the_trace_tells_of_resets(node: Node) -> None:
    await topic(node, queues=1)
    await send(node, "one", message_id="m")

    async def commit(offset: int) -> None:
        node.clock.now_ms += 1
        offsets = {"offsets": [{"topic": "orders", "queue": 0, "offset": offset}]}
        assert (await node.call("PUT", "/v1/groups/g/offsets", offsets)).status == 200

    async def reset(to: str) -> None:
        node.clock.now_ms += 1
        assert (await node.call("POST", "/v1/groups/g/reset", {"topic": "orders", "to": to})).status == 200

    await commit(1)
    await reset("earliest")
    await commit(1)
    await reset("earliest")
    await reset("latest")
    assert names(await trace(node, "m")) == ["produced", "consumed", "rewound", "consumed", "rewound", "skipped"]


async def test_the_trace_follows_a_message_that_was_given_back(node: Node) -> None:
    await topic(node, queues=1)
    await send(node, "one", message_id="m")
    await send(node, "two", message_id="n")
    assert (await node.call("PUT", "/v1/groups/g", {"retry_max_attempts": 1, "retry_delays_ms": [0]})).status == 201

    async def give_back(name: str, reason: str) -> str:
        node.clock.now_ms += 1
        given = {"messages": [{"topic": name, "queue": 0, "offset": 0, "reason": reason}]}
        answer = await node.call("POST", "/v1/groups/g/retries", given)
        assert answer.status == 200, answer
        node.clock.now_ms += 1
        done = {"offsets": [{"topic": name, "queue": 0, "offset": 1}]}
        assert (await node.call("PUT", "/v1/groups/g/offsets", done)).status == 200
        outcome: str = answer.body["results"][0]["outcome"]
        return outcome

    assert await give_back("orders", "no stock") == "scheduled"
    assert await give_back("%RETRY%g", "still none") == "dead_lettered"
    node.clock.now_ms += 1
    assert (await node.call("POST", "/v1/groups/g/dead-letters/replay", {"offsets": [0]})).status == 200
    events = await trace(node, "m")
    assert [(event["event"], event.get("attempt"), event.get("reason")) for event in events] == [
        ("produced", None, None),
        ("given_back", 1, "no stock"),
        ("given_again", 1, None),
        ("consumed", None, None),
        ("given_back", 2, "still none"),
        ("dead_lettered", 2, None),
        ("consumed", None, None),
        ("replayed", 0, None),
        ("given_again", 0, None),
    ]
    assert [event["topic"] for event in events if event["event"] == "consumed"] == ["orders", "%RETRY%g"]
    assert names(await trace(node, "n")) == ["produced"]
    node.clock.now_ms += 1
    assert (await node.call("PUT", "/v1/groups/g", {"retry_max_attempts": 9, "retry_delays_ms": [5_000]})).status == 200
    given = {"messages": [{"topic": "%RETRY%g", "queue": 0, "offset": 1, "reason": "again"}]}
    assert (await node.call("POST", "/v1/groups/g/retries", given)).status == 200
    waiting = (await trace(node, "m"))[-1]
    assert (waiting["event"], waiting["due_at_ms"]) == ("given_back", node.clock.now_ms + 5_000)
    node.clock.now_ms += 6_000

    async def again() -> bool:
        return names(await trace(node, "m"))[-1] == "given_again"

    await node.wait(again)


async def test_the_trace_of_a_transactional_message_holds_its_timeline(node: Node) -> None:
    await topic(node)
    half = {"transaction_id": "t", "producer_group": "g", "messages": [{"topic": "orders", "body": "x"}]}
    assert (await node.call("POST", "/v1/transactions", {**half, "client_id": "shop-1"})).status == 201
    node.clock.now_ms += 5
    decision = {"source": "operator", "operator": "ann", "reason": "by phone", "force": True}
    assert (await node.call("POST", "/v1/transactions/t/commit", decision)).status == 200
    events = await trace(node, "t-0")
    assert names(events) == ["prepared", "committed", "visible"]
    assert (events[0]["client_id"], events[0]["transaction_id"]) == ("shop-1", "t")
    assert (events[1]["operator"], events[1]["reason"], events[1]["forced"]) == ("ann", "by phone", True)
    assert events[1]["raft_index"] == events[2]["raft_index"] > events[0]["raft_index"]


async def test_offsets_are_cloned_to_a_group_without_members(node: Node) -> None:
    await topic(node)
    await topic(node, "other", 1)
    for name in ("orders", "other"):
        for number in range(3):
            await send(node, str(number), to=name, queue=0)

    async def commit(group: str, name: str, offset: int) -> None:
        offsets = {"offsets": [{"topic": name, "queue": 0, "offset": offset}]}
        assert (await node.call("PUT", f"/v1/groups/{group}/offsets", offsets)).status == 200

    async def committed(group: str) -> dict[str, int]:
        listed = (await get(node, f"/v1/groups/{group}/offsets"))["offsets"]
        return {each["topic"]: each["offset"] for each in listed}

    await commit("a", "orders", 1)
    await commit("a", "other", 2)
    await commit("b", "orders", 3)
    clone = "/v1/groups/b/clone-offsets"
    one = await node.call("POST", clone, {"source": "a", "topic": "orders"})
    assert one.body == {"offsets": [{"topic": "orders", "queue": 0, "offset": 1}], "generation": 1}
    assert await committed("b") == {"orders": 1}
    assert (await node.call("POST", "/v1/groups/new/clone-offsets", {"source": "a"})).status == 200
    assert await committed("new") == {"orders": 1, "other": 2}
    for source, name, code in (
        ("none", "orders", "group_not_found"),
        ("a", "none", "topic_not_found"),
        ("b", "other", "invalid_request"),
        ("b", "orders", "invalid_request"),
        ("a b", "orders", "invalid_group"),
    ):
        body = {"source": source, "topic": name}
        assert (await node.call("POST", clone, body)).body["code"] == code, body
    await node.call("POST", "/v1/groups/b/members", {"topics": ["orders"]})
    refused = await node.call("POST", clone, {"source": "a"})
    assert (refused.status, refused.body["code"]) == (409, "group_has_members")
    assert await committed("b") == {"orders": 1}


async def test_a_page_ends_when_enough_was_read_for_it(node: Node) -> None:
    await topic(node, queues=1)
    names = "abcdefghijklmnopqrst"
    for name in names:  # of 18 the blocks are within 16 MiB
        await send(node, name + "x" * 900_000, keys=["k"])
    for query in ("key=k", ""):
        first = await get(node, f"{MESSAGES}?{query}")
        assert [each["body"][0] for each in first["messages"]] == list(names[:18])
        rest = await get(node, f"{MESSAGES}?{query}&after={first['next']}")
        assert ([each["body"][0] for each in rest["messages"]], rest["next"]) == (list(names[18:]), None)


async def test_each_batch_of_a_send_is_built_and_answered_in_a_step_of_its_own(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    await topic(node, queues=16)
    steps, step = 0, Pace.step

    async def counted(pace: Pace) -> None:
        nonlocal steps
        steps += 1
        await step(pace)

    monkeypatch.setattr(Pace, "step", counted)
    messages = [{"body": "x", "queue": queue} for queue in range(16)]
    answer = await node.call("POST", MESSAGES, {"messages": messages})
    assert [each["queue"] for each in answer.body["results"]] == [*range(16)]
    assert steps >= 3 * 16, "each message, each batch and each result"
