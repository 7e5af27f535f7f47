"""Pulls with tags or a filter on a real node: which messages are delivered or skipped, and how far offsets move."""

import asyncio
from typing import Any
from urllib.parse import urlencode

import msgspec
import pytest
from crc32c import crc32c

from cluster.budgets import pace as pacing
from cluster.messages import pull
from tests.patience import PATIENCE_S
from tests.unit.cluster.conftest import Answer, Node

MSGPACK = "application/msgpack"
PATH = "/v1/topics/t/queues/0/messages"
CHEAP, DEAR = {"price": "1"}, {"price": "9"}
OVER_3 = "price > 3"


@pytest.fixture(autouse=True)
async def topic(node: Node) -> None:
    await node.call("PUT", "/v1/topics/t", {"queues": 1})


_batch_ids = iter(range(1_000_000))


async def send(node: Node, *properties: dict[str, str], tag: str | None = None) -> None:
    """Send one batch with one message per argument."""
    block = msgspec.msgpack.encode([[b"x", tag, [], each] for each in properties])
    batch = {"queue": 0, "batch_id": f"b{next(_batch_ids)}", "crc32c": crc32c(block), "block": block}
    body = msgspec.msgpack.encode({"batches": [batch]})
    async with node.session.post("/v1/topics/t/messages", data=body, headers={"Content-Type": MSGPACK}) as response:
        assert response.status == 200


async def messages(node: Node, offset: int = 0, **query: Any) -> Any:
    answer = await node.call("GET", f"{PATH}?" + urlencode({"offset": offset, **query}))
    assert answer.status == 200, answer
    return answer.body


async def batches(node: Node, offset: int = 0, **query: Any) -> Any:
    headers = {"Accept": MSGPACK}
    async with node.session.get(PATH, params={"offset": str(offset), **query}, headers=headers) as response:
        assert response.status == 200, await response.read()
        return msgspec.msgpack.decode(await response.read())


def offsets(pulled: Any) -> list[int]:
    return [message["offset"] for message in pulled["messages"]]


async def test_json_has_what_the_filter_is_true_for(node: Node) -> None:
    await send(node, CHEAP, DEAR, {}, {"price": "none"}, DEAR, CHEAP)
    pulled = await messages(node, filter=OVER_3)
    assert offsets(pulled) == [1, 4]
    assert (pulled["next_offset"], pulled["max_offset"]) == (6, 6)
    assert offsets(await messages(node, filter=f"NOT ({OVER_3})")) == [0, 5]
    assert offsets(await messages(node, filter="price IS NULL")) == [2]
    assert offsets(await messages(node, offset=2, filter=OVER_3, max_messages=1)) == [4]


async def test_a_page_that_is_full_ends_behind_its_last_message(node: Node) -> None:
    await send(node, CHEAP, DEAR, CHEAP, DEAR, DEAR)
    pulled = await messages(node, filter=OVER_3, max_messages=2)
    assert (offsets(pulled), pulled["next_offset"]) == ([1, 3], 4)
    pulled = await messages(node, filter=OVER_3, max_bytes=1)
    assert (offsets(pulled), pulled["next_offset"]) == ([1], 3)


async def test_batches_say_which_of_their_messages_to_skip(node: Node) -> None:
    await send(node, CHEAP, DEAR, CHEAP)
    await send(node, CHEAP, CHEAP)
    await send(node, DEAR, DEAR)
    await send(node, CHEAP)
    pulled = await batches(node, filter=OVER_3)
    assert [(each["base_offset"], each["count"], each.get("filtered")) for each in pulled["batches"]] == [
        (0, 3, [0, 2]),
        (5, 2, None),
    ]
    assert (pulled["next_offset"], pulled["max_offset"]) == (8, 8)
    # The block comes as it was stored.
    assert all(crc32c(each["block"]) == each["crc32c"] for each in pulled["batches"])


async def test_what_is_before_the_offset_is_no_reason_to_send_a_batch(node: Node) -> None:
    await send(node, DEAR, CHEAP)
    pulled = await batches(node, offset=1, filter=OVER_3)
    assert (pulled["batches"], pulled["next_offset"]) == ([], 2)


async def test_a_page_of_batches_is_full_by_what_matches(node: Node) -> None:
    for _ in range(3):
        await send(node, CHEAP, DEAR)
    pulled = await batches(node, filter=OVER_3, max_messages="2")
    assert ([each["base_offset"] for each in pulled["batches"]], pulled["next_offset"]) == ([0, 2], 4)
    pulled = await batches(node, filter=OVER_3, max_bytes="1")
    assert ([each["base_offset"] for each in pulled["batches"]], pulled["next_offset"]) == ([0], 2)


