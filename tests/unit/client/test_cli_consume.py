"""`keelmq consume --group` without `--follow` ends when the group has read everything, whatever happens meanwhile."""

import asyncio
from typing import Any

import pytest

from keelmq.cli.messages.consume import _read_as_member
from keelmq.consuming.selection import Selection
from keelmq.errors import Forbidden
from keelmq.message import ReceivedMessage
from keelmq.transport.connection import Connection
from keelmq.transport.http1 import HttpResponse
from tests.unit.client.scripted import SERVERS, Request, ScriptedTransport, json_answer, problem
from tests.unit.client.scripted_group import ScriptedGroup
from tests.unit.client.virtual_time import run_in_virtual_time

OUTAGE_LOOKS = 200
"""Number of refused looks at the group. They are more than one call makes within CALL_MS, which real time ends."""
CALL_MS = 1
LONGEST_S = 3_600.0


class _Shown(ScriptedGroup):
    """A group that an administrator looks at, unless its answers are refused with one of the problems that are left."""

    def __init__(self, refusals: list[HttpResponse]) -> None:
        super().__init__(queues=1)
        self.refusals = refusals
        self.former: list[dict[str, Any]] = []

    def _refuses(self, request: Request) -> bool:
        return False

    def __call__(self, request: Request) -> Any:
        if request.method == "GET" and request.target == "/v1/groups/g" and self.committed == {0: 2}:
            return self.refusals.pop() if self.refusals else self._applied(json_answer(self._detail()))
        return super().__call__(request)

    def _detail(self) -> dict[str, Any]:
        detail = super()._detail()
        for each in detail["offsets"]:
            end = len(self.messages[each["queue"]])
            each |= {"max_offset": end, "lag": end - each["offset"]}
        detail["offsets"] += self.former
        return {**detail, "group": "g", "retry_max_attempts": 16, "retry_delays_ms": [1_000]}


async def consumed(group: ScriptedGroup) -> list[bytes]:
    bodies: list[bytes] = []

    def emit(message: ReceivedMessage) -> bool:
        bodies.append(message.body)
        return True

    transport = ScriptedTransport(group, answers_cluster=True)
    connection = Connection(SERVERS, transport=transport, rng=lambda: 0.0, call_timeout_ms=CALL_MS)
    async with asyncio.timeout(LONGEST_S):
        await _read_as_member(connection, "g", "t", "earliest", Selection(None, None), False, emit)
    return bodies


def test_it_ends_though_the_group_could_not_be_looked_at_for_a_while() -> None:
    async def main() -> None:
        group = _Shown([problem(429, "overloaded")] * OUTAGE_LOOKS)
        group.append(0, b"0", b"1")
        assert await consumed(group) == [b"0", b"1"]
        assert not group.refusals

    run_in_virtual_time(main())


def test_it_ends_with_the_error_where_looking_at_the_group_is_refused() -> None:
    async def main() -> None:
        group = _Shown([problem(403, "forbidden")])
        group.append(0, b"0", b"1")
        with pytest.raises(Forbidden):
            await consumed(group)

    run_in_virtual_time(main())


def test_it_ends_where_other_members_have_all_queues() -> None:
    async def main() -> None:
        group = _Shown([])
        group.append(0, b"0", b"1")
        group.assigned, group.committed = [], {0: 2}
        assert await consumed(group) == []

    run_in_virtual_time(main())


def test_it_waits_for_no_topic_that_the_group_read_before() -> None:
    async def main() -> None:
        group = _Shown([])
        group.append(0, b"0", b"1")
        group.assigned, group.committed = [], {0: 2}
        group.former = [{"topic": "old", "queue": 0, "offset": 3, "max_offset": 8, "lag": 5}]
        assert await consumed(group) == []

    run_in_virtual_time(main())
