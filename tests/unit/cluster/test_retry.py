"""Messages are given back, become dead letters and are replayed, over HTTP on a real node whose clock the test
moves.
"""

from typing import Any

import msgspec
import pytest
from crc32c import crc32c

from cluster.limits import GIVE_BACK_MESSAGES_MAX, RETRY_DELAYS_MAX, RETRY_MAX_ATTEMPTS_MAX
from store.commands.retention import ReleaseMessages
from store.limits import REPLAYED_KEPT_MS
from tests.unit.cluster.conftest import START_MS, Node

RETRIES, DEAD = "/v1/groups/g/retries", "/v1/groups/g/dead-letters"
MSGPACK = "application/msgpack"


@pytest.fixture(autouse=True)
async def five_messages(node: Node) -> None:
    await node.call("PUT", "/v1/topics/orders", {"queues": 1})
    messages = [{"body": f"order {number}", "message_id": f"o-{number}", "tag": "A"} for number in range(5)]
    await node.call("POST", "/v1/topics/orders/messages", {"messages": messages})


def given(*offsets: int, topic: str = "orders", **fields: Any) -> Any:
    return {"messages": [{"topic": topic, "queue": 0, "offset": offset, **fields} for offset in offsets]}


def queue(topic: str) -> str:
    return f"/v1/topics/{topic.replace('%', '%25')}/queues/0/messages"


async def pull_blocks(node: Node, path: str) -> Any:
    async with node.session.get(path, headers={"Accept": MSGPACK}) as response:
        assert response.status == 200, await response.text()
        return msgspec.msgpack.decode(await response.read())


async def messages(node: Node, topic: str) -> list[Any]:
    answer = await node.call("GET", f"{queue(topic)}?offset=0")
    found: list[Any] = answer.body["messages"] if answer.status == 200 else []
    return found


async def test_a_message_comes_again_when_its_time_has_come(node: Node) -> None:
    answer = await node.call("POST", RETRIES, given(3, 1, reason="no money"))
    assert answer.status == 200
    first, second = answer.body["results"]
    assert first["due_at_ms"] == second["due_at_ms"] == START_MS + 10_000
    assert (first["offset"], first["attempt"], first["outcome"]) == (3, 1, "scheduled")
    again = await node.call("POST", RETRIES, given(3))
    assert again.body["results"] == [{**first, "outcome": "already_given_back"}]
    assert await messages(node, "%RETRY%g") == []
    node.clock.now_ms += 10_000

    async def both() -> Any:
        found = await messages(node, "%RETRY%g")
        return found if len(found) == 2 else None

    one, other = await node.wait(both)
    assert (one["body"], one["message_id"], one["offset"], one["attempt"]) == ("order 3", "o-3", 0, 1)
    assert one["origin"] == {"topic": "orders", "queue": 0, "offset": 3}
    assert (other["body"], other["offset"], "history" in other) == ("order 1", 1, False)


async def test_a_pull_of_blocks_holds_the_message_alone(node: Node) -> None:
    await node.call("POST", RETRIES, given(2, 4, 0, delay_ms=0))
    for path in (f"{queue('%RETRY%g')}?offset=0", f"{queue('%RETRY%g')}?offset=0&tags=A"):
        pulled = await pull_blocks(node, path)
        assert [batch["base_offset"] for batch in pulled["batches"]] == [0, 1, 2]
        for batch, number in zip(pulled["batches"], (2, 4, 0), strict=True):
            assert (batch["only"], batch["count"], batch["skip"], batch["attempt"]) == (number, 1, [], 1)
            assert batch["crc32c"] == crc32c(batch["block"])
            (message,) = msgspec.msgpack.decode(batch["block"])
            assert (message[0], message[5]) == (f"order {number}".encode(), f"o-{number}")
    assert (await pull_blocks(node, f"{queue('%RETRY%g')}?offset=0&max_bytes=1"))["next_offset"] == 1
    assert (await pull_blocks(node, f"{queue('%RETRY%g')}?offset=0&tags=B"))["batches"] == []