async def test_messages_that_were_known_already_are_neither_named_nor_counted(node: Node) -> None:
    path = "/v1/topics/t/messages"
    cheap, dear = ({"body": "x", "properties": properties, "queue": 0} for properties in (CHEAP, DEAR))
    await node.call("POST", path, {"messages": [{**dear, "message_id": "m"}]})
    await node.call("POST", path, {"messages": [{**cheap, "message_id": "m"}, cheap, dear]})
    await node.call("POST", path, {"messages": [{**dear, "message_id": "m"}, cheap]})
    pulled = await batches(node, filter=OVER_3)
    (first, second) = pulled["batches"]
    assert (first["skip"], first.get("filtered")) == ([], None)
    assert (second["skip"], second["filtered"], second["count"]) == ([0], [1], 2)
    assert pulled["next_offset"] == 4


async def test_tags_are_for_batches_too(node: Node) -> None:
    for tag in ("A", "B", None, "A"):
        await send(node, {}, tag=tag)
    assert offsets(await messages(node, tags="A || C")) == [0, 3]
    assert [each["base_offset"] for each in (await batches(node, tags="B||A"))["batches"]] == [0, 1, 3]
    assert len((await batches(node, tags="*"))["batches"]) == 4
    assert offsets(await messages(node, filter="TAGS = 'B'")) == [1]


async def refused(node: Node, **query: str) -> Answer:
    answer = await node.call("GET", f"{PATH}?" + urlencode({"offset": 0, **query}))
    assert answer.status == 400
    return answer


async def test_a_bad_filter_is_refused_with_its_column(node: Node) -> None:
    problem = (await refused(node, filter="price > 'x'", wait_ms="30000")).body
    assert (problem["code"], problem["position"]) == ("invalid_filter", 9)
    assert problem["detail"].splitlines()[1:] == ["price > 'x'", "        ^"]
    assert (await refused(node, filter="")).body["position"] == 1
    assert (await refused(node, filter="\ud800".encode(errors="surrogatepass"))).body["code"] == "invalid_filter"  # type: ignore[arg-type]
    assert (await refused(node, filter="a = 1", tags="A")).body["code"] == "invalid_request"
    assert (await refused(node, tags="A ||")).body["code"] == "invalid_request"


@pytest.mark.parametrize("pull_by", [messages, batches])
async def test_a_poll_without_a_match_waits_and_does_not_look_twice(
    node: Node, pull_by: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull, "MOVED_WAIT_S", 600)
    await send(node, CHEAP, CHEAP)
    looked: list[int] = []
    rows = node.core.state.rows

    def counting(topic: str, queue: int, offset: int, max_rows: int, max_bytes: int) -> Any:
        looked.append(offset)
        return rows(topic, queue, offset, max_rows, max_bytes)

    monkeypatch.setattr(node.core.state, "rows", counting)

    async def waits() -> bool:
        return len(node.core.waiters) == 1

    polling = asyncio.create_task(pull_by(node, filter=OVER_3, wait_ms="30000"))
    await node.wait(waits)
    assert looked == [0, 2]
    await send(node, CHEAP)
    await node.wait(waits)
    for _ in range(100):
        await asyncio.sleep(0)
    assert looked == [0, 2, 2, 3]
    await send(node, DEAR)
    async with asyncio.timeout(PATIENCE_S):
        pulled = await polling
    assert looked[4] == 3
    assert pulled["next_offset"] == 4
    assert len(pulled.get("messages", pulled.get("batches"))) == 1


