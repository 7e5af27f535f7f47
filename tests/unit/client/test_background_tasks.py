"""Background tasks of a consumer outlive errors that are not the SDK's, such as those of a token function."""

import asyncio

import pytest

from keelmq import PopConsumer, ReceivedMessage
from keelmq.consuming.consumer import Consumer
from keelmq.transport.connection import Connection
from tests.unit.client.scripted import SERVERS, ScriptedTransport, json_answer
from tests.unit.client.scripted_group import ScriptedGroup
from tests.unit.client.test_consumer_pause import Seen, until
from tests.unit.client.test_pop_consumer import PopBroker
from tests.unit.client.virtual_time import run_in_virtual_time


class Tokens:
    """A token function whose service is down at times."""

    def __init__(self) -> None:
        self.is_down = False
        self.refused = 0

    def __call__(self) -> str:
        if self.is_down:
            self.refused += 1
            raise RuntimeError("the service of the tokens is down")
        return "token"


def test_a_member_keeps_its_session_and_commits_when_tokens_are_to_be_had_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        group, seen, tokens = ScriptedGroup(queues=1), Seen(), Tokens()
        seen.may_end.clear()
        group.append(0, b"first")
        transport = ScriptedTransport(group, answers_cluster=True)
        connection = Connection(SERVERS, transport=transport, rng=lambda: 0.0, token=tokens)
        member = Consumer([], "g", "t", seen, start="earliest", session_timeout_ms=10_000, connection=connection)
        async with member:
            await seen.entered.wait()
            tokens.is_down = True
            seen.may_end.set()
            await asyncio.sleep(20)
            assert group.committed == {0: 0}
            tokens.is_down = False
            heartbeats = group.heartbeats
            group.append(0, b"second")
            await until(lambda: group.committed == {0: 2})
            await until(lambda: group.heartbeats > heartbeats)
        assert seen.bodies == [b"first", b"second"]
        assert tokens.refused < 100, "nobody asks without a pause"

    run_in_virtual_time(main())
    assert "the service of the tokens is down" in caplog.text


def test_a_pop_consumer_takes_holds_and_acknowledges_when_tokens_are_to_be_had_again() -> None:
    async def main() -> None:
        broker, tokens, may_end = PopBroker("a"), Tokens(), asyncio.Event()
        nothing = json_answer({"messages": []})
        broker.refuse = lambda target: nothing if target.endswith("/pop") and not broker.ready else None
        handled = []

        async def handle(message: ReceivedMessage) -> None:
            handled.append(message.body)
            await may_end.wait()

        transport = ScriptedTransport(broker, answers_cluster=True)
        connection = Connection(SERVERS, transport=transport, avoid_slow_nodes=False, token=tokens)
        worker = PopConsumer(
            handle, topic="orders", group="g", connection=connection, concurrency=2, invisible_ms=60_000, wait_ms=0
        )
        async with worker:
            await until(lambda: handled == [b"a"])
            tokens.is_down = True
            await asyncio.sleep(21)
            tokens.is_down = False
            await until(lambda: bool(broker.changed))
            tokens.is_down = True
            may_end.set()
            await asyncio.sleep(5)
            assert broker.acked == []
            tokens.is_down = False
            broker.ready.append("b")
            await until(lambda: broker.acked == ["h-a", "h-b"])

    run_in_virtual_time(main())
