"""Finds messages: by id in one topic or in all, and by key or time in one topic.

The index names the places where a message may be, and the block there confirms it. A search looks at one message after
the other and lets other work on the event loop run in between.
"""

import heapq
from collections.abc import AsyncGenerator, Sequence
from typing import Final, NamedTuple

from cluster.budgets.pace import Pace
from cluster.core.core import Core
from cluster.messages.block_reader import BlockReader, FoundMessage, delivered
from cluster.messages.blocks import BlockMessage
from cluster.messages.pull_pages import SCAN_BYTES_MAX
from cluster.problems import Problem
from store.commands.views import Row
from store.errors import TOPIC_NOT_FOUND, Refused
from store.messages.message_index import KeyedMessage
from store.state.message_search import MessagePlace

ID_PLACES_MAX: Final = 64
"""Maximum number of places of one id in a topic that are looked at."""
KEYED_PER_READ: Final = 256
TOPICS_PER_READ: Final = 64
"""Number of topics that a search by id looks at in one step: nearly all have nothing with the id."""


class Stored(NamedTuple):
    """A visible message, and the row that holds it."""

    row: Row
    queue: int
    found: FoundMessage

    @property
    def place(self) -> KeyedMessage:
        return KeyedMessage(self.row.stored_at_ms, self.queue, self.found.offset)


class MessageFinder:
    """Searches messages for one request."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._reader = BlockReader(core)
        self._pace = Pace()
        self._scanned_bytes = 0

    @property
    def is_spent(self) -> bool:
        """True when the request has read, or unpacked, the maximum number of bytes."""
        return self._scanned_bytes > SCAN_BYTES_MAX or self._reader.is_spent

    async def by_id(
        self, topic: str | None, message_id: str
    ) -> AsyncGenerator[tuple[MessagePlace, BlockMessage | None]]:
        """Yield the place of each message with this id, with the message; None when only its trace is left."""
        state, after = self._core.state, None
        while True:
            names = [] if topic is None else [topic]
            if topic is None:
                names, after = state.topics_with_id(message_id, after, TOPICS_PER_READ)
            for name in names:
                if topic is None and state.topic(name) is None:  # deleted since
                    continue
                for place in state.message_places(name, message_id, ID_PLACES_MAX):
                    message = None
                    if place.block is not None:
                        await self._reader.load([place.block])
                        await self._reader.unpack(place.block, self._pace)
                        message = self._reader.messages(place.block)[place.ordinal]
                    if message is None or (message.message_id or f"{place.batch_id}-{place.ordinal}") == message_id:
                        yield place, message
                await self._rest()
            if after is None:
                return
            await self._rest()

    async def by_key(self, topic: str, key: str, begin: KeyedMessage, end_ms: int) -> AsyncGenerator[Stored]:
        """Yield the messages with this key from `begin` on, in time order. Raises Refused (`topic_not_found`) when the
        topic is deleted meanwhile, also if it was made anew.
        """
        state = self._core.state
        topic_id = state.topic_id(topic)
        while keyed := state.keyed_messages(topic, key, begin=begin, end_ms=end_ms, limit=KEYED_PER_READ):
            for _, queue, offset in keyed:
                self._require(topic, topic_id)
                row = state.row_of(topic, queue, offset)
                if row is not None:
                    found = await self._message(row, offset)
                    if key in found.message.keys:
                        yield Stored(row, queue, found)
                await self._rest()
            begin = _behind(keyed[-1])

    async def by_time(self, topic: str, begin: KeyedMessage, end_ms: int) -> AsyncGenerator[Stored]:
        """Yield the messages of all queues from `begin` on, in time order. Raises Refused as `by_key` does."""
        state = self._core.state
        topic_id = state.topic_id(topic)
        waiting: list[tuple[int, int, int]] = []
        for queue_range in state.queue_ranges(topic):
            queue = queue_range.queue
            self._require(topic, topic_id)
            offset, stored_at_ms = state.offset_at(topic, queue, begin.stored_at_ms)
            if stored_at_ms is not None:
                waiting.append((stored_at_ms, queue, offset))
            await self._rest()
        heapq.heapify(waiting)
        while waiting and waiting[0][0] < end_ms:
            _, queue, offset = heapq.heappop(waiting)
            self._require(topic, topic_id)
            row = state.row_of(topic, queue, offset)
            if row is None:  # removed meanwhile, with all before it: the queue goes on at its start
                start = state.min_offset(topic, queue)
                first = state.row_of(topic, queue, start) if start > offset else None
                if first is not None:
                    heapq.heappush(waiting, (first.stored_at_ms, queue, start))
                continue
            following = state.row_of(topic, queue, row.next_offset)
            if following is not None:
                heapq.heappush(waiting, (following.stored_at_ms, queue, following.base_offset))
            if KeyedMessage(row.stored_at_ms, queue, row.next_offset) <= begin:
                continue
            for found in delivered(row, await self._messages(row)):
                stored = Stored(row, queue, found)
                if stored.place >= begin:
                    yield stored
                await self._rest()

    def _require(self, topic: str, topic_id: int | None) -> None:
        """Raise Refused unless the topic still has this id: places found in a deleted topic mean nothing in its
        successor."""
        if self._core.state.topic_id(topic) != topic_id:
            detail = f"topic {topic} was deleted while its messages were looked for; search again if it exists again"
            raise Refused(TOPIC_NOT_FOUND, detail, {"topic": topic})

    async def _message(self, row: Row, offset: int) -> FoundMessage:
        ordinal = row.ordinals()[offset - row.base_offset]
        message = (await self._messages(row))[ordinal]
        return FoundMessage(offset, message.message_id or f"{row.batch_id}-{ordinal}", message)

    async def _messages(self, row: Row) -> Sequence[BlockMessage]:
        await self._reader.load([row])
        if self._reader.reads_anew(row):
            self._scanned_bytes += row.block_bytes
            await self._reader.unpack(row, self._pace)
        return self._reader.messages(row)

    async def _rest(self) -> None:
        if self._pace.is_tired:
            await self._pace.rest()


def _behind(place: KeyedMessage) -> KeyedMessage:
    return place._replace(offset=place.offset + 1)


def message_not_found(message_id: str) -> Problem:
    detail = f"no message has the id {message_id}; an id is removed when the message's retention is over"
    return Problem("message_not_found", detail, {"message_id": message_id})
