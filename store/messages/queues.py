"""Consume queues: one row per visible batch, with dense offsets, in order.

A row gives the place of the batch's message block in the commit log; the block itself is never copied. `stored_at_ms`
never falls within a queue (it is the replicated clock), so a binary search over offsets finds an offset by time.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from store.commands.views import QueueRange, Redelivery, Row
from store.index import keys
from store.index.index import Index
from store.messages.block_location import BlockLocation
from store.messages.log_references import Holder, LogReferences
from store.messages.topics import SYSTEM_TOPICS, Topic, Topics


class _Value(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    block: BlockLocation
    count: int
    stored_at_ms: int
    raft_index: int
    transaction_id: str | None
    skip: tuple[int, ...]
    redelivery: Redelivery | None = None


_decode = msgspec.msgpack.Decoder(_Value).decode
_encode = msgspec.msgpack.Encoder().encode


class RemovedRow(NamedTuple):
    """A row that was removed from the front of a queue."""

    base_offset: int
    messages: int
    batch_id: str


class Unshown:
    """Messages that have rows and offsets, and that no query sees: their queues end before them until `Queues.show`."""

    def __init__(self) -> None:
        self.rows: list[tuple[Topic, int, int, int]] = []
        """Topic, queue, number of messages and bytes of the block of each row, in the order of their places."""
        self._ends: dict[tuple[int, int], int] = {}

    def end(self, topic: Topic, queue: int) -> int:
        """Return the offset behind the last message, as it will be."""
        return self._ends.get((topic.id, queue), topic.ends[queue])

    def add(self, topic: Topic, queue: int, count: int, row_bytes: int) -> int:
        """Take `count` offsets for a row whose block has `row_bytes`; return the first one."""
        base_offset = self.end(topic, queue)
        self._ends[topic.id, queue] = base_offset + count
        self.rows.append((topic, queue, count, row_bytes))
        return base_offset


class OfTransaction(NamedTuple):
    """The transaction that a batch was committed with, and the batch's index among the transaction's positions."""

    transaction_id: str
    position: int
    unshown: Unshown
    """Messages that become visible once all batches of the transaction are placed; delayed ones are scheduled first."""


class Queues:
    def __init__(self, index: Index, topics: Topics, references: LogReferences) -> None:
        self._index = index
        self._topics = topics
        self._references = references
        self._grown: dict[tuple[str, int], None] = {}
        """Queues that grew, by topic and number: a dict used as a set, in the order of their first growth."""
        self._appended: dict[str, list[int]] = {}
        """Messages, and bytes of their blocks, that were appended since they were last asked for, by topic."""
        self._taken_messages = 0
        """Number of messages of which `take_appended` has told, without those of the system's topics."""

    def append(
        self,
        topic: Topic,
        queue: int,
        block: BlockLocation,
        count: int,
        *,
        stored_at_ms: int,
        raft_index: int,
        transaction_id: str | None = None,
        skip: tuple[int, ...] = (),
        redelivery: Redelivery | None = None,
        unshown: Unshown | None = None,
    ) -> int:
        """Make `count` messages of a block visible, or with `unshown` add them to that; return the offset of the first
        one.
        """
        if unshown is not None:
            base_offset = unshown.add(topic, queue, count, block.length)
        else:
            base_offset = self._topics.advance(topic, queue, count, block.length)
            self._note_appended(topic, queue, count, block.length)
        value = _Value(block, count, stored_at_ms, raft_index, transaction_id, skip, redelivery)
        self._index.put(keys.row(topic.id, queue, base_offset), _encode(value))
        self._references.add(block, topic.holder)
        return base_offset

    def show(self, unshown: Unshown) -> None:
        """Make all messages of `unshown` visible at once. The end of a queue moves once for each row: at level 1 each
        move is a write, and replicas compare the writes of an entry.
        """
        for topic, queue, count, row_bytes in unshown.rows:
            self._topics.advance(topic, queue, count, row_bytes)
            self._note_appended(topic, queue, count, row_bytes)

    def _note_appended(self, topic: Topic, queue: int, count: int, row_bytes: int) -> None:
        self._grown[topic.name, queue] = None
        appended = self._appended.get(topic.name)
        if appended is None:
            appended = self._appended[topic.name] = [0, 0]
        appended[0] += count
        appended[1] += row_bytes

    @property
    def appended_messages(self) -> int:
        """Number of messages that became visible in topics since these queues were loaded. Not part of the state."""
        return self._taken_messages + sum(
            messages for topic, (messages, _) in self._appended.items() if topic not in SYSTEM_TOPICS
        )

    def take_appended(self) -> dict[str, list[int]]:
        """Return how many messages, and how many bytes of blocks, were appended to each topic since the last call. Not
        part of the state: it counts the messages that this process has applied.
        """
        self._taken_messages = self.appended_messages
        appended, self._appended = self._appended, {}
        return appended

    def take_grown(self) -> tuple[tuple[str, int], ...]:
        """Return topic and number of each queue that was appended to since the last call."""
        grown = tuple(self._grown)
        self._grown.clear()
        return grown

    def expire(self, topic: Topic, queue: int, until_ms: int, limit: int) -> list[RemovedRow]:
        """Remove the first rows of the queue stored at or before `until_ms`, at most `limit`, and move the queue's
        start.
        """
        return self._remove_first(topic, queue, limit, lambda _, value: value.stored_at_ms <= until_ms)

    def shrink(self, topic: Topic, queue: int, until_ms: int, before_index: int, limit: int) -> list[RemovedRow]:
        """Remove the first rows of the queue stored at or before `until_ms` by entries before `before_index`, at most
        `limit`, as long as the topic has its `retention_bytes` of messages left.
        """

        def may_go(key: bytes, value: _Value) -> bool:
            left = topic.kept_bytes - self._counted(topic, queue, key, value)
            is_older = value.stored_at_ms <= until_ms and value.raft_index < before_index
            return is_older and left >= topic.retention_bytes

        return self._remove_first(topic, queue, limit, may_go)

    def purge(self, topic: Topic, queue: int) -> int:
        """Move the queue's start to its end; return how many messages are gone. Their rows are removed later."""
        messages = topic.ends[queue] - topic.starts[queue]
        if messages:
            self._topics.purge(topic, queue)
            topic.first_stored_at_ms.pop(queue, None)
        return messages

    def remove_purged(self, topic: Topic, queue: int, limit: int) -> list[RemovedRow]:
        """Remove rows of a purged queue, at most `limit`."""
        removed: list[RemovedRow] = []
        begin, end = self._topics.purged[topic.id, queue], topic.starts[queue]
        for key, data in self._index.scan(keys.row(topic.id, queue, begin), keys.row(topic.id, queue, end)):
            if len(removed) >= limit:
                break
            value = _decode(data)
            removed.append(RemovedRow(keys.row_base_offset(key), value.count, value.block.batch_id))
            self._remove(key, value, topic.holder)
        begin = removed[-1].base_offset + removed[-1].messages if removed else end
        self._topics.set_purged(topic, queue, begin if begin < end else None)
        return removed

    def count_bytes(self, topic: Topic, queue: int, limit: int) -> int:
        """Count the bytes of rows that were stored before bytes were counted, from the last of them on, at most
        `limit`; return their number.
        """
        rows, start = 0, topic.starts[queue]
        while rows < limit and topic.counted_from[queue] > start:
            begin, end = keys.row(topic.id, queue, start), keys.row(topic.id, queue, topic.counted_from[queue])
            found = self._index.last(begin, end)
            assert found is not None, "offsets have no gaps"
            topic.add_bytes(queue, _decode(found[1]).block.length)
            topic.counted_from[queue] = keys.row_base_offset(found[0])
            rows += 1
        if rows:
            self._topics.store_end(topic, queue)
        return rows

    def _counted(self, topic: Topic, queue: int, key: bytes, value: "_Value") -> int:
        """Return the bytes of a row that are counted."""
        return value.block.length if keys.row_base_offset(key) >= topic.counted_from[queue] else 0

    def release(self, topic: Topic, may_go: Callable[[Row], bool], limit: int) -> list[RemovedRow]:
        """Remove the first rows of a system topic's only queue while `may_go` allows it, at most `limit`."""
        return self._remove_first(topic, 0, limit, lambda key, value: may_go(_row(key, value)))

    def first_row(self, topic: Topic, queue: int) -> Row | None:
        """Return the first kept row, found by an index seek; None for an empty queue."""
        if topic.starts[queue] == topic.ends[queue]:
            return None
        first = next(self._kept_rows(topic, queue), None)  # None also if the topic was deleted meanwhile
        return None if first is None else _row(*first)

    def _remove_first(
        self, topic: Topic, queue: int, limit: int, may_go: Callable[[bytes, "_Value"], bool]
    ) -> list[RemovedRow]:
        removed: list[RemovedRow] = []
        before_bytes = topic.kept_bytes
        for key, value in self._kept_rows(topic, queue):
            if len(removed) >= limit or not may_go(key, value):
                break
            topic.add_bytes(queue, -self._counted(topic, queue, key, value))
            removed.append(RemovedRow(keys.row_base_offset(key), value.count, value.block.batch_id))
            self._remove(key, value, topic.holder)
        if removed:
            if topic.kept_bytes != before_bytes:
                self._topics.store_end(topic, queue)
            self._topics.set_start(topic, queue, removed[-1].base_offset + removed[-1].messages)
            topic.first_stored_at_ms.pop(queue, None)
        return removed

    def remove_dropped(self, topic_id: int, holder: Holder, limit: int) -> int:
        """Remove rows of a deleted topic, at most `limit`; return how many rows were removed."""
        removed = 0
        prefix = keys.rows(topic_id)
        for key, data in self._index.scan(prefix, keys.after(prefix)):
            if removed >= limit:
                break
            self._remove(key, _decode(data), holder)
            removed += 1
        return removed

    def first_stored_at_ms(self, topic: Topic, queue: int) -> int | None:
        """Return when the first kept message was stored; None for an empty queue. Mostly cached, at worst an index
        seek.
        """
        if topic.starts[queue] == topic.ends[queue]:
            return None
        known = topic.first_stored_at_ms.get(queue)
        if known is None:
            _, value = next(self._kept_rows(topic, queue))
            topic.first_stored_at_ms[queue] = known = value.stored_at_ms
        return known

    def _kept_rows(self, topic: Topic, queue: int) -> Iterator[tuple[bytes, "_Value"]]:
        """Yield the kept rows.

        The scan begins at the queue's start: before it, removed rows would have to be skipped.
        """
        begin, end = keys.row(topic.id, queue, topic.starts[queue]), keys.row(topic.id, queue, topic.ends[queue])
        for key, data in self._index.scan(begin, end):
            yield key, _decode(data)

    def _remove(self, key: bytes, value: "_Value", holder: Holder) -> None:
        self._index.delete(key)
        self._references.remove(value.block, holder)

    def rows(self, topic: Topic, queue: int, offset: int, max_rows: int, max_bytes: int) -> list[Row]:
        offset = max(offset, topic.starts[queue])
        if offset >= topic.ends[queue]:
            return []
        holding = self.row_at(topic, queue, offset)
        begin = keys.row(topic.id, queue, holding.base_offset if holding is not None else offset)
        rows: list[Row] = []
        size = 0
        for key, value in self._index.scan(begin, keys.row(topic.id, queue, topic.ends[queue])):
            row = _row(key, _decode(value))
            size += row.unpacked_bytes
            if rows and (size > max_bytes or len(rows) >= max_rows):
                break
            rows.append(row)
        return rows

    def range(self, topic: Topic, queue: int) -> QueueRange:
        return QueueRange(queue, topic.starts[queue], topic.ends[queue])

    def offset_at(self, topic: Topic, queue: int, timestamp_ms: int) -> tuple[int, int | None]:
        """Return offset and stored_at_ms of the first message stored at or after `timestamp_ms`; (end, None) if there
        is none.
        """
        found = self.range(topic, queue)
        low, high = found.min_offset, found.max_offset
        stored_at_ms: int | None = None
        while low < high:
            row = self.row_at(topic, queue, (low + high) // 2)
            if row is None or row.stored_at_ms < timestamp_ms:
                low = row.next_offset if row is not None else (low + high) // 2 + 1
            else:
                high, stored_at_ms = row.base_offset, row.stored_at_ms
        return low, stored_at_ms

    def row_at(self, topic: Topic, queue: int, offset: int) -> Row | None:
        """Return the last row that begins at or before `offset`; None before the start of the queue."""
        start = topic.starts[queue]
        if offset < start:
            return None
        found = self._index.last(keys.row(topic.id, queue, start), keys.row(topic.id, queue, offset + 1))
        return _row(found[0], _decode(found[1])) if found is not None else None


def _row(key: bytes, value: _Value) -> Row:
    block = value.block
    return Row(
        base_offset=keys.row_base_offset(key),
        position=block.position,
        block_offset=block.offset,
        block_length=block.length,
        count=value.count,
        crc32c=block.crc32c,
        batch_id=block.batch_id,
        stored_at_ms=value.stored_at_ms,
        raft_index=value.raft_index,
        transaction_id=value.transaction_id,
        skip=value.skip,
        encoding=block.encoding,
        uncompressed_bytes=block.uncompressed_bytes,
        redelivery=value.redelivery,
        inline=block.inline,
    )
