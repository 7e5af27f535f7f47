"""Handlers that take too long, and handlers whose queue is lost: they are cut off or fenced, and the user is told."""

import asyncio
import logging
from collections.abc import Sequence

import pytest

from keelmq.consuming.consumer import CONSUME_TIMEOUT_MS, Consumer
from keelmq.errors import ConsumeTimeout, InvalidRequest, KeelMQError, QueueLost
from keelmq.message import ReceivedMessage
from tests.unit.client.scripted_group import ScriptedGroup
from tests.unit.client.test_consumer_pause import MINUTES_S, Seen, consumer, until
from tests.unit.client.virtual_time import run_in_virtual_time

LIMIT_S = CONSUME_TIMEOUT_MS / 1000


class Faulty:
    """An `on_fault` callback that remembers its calls."""

    def __init__(self) -> None:
        self.told: list[tuple[type[KeelMQError], list[bytes]]] = []

    def __call__(self, error: KeelMQError, messages: Sequence[ReceivedMessage]) -> None:
        self.told.append((type(error), [message.body for message in messages]))


def test_the_time_out_is_rocketmqs() -> None:
    assert CONSUME_TIMEOUT_MS == 15 * 60 * 1000


def test_a_handler_that_hangs_is_cancelled_after_15_minutes_and_called_again(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        group, faults, calls = ScriptedGroup(queues=1), Faulty(), []
        group.append(0, b"0", b"1")
        loop = asyncio.get_running_loop()

        async def hang_once(message: ReceivedMessage) -> None:
            calls.append((message.body, loop.time()))
            if len(calls) == 1:
                try:
                    await asyncio.Event().wait()
                finally:
                    calls.append((b"cancelled", loop.time()))

        async with consumer(group, hang_once, on_fault=faults) as member:
            await until(lambda: group.committed == {0: 2})
            assert member.assignment == [("t", 0)]
        assert [body for body, _ in calls] == [b"0", b"cancelled", b"0", b"1"]
        assert calls[1][1] - calls[0][1] == pytest.approx(LIMIT_S)
        assert faults.told == [(ConsumeTimeout, [b"0"])]
        assert group.given_back == []

    run_in_virtual_time(main())
    assert "consume_timeout" in caplog.text


def test_a_handler_that_hangs_gives_its_message_back_and_the_queue_goes_on() -> None:
    async def main() -> None:
        group, seen = ScriptedGroup(queues=1), Seen()
        group.append(0, b"0", b"1")

        async def hang(message: ReceivedMessage) -> None:
            if message.body == b"0":
                await asyncio.Event().wait()
            await seen(message)

        async with consumer(group, hang, on_error="give_back", tries=2, consume_timeout_ms=60_000):
            begun_s = asyncio.get_running_loop().time()
            await until(lambda: group.committed == {0: 2})
            taken_s = asyncio.get_running_loop().time() - begun_s
        assert 120 <= taken_s < 121, "two tries of a minute each"
        [given_back] = group.given_back
        assert given_back["offset"] == 0
        assert given_back["reason"].startswith("ConsumeTimeout: consume_timeout: the handler did not end within 60000")
        assert seen.bodies == [b"1"]

    run_in_virtual_time(main())


def test_each_call_has_the_whole_time() -> None:
    async def main() -> None:
        group, faults = ScriptedGroup(queues=1), Faulty()
        group.append(0, *(b"%d" % n for n in range(10)))

        async def slow(message: ReceivedMessage) -> None:
            await asyncio.sleep(LIMIT_S * 0.9)

        async with consumer(group, slow, on_fault=faults):
            await until(lambda: group.committed == {0: 10})
        assert faults.told == []

    run_in_virtual_time(main())


def test_a_handler_that_does_not_heed_the_cancellation_has_processed_its_message_when_it_returns(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        group, calls = ScriptedGroup(queues=1), 0
        group.append(0, b"0", b"1")

        async def stubborn(message: ReceivedMessage) -> None:
            nonlocal calls
            calls += 1
            if message.body == b"0":
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    await asyncio.sleep(60)

        async with consumer(group, stubborn):
            await until(lambda: group.committed == {0: 2})
        assert calls == 2

    run_in_virtual_time(main())
    assert "did not heed" in caplog.text


def test_closing_while_a_handler_hangs_is_no_time_out() -> None:
    async def main() -> None:
        group, faults, seen = ScriptedGroup(queues=1), Faulty(), Seen()
        seen.may_end.clear()
        group.append(0, b"0")
        async with consumer(group, seen, on_fault=faults):
            await seen.entered.wait()
        assert (seen.bodies, group.committed, faults.told) == ([], {0: 0}, [])

    run_in_virtual_time(main())


def test_an_iterating_loop_is_told_but_not_interrupted(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        group, faults = ScriptedGroup(queues=1), Faulty()
        group.append(0, b"0", b"1")
        got = []
        async with consumer(group, on_fault=faults) as member:
            async for message in member:
                got.append(message.body)
                if message.body == b"1":
                    break
                await asyncio.sleep(LIMIT_S + 1)
        assert got == [b"0", b"1"]
        assert group.committed == {0: 1}
        assert faults.told == [(ConsumeTimeout, [b"0"])]

    run_in_virtual_time(main())
    assert "consume_timeout" in caplog.text


def test_without_heartbeats_nothing_is_handled_once_the_session_may_be_over(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody can be asked: the broker may have given the queues away, or may be gone itself."""

    async def main() -> None:
        group, faults, seen = ScriptedGroup(queues=1), Faulty(), Seen()
        seen.may_end.clear()
        group.append(0, b"0", b"1")
        async with consumer(group, seen, on_fault=faults) as member:
            await seen.entered.wait()
            message = ReceivedMessage(topic="t", queue=0, offset=0, message_id="m", body=b"0")
            assert member.owns(message)
            await asyncio.sleep(MINUTES_S)
            assert faults.told == [], "a long handler does not cost the session"
            group.refuses_heartbeats = True
            await until(lambda: not member.owns(message))
            assert faults.told == [(QueueLost, [b"0"])]
            seen.may_end.set()
            await asyncio.sleep(MINUTES_S)
            assert seen.bodies == [b"0"], "what ran was let to its end, nothing else was begun"
            group.refuses_heartbeats = False
            await until(lambda: group.committed == {0: 2})
            assert member.owns(message)
        assert seen.bodies == [b"0", b"1"], "the session went on after all: nothing is handled twice"

    run_in_virtual_time(main())
    assert "no heartbeat got through" in caplog.text


def test_a_handler_that_outlives_its_session_commits_nothing_and_the_user_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Another member got the queue meanwhile. The handler is cancelled after its grace."""

    async def main() -> None:
        group, faults, seen = ScriptedGroup(queues=2), Faulty(), Seen()
        seen.may_end.clear()
        group.append(0, b"0")
        async with consumer(group, seen, on_fault=faults, close_timeout_ms=5_000) as member:
            await seen.entered.wait()
            group.known, group.assigned, group.generation = False, [1], 2
            await until(lambda: member.assignment == [("t", 1)])
            assert faults.told == [(QueueLost, [b"0"])]
            await asyncio.sleep(MINUTES_S)
            seen.may_end.set()
        assert (seen.bodies, group.committed) == ([], {0: 0, 1: 0})

    run_in_virtual_time(main())
    assert "is not committed" not in caplog.text, "nothing was processed"


def test_what_was_processed_and_not_committed_when_the_queue_went_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        group, seen = ScriptedGroup(), Seen()
        async with consumer(group, seen, commit_interval_ms=60_000) as member:
            await asyncio.sleep(1)  # the first commit, of where it begins, is over
            group.append(0, b"0", b"1")
            await until(lambda: seen.bodies == [b"0", b"1"])
            group.assigned, group.generation = [1], 2
            await until(lambda: member.assignment == [("t", 1)])

    run_in_virtual_time(main())
    assert "t/0: 2 is not committed, 0 is: the queue is another member's" in caplog.text


def test_what_ends_within_its_grace_is_not_committed_either(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        group, faults, seen = ScriptedGroup(queues=2), Faulty(), Seen()
        seen.may_end.clear()
        group.append(0, b"0")
        async with consumer(group, seen, on_fault=faults, close_timeout_ms=600_000) as member:
            await seen.entered.wait()
            group.assigned, group.generation = [1], 2
            await until(lambda: member.assignment == [("t", 1)])
            seen.may_end.set()
            await until(lambda: seen.bodies == [b"0"])
            await asyncio.sleep(MINUTES_S)
        assert group.committed == {0: 0, 1: 0}
        assert faults.told == [(QueueLost, [b"0"])]

    run_in_virtual_time(main())
    assert "is fenced: the queue is another member's" in caplog.text


def test_what_on_fault_raises_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        group, calls = ScriptedGroup(queues=1), 0
        group.append(0, b"0")

        async def hang_once(message: ReceivedMessage) -> None:
            nonlocal calls
            calls += 1
            if calls == 1:
                await asyncio.Event().wait()

        def broken(error: KeelMQError, messages: Sequence[ReceivedMessage]) -> None:
            raise ValueError("a bug of the application's")

        async with consumer(group, hang_once, on_fault=broken):
            await until(lambda: group.committed == {0: 1})

    with caplog.at_level(logging.ERROR, logger="keelmq"):
        run_in_virtual_time(main())
    assert "on_fault failed" in caplog.text


@pytest.mark.parametrize("value", [0, -1, 7 * 24 * 3_600_000 + 1, "1", True, None])
def test_bad_time_outs_are_refused(value: object) -> None:
    with pytest.raises(InvalidRequest, match="consume_timeout_ms"):
        Consumer("http://127.0.0.1:1", "g", "t", Seen(), consume_timeout_ms=value)  # type: ignore[arg-type]
