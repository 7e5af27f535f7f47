"""Plain functions run in threads: each takes a place until it has returned, and nobody waits for it for ever."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator

import pytest

from keelmq.plain_calls import WorkerThreads
from keelmq.transactions import check_loop
from keelmq.transactions.decision import Decision, Transaction
from keelmq.transactions.transaction import TransactionProducer
from keelmq.transport.connection import Connection
from keelmq.transport.http1 import HttpResponse
from tests.patience import PATIENCE_S
from tests.unit.client.scripted import SERVERS, Request, ScriptedTransport, json_answer

CHECK = {
    "transaction_id": "t",
    "producer_group": "g",
    "client_id": "c",
    "check_times": 1,
    "prepared_at_ms": 0,
    "messages": [],
}


async def test_an_abandoned_call_keeps_its_place_until_its_function_has_returned() -> None:
    threads, begun, may_return = WorkerThreads(1), threading.Event(), threading.Event()

    def local(number: int) -> int:
        begun.set()
        may_return.wait(PATIENCE_S)
        return number

    async def call(number: int) -> int:
        async with threads.place() as place:
            return int(await place.awaitable(local)(number))

    first = asyncio.create_task(call(1))
    await asyncio.to_thread(begun.wait, PATIENCE_S)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    begun.clear()
    second, gone = asyncio.create_task(call(2)), asyncio.create_task(call(3))
    await asyncio.sleep(0)
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    assert not second.done()
    assert not begun.is_set(), "no thread is free for it, so it has not begun, nor waits in a line that nobody leaves"
    may_return.set()
    assert await second == 2
    threads.close()


async def test_close_does_not_wait_for_a_plain_check_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keelmq.transactions.transaction.CLOSE_GRACE_MS", 1)
    monkeypatch.setattr(check_loop, "CANCELLED_GRACE_MS", 1)
    begun, may_return = threading.Event(), threading.Event()

    def check(transaction: Transaction) -> Decision:
        begun.set()
        may_return.wait(PATIENCE_S)
        return Decision.COMMIT

    def script(request: Request) -> HttpResponse:
        return json_answer({"checks": [] if begun.is_set() else [CHECK]})

    transport = ScriptedTransport(script)
    connection = Connection(SERVERS, transport=transport, rng=lambda: 0.0)
    producer = TransactionProducer(SERVERS, "g", check=check, connection=connection)
    await producer.start()
    assert await asyncio.to_thread(begun.wait, PATIENCE_S)
    async with asyncio.timeout(PATIENCE_S / 2):
        await producer.close()
    assert not may_return.is_set()
    may_return.set()


@contextlib.contextmanager
def without_more_threads() -> Iterator[None]:
    """Have no further thread start within the block: no stack is as large as is asked for."""
    before = threading.stack_size(1 << 46)
    try:
        yield
    finally:
        threading.stack_size(before)


async def test_a_call_for_which_no_thread_starts_waits_for_another_or_fails_without_running() -> None:
    """A handler that ran although its call had failed would be called again for the same message."""
    threads, may_return, done = WorkerThreads(2), threading.Event(), list[str]()
    with without_more_threads(), pytest.raises(RuntimeError, match="can't start new thread"):
        await threads.run(done.append, "never")
    waiting = threads.run(may_return.wait, PATIENCE_S)
    with without_more_threads():
        second = threads.run(done.append, "once")
    may_return.set()
    await asyncio.wait_for(asyncio.gather(waiting, second), PATIENCE_S)
    assert done == ["once"]
    threads.close()
