"""Tests unusual handlers against a real broker: plain functions, blocking ones, and ones that do not end."""

import asyncio
import contextlib
import logging
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator
from typing import Any, Final

import pytest

from keelmq import (
    Admin,
    Connection,
    Consumer,
    Decision,
    Message,
    PopConsumer,
    Producer,
    ReceivedMessage,
    Transaction,
    TransactionProducer,
)
from keelmq.errors import InvalidRequest, QueueLost
from tests.e2e.cluster_process import ClusterProcess, until
from tests.e2e.fixtures import fresh_topic
from tests.patience import CALL_PATIENCE_MS, PATIENCE_S

pytestmark = pytest.mark.process


MEMBER: Final = """
import asyncio, sys, keelmq

async def handle(message):
    print("handled", flush=True)

asyncio.run(keelmq.Consumer(sys.argv[1], sys.argv[2], sys.argv[2], handle, start="earliest").run())
print("returned", flush=True)
"""


@pytest.fixture
async def connection(single: ClusterProcess) -> AsyncIterator[Connection]:
    made = Connection(single.urls)
    yield made
    made.close()


topic = fresh_topic(queues=2)


async def send(connection: Connection, topic: str, count: int, **options: Any) -> None:
    async with Producer(connection=connection, send_timeout_ms=CALL_PATIENCE_MS) as producer:
        for number in range(count):
            await producer.send(topic, str(number).encode(), **options)


async def members(connection: Connection, group: str) -> list[str]:
    return [each.member_id for each in (await Admin(connection).group(group)).members]


async def test_a_plain_function_handles_each_message_once_in_order_and_in_a_thread(
    connection: Connection, topic: str
) -> None:
    await send(connection, topic, 20, queue=0)
    handled: list[int] = []
    threads: set[bool] = set()

    def handle(message: ReceivedMessage) -> None:
        threads.add(threading.current_thread() is threading.main_thread())
        handled.append(message.offset)

    async with Consumer([], topic, topic, handle, start="earliest", connection=connection, concurrency=4):
        await until(lambda: len(handled) == 20)
    assert (handled, threads) == (list(range(20)), {False})
    offsets = {each.queue: each.offset for each in (await Admin(connection).group(topic)).offsets}
    assert offsets == {0: 20, 1: 0}


async def test_plain_functions_run_at_most_as_many_at_a_time_as_concurrency_says(
    connection: Connection, topic: str
) -> None:
    await send(connection, topic, 24)
    lock, most, running, handled = threading.Lock(), 0, 0, 0

    def handle(message: ReceivedMessage) -> None:
        nonlocal most, running, handled
        with lock:
            running += 1
            most = max(most, running)
        threading.Event().wait(0.01)
        with lock:
            running -= 1
            handled += 1

    consumer = PopConsumer(handle, topic=topic, group=topic, connection=connection, concurrency=3)
    async with consumer:
        await until(lambda: handled == 24)
    assert 1 <= most <= 3


async def test_a_lambda_that_returns_a_coroutine_is_awaited(connection: Connection, topic: str) -> None:
    await send(connection, topic, 3, queue=0)
    handled: list[int] = []

    async def handle(message: ReceivedMessage, place: list[int]) -> None:
        place.append(message.offset)

    async with Consumer(
        [], topic, topic, lambda message: handle(message, handled), start="earliest", connection=connection
    ):
        await until(lambda: handled == [0, 1, 2])


async def test_a_plain_local_transaction_and_a_plain_check_decide(connection: Connection, topic: str) -> None:
    asked: list[str] = []

    def check(transaction: Transaction) -> Decision:
        asked.append(transaction.id)
        return Decision.COMMIT

    async with TransactionProducer(
        [], topic, check=check, connection=connection, send_timeout_ms=CALL_PATIENCE_MS
    ) as producer:
        result = await producer.execute(Message(topic=topic, body=b"committed"), lambda transaction: None)
        assert result.outcome == "committed"
        rolled_back = await producer.execute(
            Message(topic=topic, body=b"rolled back"), lambda transaction: Decision.ROLLBACK
        )
        assert rolled_back.outcome == "rolled_back"
        left = await producer.execute(
            Message(topic=topic, body=b"checked"), lambda transaction: Decision.UNKNOWN, check_after_ms=0
        )
        await until(lambda: asked == [left.transaction_id])
        async with asyncio.timeout(PATIENCE_S):
            while (await Admin(connection).transaction(left.transaction_id)).state != "committed":
                await asyncio.sleep(0.01)


async def test_mistakes_are_refused_before_anything_is_joined(connection: Connection, topic: str) -> None:
    async def yields(message: ReceivedMessage) -> AsyncIterator[None]:
        yield

    async def two(message: ReceivedMessage, more: int) -> None: ...

    async def on_fault(error: object, messages: object) -> None: ...

    for handler, said in ((yields, "yield"), (two, "one argument"), ("handle", "give a function"), (Message, "class")):
        with pytest.raises(InvalidRequest, match=said):
            Consumer([], topic, topic, handler, connection=connection)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="on_fault"):
        Consumer([], topic, topic, lambda message: None, on_fault=on_fault, connection=connection)
    with pytest.raises(InvalidRequest, match="check"):
        TransactionProducer([], topic, check=lambda: Decision.COMMIT, connection=connection)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="needs a handler"):
        await Consumer([], topic, topic, connection=connection).run()
    assert topic not in {each.group for each in await Admin(connection).groups()}


