"""Consumers that were made before a fork: each process joins as a member of its own."""

from collections.abc import Awaitable, Callable

import pytest

from keelmq.transport.http1 import HttpResponse
from tests.unit.client.scripted import Request, ScriptedTransport
from tests.unit.client.scripted_group import ScriptedGroup
from tests.unit.client.test_consumer_pause import Seen, consumer
from tests.unit.client.virtual_time import run_in_virtual_time


def joined_as(prepare: Callable[[], None]) -> tuple[str, str, str]:
    """Return the member id of a new consumer, the one with which it joins after `prepare`, and the one that it has."""

    async def main() -> tuple[str, str, str]:
        joins: list[str] = []
        member = consumer(ScriptedGroup(), Seen())
        made = member.member_id
        transport = member._connection._transport
        assert isinstance(transport, ScriptedTransport)
        script = transport.script

        def remember(request: Request) -> HttpResponse | Awaitable[HttpResponse]:
            if request.method == "POST" and request.target.endswith("/members"):
                joins.append(request.json()["member_id"])
            return script(request)

        transport.script = remember
        prepare()
        async with member:
            pass
        return made, joins[0], member.member_id

    return run_in_virtual_time(main())


def test_a_consumer_joins_as_the_member_that_it_says() -> None:
    made, joined, has = joined_as(lambda: None)
    assert made == joined == has


def test_a_consumer_of_a_forked_process_joins_as_a_member_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    made, joined, has = joined_as(lambda: monkeypatch.setattr("os.getpid", lambda: 0))
    assert made != joined == has
