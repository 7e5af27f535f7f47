"""`GET /v1/log/events` of one node: its events, their portions, with and without blocks."""

import asyncio
from typing import Any

import pytest

from cluster.budgets.pace import Pace
from cluster.budgets.turns import PAGE_TURN_BYTES
from cluster.limits import LOG_TOPICS_MAX
from cluster.operations import log_events
from cluster.operations.log_events import EventsPage
from keelmq.log.log_events import EntryEvents, LogEvent, read_frames
from store.messages.outcomes import Outcome
from tests.unit.cluster.conftest import Answer, Node


async def read(node: Node, from_index: int = 1, **query: Any) -> Answer:
    options = "".join(f"&{name}={value}" for name, value in query.items())
    answer = await node.call("GET", f"/v1/log/events?from_index={from_index}{options}")
    assert answer.status == 200, answer
    return answer


def frames(answer: Answer) -> list[EntryEvents]:
    return list(read_frames(answer.body))


async def all_events(node: Node, **query: Any) -> list[tuple[int, int, LogEvent]]:
    """Return index, first row and event of all events, asked for in as many portions as it takes."""
    found: list[tuple[int, int, LogEvent]] = []
    next_index, next_event = 1, 0
    while next_index <= node.core.state.applied_index:
        answer = await read(node, next_index, from_event=next_event, **query)
        assert answer.body or int(answer.headers["KeelMQ-Next-Index"]) > next_index
        for entry in frames(answer):
            row = entry.first_row
            for event in entry.events:
                found.append((entry.index, row, event))
                row += event.rows
        next_index, next_event = (int(answer.headers[f"KeelMQ-Next-{name}"]) for name in ("Index", "Event"))
    return found


async def workload(node: Node) -> None:
    for topic in ("orders", "points"):
        await node.call("PUT", f"/v1/topics/{topic}", {"queues": 2})
    body = {"messages": [{"body": f"b{n}", "queue": n % 2, "keys": [f"k{n}"]} for n in range(6)]}
    await asyncio.gather(*(node.call("POST", "/v1/topics/orders/messages", body) for _ in range(5)))
    half = {
        "transaction_id": "tx",
        "producer_group": "shop",
        "client_id": "c1",
        "messages": [
            {"topic": "orders", "body": "one", "message_id": "explicit"},
            {"topic": "points", "body": "two"},
        ],
    }
    assert (await node.call("POST", "/v1/transactions", half)).status == 201
    assert (await node.call("POST", "/v1/transactions/tx/commit", {"client_id": "c2"})).status == 200
    given = {"messages": [{"topic": "orders", "queue": 0, "offset": 1, "delay_ms": 0}]}
    assert (await node.call("POST", "/v1/groups/g/retries", given)).status == 200
    offsets = {"offsets": [{"topic": "orders", "queue": 0, "offset": 3}]}
    assert (await node.call("PUT", "/v1/groups/g/offsets", offsets)).status == 200


async def test_every_event_once_whatever_the_portions_are(node: Node) -> None:
    await workload(node)
    at_once = await all_events(node)
    for max_bytes in (1, 100, 300):
        assert await all_events(node, max_bytes=max_bytes) == at_once
    rows = [(index, row + n) for index, row, event in at_once for n in range(event.rows)]
    assert len(rows) == len(set(rows))
    published = [event for _, _, event in at_once if event.type == "PUBLISH"]
    assert sum(event.rows for event in published if event.topic == "orders") == 31
    assert sum(event.rows for event in published if event.topic == "%RETRY%g") == 1


async def test_blocks_are_as_they_were_stored(node: Node) -> None:
    await workload(node)
    events = [event for _, _, event in await all_events(node)]
    committed = [event for event in events if event.type == "PUBLISH" and event.transaction_id == "tx"]
    of = [event.messages for event in committed if event.messages is not None]
    assert [(messages.ids(), [each.body for each in messages.decode()]) for messages in of] == [
        (["explicit"], [b"one"]),
        ([of[1].batch_id + "-0"], [b"two"]),
    ]
    assert [(event.group, event.client_id) for event in committed] == [("shop", "c1")] * 2
    (commit,) = (event for event in events if event.type == "COMMIT")
    assert (commit.transaction_id, commit.group, commit.client_id, commit.messages) == ("tx", "shop", "c2", None)
    (retry,) = (event for event in events if event.type == "RETRY")
    assert retry.messages is not None
    (message,) = retry.messages.decode()
    assert (retry.topic, retry.offset, retry.group, retry.attempt) == ("orders", 1, "g", 1)
    first = next(event for event in events if event.type == "PUBLISH" and event.queue == 0)
    assert first.messages is not None
    assert (retry.messages.ids()[0], message.keys) == (first.messages.ids()[1], first.messages.decode()[1].keys)
    (ack,) = (event for event in events if event.type == "ACK")
    assert (ack.topic, ack.queue, ack.offset, ack.offset_end, ack.group) == ("orders", 0, 0, 3, "g")


async def test_without_blocks_everything_but_the_blocks_is_told(node: Node) -> None:
    await workload(node)
    with_blocks = [event for _, _, event in await all_events(node)]
    without = [event for _, _, event in await all_events(node, blocks="false")]
    assert [(event.type, event.topic, event.offset, event.rows) for event in with_blocks] == [
        (event.type, event.topic, event.offset, event.rows) for event in without
    ]
    assert all(event.messages is None or event.messages.block is None for event in without)
    assert all(event.messages is None or event.messages.block for event in with_blocks)