async def test_a_sigterm_ends_run_in_order(single: ClusterProcess, connection: Connection, topic: str) -> None:
    await send(connection, topic, 1)
    member = await asyncio.create_subprocess_exec(
        sys.executable, "-c", MEMBER, single.nodes[1].url, topic, stdout=asyncio.subprocess.PIPE
    )
    assert member.stdout is not None
    assert await member.stdout.readline() == b"handled\n"
    member.send_signal(signal.SIGTERM)
    assert await member.stdout.read() == b"returned\n"
    assert await member.wait() == 0
    group = await Admin(connection).group(topic)
    assert (group.members, sum(each.offset for each in group.offsets)) == ((), 1)


async def test_a_handler_of_the_applications_for_sigterm_stays(connection: Connection, topic: str) -> None:
    called = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, called.set)
    try:
        running = asyncio.create_task(Consumer([], topic, topic, lambda message: None, connection=connection).run())
        async with asyncio.timeout(PATIENCE_S):
            while not await members_or_none(connection, topic):
                await asyncio.sleep(0.01)
        signal.raise_signal(signal.SIGTERM)
        await called.wait()
        assert not running.done()
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
    finally:
        assert loop.remove_signal_handler(signal.SIGTERM), "run has left it alone at its end as well"


async def members_or_none(connection: Connection, group: str) -> list[str]:
    groups = {each.group: each for each in await Admin(connection).groups()}
    return [each.member_id for each in groups[group].members] if group in groups else []


async def test_close_does_not_wait_for_a_handler_that_swallows_its_cancellation(
    connection: Connection, topic: str
) -> None:
    await send(connection, topic, 2, queue=0)
    may_end, told, calls = asyncio.Event(), list[type[Exception]](), 0

    async def stubborn(message: ReceivedMessage) -> None:
        nonlocal calls
        calls += 1
        while not may_end.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await may_end.wait()

    consumer = Consumer(
        [],
        topic,
        topic,
        stubborn,
        start="earliest",
        connection=connection,
        close_timeout_ms=0,
        on_fault=lambda error, messages: told.append(type(error)),
    )
    await consumer.start()
    await until(lambda: calls == 1)
    await consumer.close()
    assert not may_end.is_set()
    assert told == [QueueLost]
    assert await members(connection, topic) == []
    may_end.set()
    for _ in range(100):
        await asyncio.sleep(0)
    assert calls == 1, "what was left behind begins nothing more"
    offsets = {each.queue: each.offset for each in (await Admin(connection).group(topic)).offsets}
    assert offsets[0] == 0


async def test_whatever_a_handler_raises_its_queue_goes_on_and_each_attempt_is_one_line(
    connection: Connection, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Odd(BaseException): ...

    await send(connection, topic, 2, queue=0, message_id=None)
    handled: list[int] = []
    failures = [Odd("no Exception"), asyncio.CancelledError(), ValueError("not now")]

    async def handle(message: ReceivedMessage) -> None:
        if failures:
            raise failures.pop(0)
        handled.append(message.offset)

    with caplog.at_level(logging.INFO, logger="keelmq"):
        async with Consumer([], topic, topic, handle, start="earliest", connection=connection):
            await until(lambda: handled == [0, 1])
    lines = [record.getMessage() for record in caplog.records if "the handler failed" in record.getMessage()]
    assert [line.partition("attempt ")[2][:1] for line in lines] == ["1", "2", "3"]
    assert all("(offset 0)" in line and "called again in" in line and "\n" not in line for line in lines)
    assert "Odd: no Exception" in lines[0]
    assert "ValueError: not now" in lines[2]


async def test_a_loop_that_stood_is_named_and_the_session_is_over_at_once(
    connection: Connection, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    await send(connection, topic, 2, queue=0)
    owned: list[bool] = []
    begun: list[tuple[int, bool]] = []

    async def block(message: ReceivedMessage) -> None:
        begun.append((message.offset, consumer.owns(message)))
        if not owned:
            time.sleep(1.2)  # noqa: ASYNC251 - the blocked loop is tested: the session lasts a second
            owned.append(consumer.owns(message))

    consumer = Consumer([], topic, topic, block, start="earliest", connection=connection, session_timeout_ms=1_000)
    async with consumer:
        await until(lambda: {offset for offset, _ in begun} == {0, 1})
    assert owned == [False], "by the clock, though no timer could run"
    assert all(owns for _, owns in begun), "no handler call begins before the session is known to last"
    said = [record.getMessage() for record in caplog.records]
    assert any("the event loop of this process stood for" in line and f"{topic}/0" in line for line in said)
