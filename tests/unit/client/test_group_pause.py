"""A consumer whose group an operator pauses handles nothing, commits what it has handled, and goes on where it was."""

import asyncio
import logging
from typing import Any

import pytest

from keelmq.consuming.pop_calls import PopCalls
from keelmq.consuming.selection import EVERYTHING
from keelmq.transport.connection import Connection
from keelmq.transport.http1 import HttpResponse
from tests.unit.client.scripted import SERVERS, Request, ScriptedTransport, json_answer
from tests.unit.client.scripted_group import ScriptedGroup
from tests.unit.client.test_consumer_pause import MINUTES_S, Seen, consumer, until
from tests.unit.client.virtual_time import run_in_virtual_time

PAUSE: dict[str, Any] = {"since_ms": 1_700_000_000_000, "operator": "ann", "reason": "the database is moved"}
TOLD = "group g is paused since 2023-11-14T22:13:20Z by ann, because of: the database is moved"


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if "paused" in each.message or "resumed" in each.message]


def test_a_paused_group_finishes_what_runs_and_goes_on_where_it_was(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        group, seen = ScriptedGroup(queues=1), Seen()
        group.knows_pauses = group.waits = True
        seen.may_end.clear()
        group.append(0, b"0", b"1", b"2")
        async with consumer(group, seen) as member:
            await seen.entered.wait()
            heartbeats = group.heartbeats
            group.turn(PAUSE)
            await until(lambda: member.group_paused)
            seen.may_end.set()
            await until(lambda: group.committed == {0: 1})
            await asyncio.sleep(MINUTES_S)
            assert (seen.bodies, group.committed) == ([b"0"], {0: 1}), "what was fetched is kept, and not handled"
            assert group.heartbeats > heartbeats + 10
            assert member.paused == [], "the application has paused nothing"
            began_s = asyncio.get_running_loop().time()
            group.turn(None)
            await until(lambda: group.committed == {0: 3})
            assert asyncio.get_running_loop().time() - began_s < 3, "told at once, not by the next heartbeat"
            assert not member.group_paused
        assert seen.bodies == [b"0", b"1", b"2"]
        assert set(group.named) == {"g"}

    with caplog.at_level(logging.INFO):
        run_in_virtual_time(main())
    paused, resumed = told(caplog)
    assert paused.startswith(TOLD)
    assert resumed == "group g is resumed: it goes on where it was"


def test_a_member_that_joins_a_paused_group_begins_and_handles_nothing() -> None:
    async def main() -> None:
        group, seen = ScriptedGroup(queues=1), Seen()
        group.knows_pauses = group.waits = True
        group.paused = PAUSE
        group.append(0, b"0")
        async with consumer(group, seen) as member:
            assert member.group_paused
            await asyncio.sleep(MINUTES_S)
            assert (seen.bodies, group.pulls) == ([], [])
            group.rebalance([])
            await until(lambda: not member.assignment)
            group.rebalance([0])
            await until(lambda: bool(member.assignment))
            await asyncio.sleep(MINUTES_S)
            assert group.pulls == [], "a queue that is assigned meanwhile waits, too"
            group.turn(None)
            await until(lambda: group.committed == {0: 1})

    run_in_virtual_time(main())


def test_a_pause_of_the_application_and_one_of_the_group_end_each_by_itself() -> None:
    async def main() -> None:
        group, seen = ScriptedGroup(queues=1), Seen()
        group.knows_pauses = group.waits = True
        async with consumer(group, seen) as member:
            member.pause()
            group.turn(PAUSE)
            await until(lambda: member.group_paused)
            group.append(0, b"0")
            member.resume()
            await asyncio.sleep(MINUTES_S)
            assert seen.bodies == []
            member.pause()
            group.turn(None)
            await until(lambda: not member.group_paused)
            await asyncio.sleep(MINUTES_S)
            assert seen.bodies == []
            member.resume()
            await until(lambda: group.committed == {0: 1})

    run_in_virtual_time(main())


def test_nodes_that_know_no_pauses_are_told_nothing_of_them() -> None:
    async def main() -> None:
        group, seen = ScriptedGroup(queues=1), Seen()
        group.waits = True
        group.append(0, b"0")
        async with consumer(group, seen) as member:
            await until(lambda: group.committed == {0: 1})
            assert not member.group_paused
            assert set(group.named) == {None}
            group.knows_pauses = True
            group.rebalance([0])
            await until(lambda: member._session.knows_pauses)
            group.append(0, b"1")
            group.append(0, b"2")
            await until(lambda: group.committed == {0: 3})
            assert group.named[-1] == "g", "once the level is raised"

    run_in_virtual_time(main())


def test_a_pop_consumer_is_told_with_the_answer(caplog: pytest.LogCaptureFixture) -> None:
    answers: list[dict[str, Any]] = [{"messages": [], "paused": PAUSE}, {"messages": [], "paused": PAUSE}]
    answers.append({"messages": []})

    async def main() -> None:
        def answer(request: Request) -> HttpResponse:
            return json_answer({"leader_url": "http://n1:1"} if request.method == "GET" else answers.pop(0))

        transport = ScriptedTransport(answer, answers_cluster=True)
        calls = PopCalls(Connection(SERVERS, transport=transport), "g", "t", EVERYTHING, "c")
        for is_paused in (True, True, False):
            assert await calls.pop(1, 1_000, 0, "earliest") == []
            assert calls.pauses.is_paused == is_paused

    run_in_virtual_time(main())
    paused, resumed = told(caplog)
    assert paused.startswith(TOLD)
    assert resumed.startswith("group g is resumed")