async def test_dead_letters_have_a_history_and_are_replayed_once(node: Node) -> None:
    settings = await node.call("PUT", "/v1/groups/g", {"retry_max_attempts": 1, "retry_delays_ms": [0]})
    assert (settings.status, settings.body["retry_delays_ms"]) == (201, [0])
    assert (await node.call("GET", DEAD)).body == {"messages": [], "next_offset": 0, "max_offset": 0}
    await node.call("POST", RETRIES, given(2, reason="first"))
    answer = await node.call("POST", RETRIES, given(0, topic="%RETRY%g", reason="second"))
    (result,) = answer.body["results"]
    assert (result["outcome"], result["attempt"], "due_at_ms" in result) == ("dead_lettered", 2, False)
    (dead,) = (await node.call("GET", DEAD)).body["messages"]
    assert (dead["message_id"], dead["attempt"], dead["offset"]) == ("o-2", 2, 0)
    assert [(each["attempt"], each["reason"]) for each in dead["history"]] == [(1, "first"), (2, "second")]
    assert await messages(node, "%DLQ%g") == [dead]
    replays = [await node.call("POST", f"{DEAD}/replay", {"offsets": [0]}) for _ in range(2)]
    assert [each.body["results"][0]["duplicate"] for each in replays] == [False, True]
    (dead,) = (await node.call("GET", DEAD)).body["messages"]
    assert dead["replayed_at_ms"] == START_MS
    again = await messages(node, "%RETRY%g")
    assert [(each["message_id"], each["attempt"]) for each in again] == [("o-2", 1), ("o-2", 0)]


async def test_a_listing_of_dead_letters_ends_where_all_of_them_are_gone(node: Node) -> None:
    """A caller goes on at `next_offset` until that is `max_offset`."""
    await node.call("PUT", "/v1/groups/g", {"retry_max_attempts": 0})
    await node.call("POST", RETRIES, given(0, 1))
    await node.call("POST", f"{DEAD}/replay", {"offsets": [0, 1]})
    node.clock.now_ms += REPLAYED_KEPT_MS
    await node.core.propose(ReleaseMessages(("%DLQ%g",), 10))
    assert node.core.state.min_offset("%DLQ%g", 0) == 2
    for offset in range(3):
        page = (await node.call("GET", f"{DEAD}?offset={offset}")).body
        assert page == {"messages": [], "next_offset": 2, "max_offset": 2}


async def test_a_group_shows_its_settings(node: Node) -> None:
    assert (await node.call("PUT", "/v1/groups/g", {})).status == 201
    shown = (await node.call("GET", "/v1/groups/g")).body
    assert (shown["retry_max_attempts"], shown["retry_delays_ms"][:2], len(shown["retry_delays_ms"])) == (
        16,
        [10_000, 30_000],
        16,
    )
    assert (await node.call("PUT", "/v1/groups/g", {"retry_max_attempts": 3})).status == 200
    assert (await node.call("GET", "/v1/groups/g")).body["retry_max_attempts"] == 3


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("POST", RETRIES, {"messages": []}, 400, "invalid_request"),
        ("POST", RETRIES, given(*range(GIVE_BACK_MESSAGES_MAX + 1)), 400, "invalid_request"),
        ("POST", RETRIES, given(0, reason="x" * 256), 400, "invalid_request"),
        ("POST", RETRIES, given(0, reason="ü" * 128), 400, "invalid_request"),
        ("POST", RETRIES, given(0, delay_ms=-1), 400, "invalid_request"),
        ("POST", RETRIES, {**given(0), "member_id": "m"}, 400, "invalid_request"),
        ("POST", RETRIES, given(5), 416, "offset_out_of_range"),
        ("POST", RETRIES, given(0, topic="none"), 404, "topic_not_found"),
        ("POST", RETRIES, {**given(0), "member_id": "m", "generation": 1}, 404, "group_not_found"),
        ("PUT", "/v1/groups/g", {"retry_max_attempts": RETRY_MAX_ATTEMPTS_MAX + 1}, 400, "invalid_request"),
        ("PUT", "/v1/groups/g", {"retry_delays_ms": [0] * (RETRY_DELAYS_MAX + 1)}, 400, "invalid_request"),
        ("GET", DEAD, None, 404, "group_not_found"),
        ("POST", f"{DEAD}/replay", {"offsets": [0]}, 404, "group_not_found"),
        ("PUT", "/v1/topics/%25RETRY%25g", {}, 403, "system_topic"),
    ],
)
async def test_what_is_refused_changes_nothing(
    node: Node, method: str, path: str, body: Any, status: int, code: str
) -> None:
    answer = await node.call(method, path, body)
    assert (answer.status, answer.body["code"]) == (status, code)
    assert (await node.call("GET", "/v1/groups")).body == {"groups": [], "next": None}


async def test_a_group_with_the_longest_name_can_read_its_retries(node: Node) -> None:
    name = "g" * 255
    await node.call("POST", f"/v1/groups/{name}/retries", given(0, delay_ms=0))
    assert len(await messages(node, f"%RETRY%{name}")) == 1
