"""KeelMQ's load generator: `python -m tests.bench.peers.keelmq_load URLS`. The SDK in one process, like an application.

It answers as tests/bench/peers/client.py says.
"""

import asyncio
import json
import math
import secrets
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import keelmq
from tests.bench.bodies import Bodies
from tests.bench.peers.client import PREFIX
from tests.bench.peers.histogram import bucket_of
from tests.bench.peers.rows import Row

TOPIC: Final = "bench"
TRANSACTION_TOPIC: Final = "bench-transactions"
QUEUES: Final = 4
SEND_TIMEOUT_MS: Final = 30_000
SETTLE_TIMEOUT_MS: Final = 60_000
SETTLED_SENDS: Final = 20
CONSUMER_BATCH: Final = 256
DRAIN_TIMEOUT_S: Final = 60.0

Send = Callable[[], Awaitable[int]]
"""One send, batch or transaction; returns how many messages were acknowledged."""


class Meter:
    """Counts what is acknowledged between begin and end; end to end also what is consumed after the end.

    A consumer that falls behind is slow: without its late messages it would look fast.
    """

    def __init__(self, request: dict[str, Any]) -> None:
        self.begin_s: float = time.perf_counter() + request["warm_up_s"]
        self._seconds: float = request["seconds"]
        self.end_s: float = self.begin_s + self._seconds
        self._counts_until_s = math.inf if request["kind"] == "end-to-end" else self.end_s
        self._messages = self._all = self._errors = 0
        self._error = ""
        self._buckets: dict[int, int] = {}
        asyncio.get_running_loop().call_later(request["warm_up_s"], say, "begin")

    def over(self) -> bool:
        return time.perf_counter() >= self.end_s

    def add(self, sent_s: float, count: int) -> None:
        now_s = time.perf_counter()
        self._all += count
        if self.begin_s <= now_s < self._counts_until_s:
            self._messages += count
            bucket = bucket_of((now_s - sent_s) * 1_000)
            self._buckets[bucket] = self._buckets.get(bucket, 0) + count

    def fail(self, error: Exception) -> None:
        self._errors += 1
        self._error = repr(error)

    def until_now(self) -> None:
        """Let the measured seconds end now, when the last message was consumed."""
        self._seconds = time.perf_counter() - self.begin_s

    def result(self) -> str:
        counts = {"messages": self._messages, "seconds": self._seconds, "all_messages": self._all}
        return json.dumps(counts | {"errors": self._errors, "error": self._error, "buckets": self._buckets})


class KeelmqLoad:
    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = urls

    async def prepare(self) -> None:
        connection = keelmq.Connection(self._urls)
        try:
            admin = keelmq.Admin(connection)
            await admin.put_topic(TOPIC, queues=QUEUES)
            await admin.put_topic(TRANSACTION_TOPIC, queues=QUEUES, type="transaction")
        finally:
            connection.close()
        await self.settle()

    async def settle(self) -> None:
        bodies = Bodies(100)
        async with keelmq.Producer(self._urls, send_timeout_ms=SETTLE_TIMEOUT_MS) as producer:
            for _ in range(SETTLED_SENDS):
                await producer.send(TOPIC, bodies.next())

    async def run(self, row: Row, meter: Meter) -> None:
        if row.kind == "end-to-end":
            await self._end_to_end(row, meter)
        elif row.kind == "transactions":
            await self._transactions(row, meter)
        else:
            async with keelmq.Producer(self._urls, send_timeout_ms=SEND_TIMEOUT_MS) as producer:
                await _repeat(_sender(producer, row), row.at_once, meter)

    async def _transactions(self, row: Row, meter: Meter) -> None:
        bodies = Bodies(row.bytes)

        async def nothing(transaction: keelmq.Transaction) -> None:
            """The local transaction; it is empty, since the time of a database is not measured."""

        async def check(transaction: keelmq.Transaction) -> keelmq.Decision:
            return keelmq.Decision.COMMIT

        producer = keelmq.TransactionProducer(self._urls, "bench", check=check, send_timeout_ms=SEND_TIMEOUT_MS)
        async with producer:

            async def transact() -> int:
                message = keelmq.Message(topic=TRANSACTION_TOPIC, body=bodies.next())
                result = await producer.execute(message, nothing)
                return 1 if result.outcome is keelmq.Outcome.COMMITTED else 0

            await _repeat(transact, row.at_once, meter)

    async def _end_to_end(self, row: Row, meter: Meter) -> None:
        """Send batches while a group takes them; their first eight bytes tell when they were made."""
        sent = taken = 0

        async def take(messages: Sequence[keelmq.ReceivedMessage]) -> None:
            nonlocal taken
            taken += len(messages)
            for message in messages:
                meter.add(int.from_bytes(message.body[:8], "big") / 1e9, 1)

        group = f"bench-{secrets.token_hex(4)}"
        consumer = keelmq.Consumer(
            self._urls, group, TOPIC, batch_handler=take, max_messages=CONSUMER_BATCH, start="latest", concurrency=4
        )
        bodies = Bodies(row.bytes)
        async with keelmq.Producer(self._urls, send_timeout_ms=SEND_TIMEOUT_MS) as producer, consumer:

            async def send() -> int:
                nonlocal sent
                stamp = time.perf_counter_ns()
                result = await producer.send_batch(TOPIC, [bodies.next(stamp) for _ in range(row.batch)])
                sent += result.count  # not in one statement: other tasks add meanwhile
                return 0

            await _repeat(send, row.at_once, meter)
            async with asyncio.timeout(DRAIN_TIMEOUT_S):
                while taken < sent:
                    await asyncio.sleep(0.001)
            meter.until_now()


def _sender(producer: keelmq.Producer, row: Row) -> Send:
    bodies = Bodies(row.bytes)

    async def send() -> int:
        await producer.send(TOPIC, bodies.next())
        return 1

    async def send_batch() -> int:
        return (await producer.send_batch(TOPIC, bodies.batch(row.batch))).count

    return send if row.batch == 1 else send_batch


async def _repeat(send: Send, at_once: int, meter: Meter) -> None:
    async def work() -> None:
        while not meter.over():
            sent_s = time.perf_counter()
            try:
                count = await send()
            except keelmq.KeelMQError as error:
                meter.fail(error)
                continue
            if count:
                meter.add(sent_s, count)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(at_once):
            tasks.create_task(work())


def say(line: str) -> None:
    print(PREFIX + line, flush=True)


async def _answer(load: KeelmqLoad, request: dict[str, Any]) -> None:
    if request["kind"] == "settle":
        await load.settle()
        say("settled")
        return
    meter = Meter(request)
    await load.run(Row(request["kind"], request["bytes"], request["at_once"], request["batch"]), meter)
    say("end")
    say(f"result {meter.result()}")


def main() -> None:
    load = KeelmqLoad(sys.argv[1].split(","))
    asyncio.run(load.prepare())
    say("ready")
    for line in sys.stdin:
        try:
            asyncio.run(_answer(load, json.loads(line)))
        except (keelmq.KeelMQError, TimeoutError, ExceptionGroup) as error:
            say(f"failed {error!r}")


if __name__ == "__main__":
    main()
