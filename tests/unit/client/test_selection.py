"""Tags and filters in the SDK: the requests to the broker, and the answers that it may give."""

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from keelmq.blocks.batch import encode_messages
from keelmq.consuming.consumer import Consumer
from keelmq.consuming.group_session import GroupSession, Pulled, pull
from keelmq.consuming.selection import EVERYTHING, Selection, selections_of
from keelmq.consuming.session_times import SessionTimes
from keelmq.errors import Corrupt, InvalidFilter, InvalidRequest, error_from_problem
from keelmq.message import Message
from keelmq.transport.connection import Connection
from keelmq.transport.http1 import HttpResponse
from tests.unit.client.scripted import SERVERS, Request, ScriptedTransport, json_answer, msgpack_answer

OVER_3 = Selection(filter="price > 3 AND region = 'eu & co'")


def test_one_for_all_topics_or_for_some() -> None:
    assert selections_of(["a", "b"], "A || B", None) == {"a": Selection("A || B"), "b": Selection("A || B")}
    some = selections_of(["a", "b", "c"], {"a": "A"}, {"b": "x > 1"})
    assert some == {"a": Selection("A"), "b": Selection(None, "x > 1"), "c": EVERYTHING}
    assert [each.is_everything for each in some.values()] == [False, False, True]


@pytest.mark.parametrize(
    ("tags", "filter", "says"),
    [
        ("A", "x > 1", "not both"),
        ({"a": "A"}, {"a": "x > 1"}, "not both for topic a"),
        ({"other": "A"}, None, "tags: 'other' is not among the topics"),
        (None, {"other": "x > 1"}, "filter: 'other' is not among the topics"),
        (None, {"a": 5}, "filter must be a string, not int"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_once(tags: Any, filter: Any, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        Consumer(SERVERS, "g", ["a", "b"], tags=tags, filter=filter)


async def test_a_join_says_what_the_member_reads() -> None:
    def script(request: Request) -> HttpResponse:
        return json_answer({"member_id": "m", "generation": 1, "assignment": [], "session_timeout_ms": 10_000}, 201)

    transport = ScriptedTransport(script)
    for topics in (selections_of(["a", "b", "c"], {"a": "A"}, {"b": "x > 1"}), {"a": EVERYTHING}):
        session = GroupSession(
            Connection(SERVERS, transport=transport, rng=lambda: 0.0),
            "g",
            topics,
            member_id="m",
            client_id="c",
            times=SessionTimes(10_000),
        )
        await session.join()
    first, second = (request.json() for request in transport.requests)
    assert (first["topics"], first["tags"], first["filters"]) == (["a", "b", "c"], {"a": "A"}, {"b": "x > 1"})
    assert second.keys() & {"tags", "filters"} == set(), "a broker that knows no filters takes it"


def answer(*batches: Mapping[str, Any], next_offset: int, max_offset: int = 100) -> HttpResponse:
    block = encode_messages([Message(body=b"m")] * 3)
    whole = [
        {"batch_id": "b", "stored_at_ms": 1, "crc32c": block.crc32c, "block": block.data, "count": 3, **batch}
        for batch in batches
    ]
    return msgpack_answer({"batches": whole, "next_offset": next_offset, "max_offset": max_offset})


async def pulled(
    script: Callable[[Request], HttpResponse], offset: int = 0, selection: Selection = OVER_3
) -> tuple[Pulled, Request]:
    transport = ScriptedTransport(script)
    connection = Connection(SERVERS, transport=transport, rng=lambda: 0.0)
    found = await pull(connection, ("t", 0), offset, max_messages=10, max_bytes=1_000, wait_ms=0, selection=selection)
    return found, transport.requests[-1]


async def test_messages_that_were_not_asked_for_are_left_out_and_passed() -> None:
    batches = ({"base_offset": 2, "filtered": [0]}, {"base_offset": 40, "filtered": [1, 2]})
    found, request = await pulled(lambda _: answer(*batches, next_offset=60), offset=4)
    assert [message.offset for message in found.messages] == [4, 40]
    assert found.next_offset == 60
    assert parse_qs(urlsplit(request.target).query)["filter"] == [OVER_3.filter]


async def test_ordinals_keep_their_offsets() -> None:
    batch = {"base_offset": 5, "count": 2, "skip": [0], "filtered": [1]}
    found, _ = await pulled(lambda _: answer(batch, next_offset=7))
    assert [(message.offset, message.message_id) for message in found.messages] == [(6, "b-2")]


async def test_nothing_found_moves_on_all_the_same() -> None:
    found, _ = await pulled(lambda _: answer(next_offset=9))
    assert found == Pulled([], 9)


@pytest.mark.parametrize(
    ("selection", "wrong"),
    [
        (OVER_3, answer({"base_offset": 5}, {"base_offset": 7}, next_offset=10)),
        (OVER_3, answer({"base_offset": 5}, next_offset=7)),
        (OVER_3, answer(next_offset=3)),
        (OVER_3, answer(next_offset=101)),
        (EVERYTHING, answer({"base_offset": 5}, {"base_offset": 9}, next_offset=12)),
    ],
)
async def test_an_answer_that_would_lose_or_repeat_messages_is_corrupt(
    selection: Selection, wrong: HttpResponse
) -> None:
    with pytest.raises(Corrupt):
        await pulled(lambda _: wrong, offset=5, selection=selection)


async def test_without_a_selection_only_messages_move_the_offset() -> None:
    found, request = await pulled(lambda _: answer(next_offset=9), offset=5, selection=EVERYTHING)
    assert found == Pulled([], 5)
    assert "filter" not in request.target
    assert "tags" not in request.target


def test_a_bad_filter_is_an_error_of_its_own() -> None:
    error = error_from_problem(400, {"code": "invalid_filter", "detail": "column 3: …", "position": 3})
    assert isinstance(error, InvalidFilter)
    assert error.position == 3
    assert InvalidFilter("invalid_filter", "x").position is None
