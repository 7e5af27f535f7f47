"""Consumer groups that must not skip, whose members crash, leave and join; and readers that read anywhere."""

import abc
import asyncio
import contextlib
from collections.abc import Sequence
from typing import Final

import aiohttp

import keelmq
from keelmq.blocks.batch import decode_block
from keelmq.errors import Closed
from keelmq.wire import MSGPACK, PullResponse, decode
from tests.chaos.progress import GroupProgress
from tests.chaos.violations import Kind
from tests.chaos.workloads.worker import TOPICS, Field, paced

GROUP: Final = "chaos-group"
SESSION_TIMEOUT_MS: Final = 3_000
CHURN_S: Final = (3.0, 9.0)
FAILING_HANDLERS_SHARE: Final = 0.01
READ_BYTES: Final = 256 << 10
READ_TIMEOUT_S: Final = 2.0


class HandlerFailed(Exception):
    """Raised by a handler at random: its messages are not processed and must come again."""


class Members(abc.ABC):
    """Runs `members` consumers of a group. From time to time one crashes (and is expired later) or leaves, and another
    joins.
    """

    def __init__(self, field: Field, members: int, name: str) -> None:
        self._field = field
        self._members = members
        self._rng = field.rng(name)

    @abc.abstractmethod
    def _consumer(self, connection: keelmq.Connection) -> keelmq.Consumer: ...

    async def run(self, stop: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as tasks:
            for member in range(self._members):
                # One member stays, so that some sessions live through everything.
                tasks.create_task(self._stay(stop) if member == 0 else self._come_and_go(stop))

    async def _stay(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await self._one_life(stop, crash=False)

    async def _come_and_go(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            life = asyncio.Event()
            timer = asyncio.get_running_loop().call_later(self._rng.uniform(*CHURN_S), life.set)
            watch = asyncio.create_task(_set_when(stop, life))
            await self._one_life(life, crash=self._rng.random() < 0.5 and not stop.is_set())
            timer.cancel()
            watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watch

    async def _one_life(self, end: asyncio.Event, crash: bool) -> None:
        connection = keelmq.Connection(self._field.urls)
        consumer = self._consumer(connection)
        work = asyncio.create_task(consumer.run())
        over = asyncio.create_task(end.wait())
        await asyncio.wait((work, over), return_when=asyncio.FIRST_COMPLETED)
        if crash:
            connection.close()  # no commit, no goodbye: the session has to expire
        over.cancel()
        await consumer.close()
        try:
            await work
        except keelmq.KeelMQError as error:
            if not error.retryable and not isinstance(error, Closed):
                self._field.violations.add(Kind.CONTRACT, f"a consumer cannot go on: {error}")
        finally:
            connection.close()


class Group(Members):
    """A group that consumes all topics in whole batches; failed batches are tried again in place."""

    def __init__(self, field: Field, members: int) -> None:
        super().__init__(field, members, "group")
        self.progress = GroupProgress(GROUP, field.violations)

    def _consumer(self, connection: keelmq.Connection) -> keelmq.Consumer:
        return keelmq.Consumer(
            self._field.urls,
            GROUP,
            list(TOPICS),
            batch_handler=self._handle,
            start="earliest",
            max_messages=500,
            wait_ms=2_000,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            connection=connection,
        )

    async def _handle(self, messages: Sequence[keelmq.ReceivedMessage]) -> None:
        if self._rng.random() < FAILING_HANDLERS_SHARE:
            raise HandlerFailed
        for message in messages:
            place = (message.topic, message.queue)
            self._field.reads.read(place, message.offset, message.body, GROUP)
            self.progress.finished(place, message.offset)


class Readers:
    """Pulls at any offset of any queue on any node: followers and old leaders answer too."""

    def __init__(self, field: Field, interval_s: float) -> None:
        self._field = field
        self._interval_s = interval_s
        self._rng = field.rng("readers")

    async def run(self, stop: asyncio.Event) -> None:
        timeout = aiohttp.ClientTimeout(total=READ_TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            await paced(lambda: self._read(session), self._interval_s, stop)

    async def _read(self, session: aiohttp.ClientSession) -> None:
        topic = self._rng.choice(list(TOPICS))
        queue = self._rng.randrange(TOPICS[topic])
        end = self._field.reads.places().get((topic, queue), 0)
        # Mostly near the end: messages read there must still be there after the next election.
        offset = max(0, end - self._rng.randint(0, 50)) if self._rng.random() < 0.7 else self._rng.randint(0, end)
        url = self._rng.choice(self._field.urls)
        path = f"/v1/topics/{topic}/queues/{queue}/messages?offset={offset}&max_messages=1000&max_bytes={READ_BYTES}"
        try:
            async with session.get(url + path, headers={"Accept": MSGPACK}) as response:
                if response.status == 200:
                    self._take(topic, queue, await response.read(), url)
        except (aiohttp.ClientError, OSError, TimeoutError):
            return

    def _take(self, topic: str, queue: int, body: bytes, url: str) -> None:
        for batch in decode(PullResponse, body, MSGPACK).batches:
            offset = batch.base_offset
            messages = decode_block(batch.block, batch.crc32c, batch.uncompressed_bytes)
            for ordinal, message in enumerate(messages):
                if ordinal not in batch.skip:
                    self._field.reads.read((topic, queue), offset, message.body, f"a reader at {url}")
                    offset += 1


async def _set_when(first: asyncio.Event, then: asyncio.Event) -> None:
    await first.wait()
    then.set()
