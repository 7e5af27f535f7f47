"""A member that was not told of a topic's deletion in time takes nothing of that topic for one of its successor's."""

import asyncio
from typing import Any

import pytest

from tests.unit.client.scripted import Request, problem
from tests.unit.client.scripted_group import ScriptedGroup
from tests.unit.client.test_consumer_pause import Seen, consumer, until
from tests.unit.client.virtual_time import run_in_virtual_time

OLD = (b"old 0", b"old 1", b"old 2")
NEW = (b"new 0", b"new 1", b"new 2", b"new 3")
"""One more: a pull at the end of the former topic gets it."""


@pytest.mark.parametrize("is_over", [False, True], ids=["rebalances missed", "session over"])
def test_fetched_messages_of_the_former_topic_are_not_handled_and_no_new_one_is_passed_by(is_over: bool) -> None:
    """The offset of the group is the same in both topics, as the first message of the former one was not finished."""

    async def main() -> None:
        group, seen = ScriptedGroup(queues=1), Seen()
        group.waits = True
        group.append(0, *OLD)
        seen.may_end.clear()
        async with consumer(group, seen, close_timeout_ms=1_000) as member:
            await seen.entered.wait()
            group.make_topic_anew(*NEW)
            await asyncio.sleep(0.1)
            if is_over:
                group.known, group.generation = False, 0
            group.rebalance([0])
            await until(lambda: member.assignment == [])
            seen.may_end.set()
            await until(lambda: group.committed == {0: 4})
        assert seen.bodies == [OLD[0], *NEW]

    run_in_virtual_time(main())


class _TakingNoCommits(ScriptedGroup):
    takes = False

    def _commit(self, commit: dict[str, Any]) -> Any:
        return super()._commit(commit) if self.takes else problem(429, "overloaded")


def test_what_was_processed_of_the_former_topic_is_not_committed_in_the_new_one() -> None:
    async def main() -> None:
        group, seen = _TakingNoCommits(queues=1), Seen()
        group.waits = True
        group.append(0, *OLD)
        async with consumer(group, seen):
            await until(lambda: seen.bodies == list(OLD))
            group.make_topic_anew(*NEW)
            group.takes = True
            group.rebalance([0])
            await until(lambda: group.committed == {0: 4})
        assert seen.bodies[-len(NEW) :] == list(NEW)

    run_in_virtual_time(main())


class _CountingLooks(ScriptedGroup):
    looks = 0
    is_told = True

    def __call__(self, request: Request) -> Any:
        is_look = request.method == "GET" and request.target == "/v1/topics/t"
        self.looks += is_look
        return problem(403, "forbidden") if is_look and not self.is_told else super().__call__(request)


def test_a_member_that_may_not_describe_the_topic_begins_again_where_the_group_is() -> None:
    async def main() -> None:
        group, seen = _CountingLooks(queues=1), Seen()
        group.waits, group.is_told = True, False
        group.append(0, *OLD)
        seen.may_end.clear()
        async with consumer(group, seen, close_timeout_ms=1_000) as member:
            await seen.entered.wait()
            group.generation += 2
            group.rebalance([0])
            await until(lambda: member.assignment == [])
            seen.may_end.set()
            await until(lambda: group.committed == {0: 3})
        assert seen.bodies == [OLD[0], *OLD]

    run_in_virtual_time(main())


def test_missed_rebalances_alone_have_nothing_handled_twice() -> None:
    async def main() -> None:
        group, seen = _CountingLooks(queues=1), Seen()
        group.waits = True
        async with consumer(group, seen) as member:
            for _ in range(2):  # a queue of which nothing is fetched needs no look at its topic
                group.generation += 2
                group.rebalance([0])
                await asyncio.sleep(1)
            assert group.looks == 0
            group.append(0, *OLD)
            seen.may_end.clear()
            await seen.entered.wait()
            group.generation += 2
            group.rebalance([0])
            await until(lambda: group.looks == 1)
            seen.may_end.set()
            await until(lambda: group.committed == {0: 3})
            assert member.assignment == [("t", 0)]
        assert seen.bodies == list(OLD)

    run_in_virtual_time(main())