async def test_a_range_ends_before_to_index(node: Node) -> None:
    await workload(node)
    indexes = sorted({index for index, _, _ in await all_events(node)})
    answer = await read(node, indexes[1], to_index=indexes[2])
    assert [entry.index for entry in frames(answer)] == [indexes[1]]
    assert answer.headers["KeelMQ-Next-Index"] == str(indexes[2])
    answer = await read(node, indexes[2], to_index=indexes[2])
    assert (answer.body, answer.headers["KeelMQ-Next-Index"]) == (b"", str(indexes[2]))


async def test_a_reader_waits_until_something_is_applied(node: Node) -> None:
    await workload(node)
    next_index = node.core.state.applied_index + 1
    reading = asyncio.create_task(read(node, next_index, wait_ms=30_000))

    async def waits() -> bool:
        return len(node.core.waiters) == 1

    await node.wait(waits)
    await node.call("POST", "/v1/topics/orders/messages", {"messages": [{"body": "new"}]})
    (entry,) = frames(await reading)
    assert (entry.index, [event.type for event in entry.events]) == (next_index, ["PUBLISH"])
    beyond = await read(node, next_index + 1_000)
    assert (beyond.body, beyond.headers["KeelMQ-Next-Index"]) == (b"", str(next_index + 1_000))


async def test_what_is_removed_while_a_page_waits_is_not_passed_over(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page ends before the removed entry, and a reader that goes on there is told that it is gone."""
    await workload(node)
    monkeypatch.setattr(log_events, "OUTCOMES_PER_READ", 1)
    take, state = EventsPage._take, node.core.state

    async def removing(page: EventsPage, outcome: Outcome, pace: Pace) -> bool:
        whole = await take(page, outcome, pace)
        if page.frames:
            state._applied.first_outcome = page.next_index + 2
        return whole

    monkeypatch.setattr(EventsPage, "_take", removing)
    answer = await read(node)
    next_index = int(answer.headers["KeelMQ-Next-Index"])
    assert frames(answer)
    assert next_index < state.first_outcome
    gone = await node.call("GET", f"/v1/log/events?from_index={next_index}")
    assert (gone.status, gone.body["code"], gone.body["first_index"]) == (410, "log_range_removed", state.first_outcome)


async def test_what_is_removed_while_a_reader_waits_for_its_turn_is_told(node: Node) -> None:
    await workload(node)
    core, state = node.core, node.core.state
    async with core.turn(core.log_page_turns, "127.0.0.1", PAGE_TURN_BYTES):
        reading = asyncio.create_task(node.call("GET", "/v1/log/events?from_index=1"))

        async def waits() -> bool:
            return bool(core.log_page_turns._waiting)

        await node.wait(waits)
        state._applied.first_outcome = state.applied_index - 1
    gone = await reading
    assert gone.status == 410, "not a page without the events that are gone"
    assert (gone.status, gone.body["code"], gone.body["first_index"]) == (410, "log_range_removed", state.first_outcome)


def numbered(events: list[tuple[int, int, LogEvent]]) -> list[tuple[int, int, str, str | None]]:
    """Return index, row, type and topic of each event."""
    return [(index, row, event.type, event.topic) for index, row, event in events]


@pytest.mark.parametrize("max_bytes", [1, 300, 1_000_000])
async def test_only_events_of_named_topics_and_types_are_sent_and_keep_their_numbers(
    node: Node, max_bytes: int
) -> None:
    await workload(node)
    everything = numbered(await all_events(node))

    async def selected(**query: str) -> list[tuple[int, int, str, str | None]]:
        return numbered(await all_events(node, max_bytes=max_bytes, **query))

    points = [each for each in everything if each[3] == "points"]
    assert points
    assert await selected(topics="points") == points
    own = [each for each in everything if each[3] in ("points", "%RETRY%g")]
    assert len(own) > len(points)
    assert await selected(topics="points,%25RETRY%25*") == own
    assert await selected(topics="o*,points", types="PUBLISH,ACK") == [
        each for each in everything if each[2] in ("PUBLISH", "ACK") and each[3] in ("orders", "points")
    ]
    assert await selected(types="COMMIT") == [each for each in everything if each[2] == "COMMIT"]
    assert await selected(topics="other") == []


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("topics=", "invalid_topic"),
        ("topics=*", "invalid_topic"),
        ("topics=a,,b", "invalid_topic"),
        ("topics=" + ",".join(f"t{n}" for n in range(LOG_TOPICS_MAX + 1)), "invalid_request"),
        ("types=PUBLISH,OTHER", "invalid_request"),
    ],
)
async def test_a_selection_that_says_nothing_is_refused(node: Node, query: str, code: str) -> None:
    refused = await node.call("GET", f"/v1/log/events?from_index=1&{query}")
    assert (refused.status, refused.body["code"]) == (400, code)


async def test_records_of_other_topics_are_not_read(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index knows enough of an entry to pass it over."""
    await workload(node)
    read_positions: list[int] = []
    payload = node.core.reads.payload

    async def counted(position: int) -> bytes:
        read_positions.append(position)
        return await payload(position)

    monkeypatch.setattr(node.core.reads, "payload", counted)
    assert len(await all_events(node, topics="points")) == 2
    assert len(set(read_positions)) == 1, "the half and its commit are of one record"


async def test_a_page_that_passes_over_everything_ends_in_time(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    await workload(node)
    monkeypatch.setattr(Pace, "is_over", property(lambda _: True))
    answer = await read(node, topics="other")
    assert answer.body == b""
    monkeypatch.undo()
    places = [each[:2] for each in numbered(await all_events(node))]
    ended = int(answer.headers["KeelMQ-Next-Index"]), int(answer.headers["KeelMQ-Next-Event"])
    assert sum(place < ended for place in places) == 1, "it has passed over one event, and so gets on"
    assert numbered(await all_events(node, topics="points")) == [
        each for each in numbered(await all_events(node)) if each[3] == "points"
    ]