@pytest.mark.parametrize("pull_by", [messages, batches])
async def test_a_poll_tells_soon_how_far_it_moved_on(node: Node, pull_by: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The poll must not answer at once: a busy queue in which nothing matches would be asked for every batch."""
    assert 0.1 < pull.MOVED_WAIT_S < 5

    async def waits() -> bool:
        return len(node.core.waiters) == 1

    monkeypatch.setattr(pull, "MOVED_WAIT_S", 0.3)
    await send(node, CHEAP, CHEAP)
    polling = asyncio.create_task(pull_by(node, filter=OVER_3, wait_ms="30000"))
    await node.wait(waits)
    async with asyncio.timeout(PATIENCE_S):
        assert (await polling)["next_offset"] == 2
    # With nothing to tell it waits; what comes then is told soon.
    polling = asyncio.create_task(pull_by(node, offset=2, filter=OVER_3, wait_ms="30000"))
    await node.wait(waits)
    await send(node, CHEAP)
    async with asyncio.timeout(PATIENCE_S):
        assert (await polling)["next_offset"] == 3


@pytest.mark.parametrize("pull_by", [messages, batches])
async def test_a_poll_whose_time_is_over_has_moved_on(node: Node, pull_by: Any) -> None:
    await send(node, CHEAP, CHEAP)
    pulled = await pull_by(node, filter=OVER_3, wait_ms="20")
    assert (pulled["next_offset"], pulled["max_offset"]) == (2, 2)


@pytest.mark.parametrize("pull_by", [messages, batches])
@pytest.mark.parametrize(("module", "name"), [(pull, "SCAN_BYTES_MAX"), (pacing, "SEARCH_S_MAX")])
async def test_work_for_one_request_is_bounded(
    node: Node, pull_by: Any, module: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request answers without a match and without waiting, and the next one goes on from there."""
    await send(node, CHEAP)
    await send(node, CHEAP)
    await send(node, DEAR)
    monkeypatch.setattr(module, name, 0)
    async with asyncio.timeout(PATIENCE_S):
        pulled = await pull_by(node, filter=OVER_3, wait_ms="30000")
        assert (pulled["next_offset"], pulled["max_offset"]) == (1, 3)
        pulled = await pull_by(node, offset=2, filter=OVER_3, wait_ms="30000")
    assert pulled["next_offset"] == 3


@pytest.mark.parametrize("pull_by", [messages, batches])
async def test_a_long_scan_lets_others_in_between(node: Node, pull_by: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    await send(node, *[CHEAP] * 50)
    await send(node, DEAR)
    rests = 0
    rest = pacing.Pace.rest

    async def counting(pace: pacing.Pace) -> None:
        nonlocal rests
        rests += 1
        await rest(pace)

    monkeypatch.setattr(pacing, "SLICE_S", 0)
    monkeypatch.setattr(pacing.Pace, "rest", counting)
    pulled = await pull_by(node, filter=OVER_3)
    assert pulled["next_offset"] == 51
    assert rests >= 50


async def test_a_group_reads_the_same_with_all_its_members(node: Node) -> None:
    path = "/v1/groups/g/members"
    ours = {"topics": ["t"], "member_id": "m1", "filters": {"t": f" {OVER_3} "}}
    assert (await node.call("POST", path, ours)).status == 201
    shown = (await node.call("GET", "/v1/groups/g")).body
    assert (shown["topics"], shown["tags"], shown["filters"]) == (["t"], {}, {"t": OVER_3})
    for other in ({}, {"tags": {"t": "A"}}, {"filters": {"t": "price > 4"}}):
        answer = await node.call("POST", path, {"topics": ["t"], "member_id": "m2", **other})
        assert (answer.status, answer.body["code"]) == (409, "subscription_mismatch")
        assert answer.body["subscribed"] == f"what matches [{OVER_3}]"
        assert answer.body["subscribed"] in answer.body["detail"]
        assert answer.body["requested"] in answer.body["detail"]
    same = {"topics": ["t"], "member_id": "m2", "filters": {"t": OVER_3}}
    assert (await node.call("POST", path, same)).status == 201


async def test_tags_of_a_group_are_a_set(node: Node) -> None:
    path = "/v1/groups/g/members"
    for member, tags in (("m1", "B||A"), ("m2", " A || B || A ")):
        answer = await node.call("POST", path, {"topics": ["t"], "member_id": member, "tags": {"t": tags}})
        assert answer.status == 201
    assert (await node.call("GET", "/v1/groups/g")).body["tags"] == {"t": "A || B"}
    answer = await node.call("POST", "/v1/groups/h/members", {"topics": ["t"], "tags": {"t": "*"}})
    assert answer.status == 201
    assert (await node.call("GET", "/v1/groups/h")).body["tags"] == {}


@pytest.mark.parametrize(
    ("more", "code", "detail"),
    [
        ({"filters": {"t": "a >"}}, "invalid_filter", "topic t, column 4: expected"),
        ({"filters": {"u": "a > 1"}}, "invalid_request", "filters: 'u' is not among the topics"),
        ({"tags": {"u": "A"}}, "invalid_request", "tags: 'u' is not among the topics"),
        ({"tags": {"t": "A"}, "filters": {"t": "a > 1"}}, "invalid_request", "topic t is in both"),
        ({"tags": {"t": "A || "}}, "invalid_request", "tags of topic t: tags separated by ||"),
    ],
)
async def test_a_join_with_a_bad_selection_changes_nothing(node: Node, more: Any, code: str, detail: str) -> None:
    index = node.core.raft.applied_index
    answer = await node.call("POST", "/v1/groups/g/members", {"topics": ["t"], **more})
    assert (answer.status, answer.body["code"]) == (400, code)
    assert detail in answer.body["detail"]
    assert node.core.raft.applied_index == index
