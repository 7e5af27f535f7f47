"""The table of timers: messages that become visible at a time of the replicated clock.

A timer makes messages of one block visible in one queue. Delayed messages and redeliveries use timers, as may anything
else that is to appear in a queue later. Timers are in the index and nowhere else; memory does not grow with their
number.

    - Timers are due in the order of (time, sequence); the sequence is the order in which they were scheduled.
    - A timer that `reserves` its ids keeps other batches from using them until it is due: it can be found by its
      explicit message ids, and by its batch id if it `holds_batch_id`. Other timers are only found by their time.
    - A timer is always due later than the clock of the entry that schedules it: messages due now need no timer.
"""

import itertools
from typing import Final, NamedTuple

import msgspec

from store.commands.messages import BatchHeader
from store.commands.views import Redelivery, ScheduledMessage, ScheduledPage
from store.errors import INVALID_REQUEST, Refused
from store.index import keys
from store.index.index import Index
from store.index.keys import KEY_HASH_BYTES
from store.limits import DELAY_MAX_MS
from store.messages.block_location import BlockLocation
from store.messages.dedupe import KnownMessage, SeenBatch
from store.messages.log_references import Holder, LogReferences

_NEVER: Final = keys.after(keys.TIMER)


class TimerKey(NamedTuple):
    """The key of a timer. Sorts in the order in which timers are due."""

    due_ms: int
    sequence: int


class Timer(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """The value of a timer in the index: `count` messages of a block of `block_count`, for one queue of a topic."""

    topic_id: int
    queue: int
    block: BlockLocation
    block_count: int
    count: int
    known: tuple[KnownMessage, ...]
    """The messages of the block that are left out, by ordinal: `count` and these add up to the block."""
    message_ids: tuple[str | None, ...] | None
    """Message ids as in a batch header; None also when no id is to be reserved."""
    reserves: bool
    scheduled_at_ms: int
    raft_index: int
    """Index of the entry that scheduled the timer."""
    transaction_id: str | None = None
    position: int | None = None
    """Index of the transaction's position that gets this timer's offset."""
    redelivery: Redelivery | None = None
    """Set for a timer that holds a single message of its block; `known` is empty then, and the timer reserves no ids.
    """
    holds_batch_id: bool = False
    """True if the timer also reserves its batch id, which was free when it was scheduled."""
    keys: tuple[bytes, ...] | None = None
    """Hashes of keys as in a batch header."""

    @property
    def skip(self) -> tuple[int, ...]:
        """Ordinals of the messages that are left out."""
        return tuple(message.ordinal for message in self.known)

    def ordinals(self) -> list[int]:
        """Return the ordinals of the messages that will be delivered."""
        if self.redelivery is not None:
            return [self.redelivery.only]
        skip = set(self.skip)
        return [ordinal for ordinal in range(self.block_count) if ordinal not in skip]

    def message_id(self, ordinal: int) -> str:
        explicit = self.message_ids[ordinal] if self.message_ids is not None else None
        return f"{self.block.batch_id}-{ordinal}" if explicit is None else explicit

    def reserved_ids(self) -> list[str]:
        """Return the explicit ids by which this timer is found in the table."""
        if not self.reserves or self.message_ids is None:
            return []
        skip = set(self.skip)
        return [each for ordinal, each in enumerate(self.message_ids) if each is not None and ordinal not in skip]

    def seen(self, due_ms: int) -> SeenBatch:
        """Return the batch as the dedupe check of a retry sees it: its content, and the answer."""
        block = self.block
        count = self.block_count
        return SeenBatch(count, block.crc32c, block.length, self.queue, None, self.count, self.known, due_ms)


class TimerCounters(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """Replicated counters: how many timers and messages wait, and how many of the timers reserve their ids."""

    next_sequence: int = 0
    pending: int = 0
    messages: int = 0
    reserving: int = 0


class Found(NamedTuple):
    """A waiting message: its timer, and its ordinal in the timer's block."""

    key: TimerKey
    timer: Timer
    ordinal: int


_encode = msgspec.msgpack.Encoder().encode
decode_timer = msgspec.msgpack.Decoder(Timer).decode
_encode_key = msgspec.msgpack.Encoder().encode
_decode_key = msgspec.msgpack.Decoder(TimerKey).decode


class Timers:
    def __init__(self, index: Index, counters: TimerCounters, references: LogReferences) -> None:
        self._index = index
        self._references = references
        self.counters = counters
        self._first = keys.TIMER
        """No timer sorts before this key. Scans begin here: RocksDB would have to visit every deleted timer before it
        each time.
        """
        self._first_is_timer = False

    # Changes, during apply.

    def schedule(self, due_ms: int, timer: Timer) -> TimerKey:
        """Store a timer. The ids that the timer reserves must be free."""
        counters = self.counters
        key = TimerKey(due_ms, counters.next_sequence)
        counters.next_sequence += 1
        counters.pending += 1
        counters.messages += timer.count
        topic_id = timer.topic_id
        counters.reserving += timer.reserves
        if timer.holds_batch_id:
            self._index.put(keys.timer_of_batch(topic_id, timer.block.batch_id), _encode_key(key))
        encoded = _encode_key(key)
        self._index.put_all([(each, encoded) for each in keys.timer_of_messages(topic_id, timer.reserved_ids())])
        self._index.put(keys.topic_timer(topic_id, *key), b"")
        stored = keys.timer(*key)
        self._index.put(stored, _encode(timer))
        self._references.add(timer.block, Holder.SCHEDULED)
        if stored < self._first:
            self._first, self._first_is_timer = stored, True
        return key

    def remove(self, key: TimerKey, timer: Timer) -> None:
        """Remove a timer, and free its ids. Reads nothing: when many timers are due, a read for each would be slow."""
        counters = self.counters
        counters.pending -= 1
        counters.messages -= timer.count
        topic_id = timer.topic_id
        counters.reserving -= timer.reserves
        if timer.holds_batch_id:
            self._index.delete(keys.timer_of_batch(topic_id, timer.block.batch_id))
        self._index.delete_all(keys.timer_of_messages(topic_id, timer.reserved_ids()))
        self._index.delete(keys.topic_timer(topic_id, *key))
        stored = keys.timer(*key)
        self._index.delete(stored)
        self._references.remove(timer.block, Holder.SCHEDULED)
        if stored == self._first:
            self._first_is_timer = False

    def of_topic(self, topic_id: int, limit: int) -> list[tuple[TimerKey, Timer]]:
        """Return the first timers of a topic, which may be deleted, at most `limit`."""
        prefix = keys.topic_timers_by_time(topic_id)
        found = itertools.islice(self._index.scan(prefix, keys.after(prefix)), limit)
        timer_keys = [TimerKey(*keys.topic_timer_parts(key)) for key, _ in found]
        return [(key, self._existing(key)) for key in timer_keys]

    def leave_out(self, found: Found) -> Timer:
        """Store the timer without one of its messages, whose explicit id is free again; return the new timer."""
        key, timer, ordinal = found
        if timer.message_ids is not None and timer.message_ids[ordinal] is not None:
            self._index.delete(keys.timer_of_message(timer.topic_id, timer.message_id(ordinal)))
        without = left_out(found)
        self.counters.messages -= 1
        self._index.put(keys.timer(*key), _encode(without))
        return without

    # Queries.

    def due(self, until_ms: int, limit: int, ids_max: int) -> list[tuple[TimerKey, Timer]]:
        """Return the first timers that are due at or before `until_ms`, at most `limit`. Together they have at most
        `ids_max` explicit ids, a timer without ids counting as one; a first timer with more ids is returned alone.
        """
        due: list[tuple[TimerKey, Timer]] = []
        ids = 0
        for key, value in self._index.scan(self._first, keys.timer(until_ms + 1, 0)):
            timer = decode_timer(value)
            ids += max(1, len(timer.message_ids or ()))
            if len(due) >= limit or (due and ids > ids_max):
                break
            if not due:
                self._first, self._first_is_timer = key, True
            due.append((TimerKey(*keys.timer_parts(key)), timer))
        return due

    def due_within(self, until_ms: int, limit: int, writes_max: int) -> int:
        """Return how many of the first timers that are due at or before `until_ms`, at most `limit`, have together at
        most `writes_max` keys and explicit ids; at least one if any is due.
        """
        count = writes = 0
        for _, value in self._index.scan(self._first, keys.timer(until_ms + 1, 0)):
            timer = decode_timer(value)
            writes += sum(map(len, timer.keys or ())) // KEY_HASH_BYTES + len(timer.message_ids or ())
            if count >= limit or (count and writes > writes_max):
                break
            count += 1
        return count

    def next_due_ms(self) -> int | None:
        """Return when the next timer is due; None when there is none. Mostly cached, at worst an index seek."""
        if self.counters.pending == 0:
            return None
        if not self._first_is_timer:
            found = next(self._index.scan(self._first, _NEVER), None)
            if found is None:
                raise AssertionError(f"{self.counters.pending} timers are counted and none is there")
            self._first, self._first_is_timer = found[0], True
        return keys.timer_parts(self._first)[0]

    def batch(self, topic_id: int, batch_id: str) -> SeenBatch | None:
        """Return the waiting batch that has reserved this id; None if there is none."""
        if self.counters.reserving == 0:
            return None
        key = self._key_at(keys.timer_of_batch(topic_id, batch_id))
        return self._existing(key).seen(key.due_ms) if key is not None else None

    def message(self, topic_id: int, message_id: str, ordinal: int, queues: dict[TimerKey, int]) -> KnownMessage | None:
        """Return where the waiting message with this explicit id will be, as the KnownMessage of `ordinal`; None if
        none waits. `queues` keeps the queues of timers for the next ids of a request: a timer may have them all.
        """
        if self.counters.reserving == 0:
            return None
        key = self._key_at(keys.timer_of_message(topic_id, message_id))
        if key is None:
            return None
        if key not in queues:
            queues[key] = self._existing(key).queue
        return KnownMessage(ordinal, queues[key], None, key.due_ms)

    def find(self, topic_id: int, message_id: str) -> Found | None:
        """Return the waiting message with this id, explicit or `<batch_id>-<ordinal>`, if its timer reserves ids."""
        key = self._key_at(keys.timer_of_message(topic_id, message_id))
        if key is not None:
            timer = self._existing(key)
            skip = timer.skip
            for ordinal, explicit in enumerate(timer.message_ids or ()):
                if explicit == message_id and ordinal not in skip:
                    return Found(key, timer, ordinal)
            raise AssertionError(f"timer {key} does not hold message {message_id}")
        batch_id, _, number = message_id.rpartition("-")
        key = self._key_at(keys.timer_of_batch(topic_id, batch_id))
        if key is None or not (number.isascii() and number.isdigit()) or len(number) > 9:
            return None
        timer, ordinal = self._existing(key), int(number)
        if ordinal >= timer.block_count or timer.message_id(ordinal) != message_id or ordinal in timer.skip:
            return None
        return Found(key, timer, ordinal)

    def page(self, topic_id: int, limit: int, after: str | None) -> ScheduledPage:
        """Return the topic's waiting messages by due time, continuing at `after`, the `next` of an earlier page.
        Refused (`invalid_request`) for any other `after`.
        """
        start = _parse_cursor(after) if after is not None else (TimerKey(0, 0), -1)
        messages: list[ScheduledMessage] = []
        last = start
        begin = keys.topic_timer(topic_id, *start[0])
        for stored, _ in self._index.scan(begin, keys.after(keys.topic_timers_by_time(topic_id))):
            key = TimerKey(*keys.topic_timer_parts(stored))
            timer = self._existing(key)
            first = start[1] + 1 if key == start[0] else 0
            for ordinal in timer.ordinals():
                if ordinal < first:
                    continue
                if len(messages) == limit:
                    return ScheduledPage(tuple(messages), f"{last[0].due_ms}-{last[0].sequence}-{last[1]}")
                messages.append(
                    ScheduledMessage(
                        timer.message_id(ordinal), timer.queue, key.due_ms, timer.scheduled_at_ms, timer.transaction_id
                    )
                )
                last = (key, ordinal)
        return ScheduledPage(tuple(messages), None)

    def _key_at(self, lookup: bytes) -> TimerKey | None:
        value = self._index.get(lookup)
        return _decode_key(value) if value is not None else None

    def _existing(self, key: TimerKey) -> Timer:
        value = self._index.get(keys.timer(*key))
        if value is None:
            raise AssertionError(f"timer {key} is referred to and does not exist")
        return decode_timer(value)


def left_out(found: Found) -> Timer:
    """Return the timer without the message; `count` may be 0 then."""
    key, timer, ordinal = found
    known = sorted((*timer.known, KnownMessage(ordinal, timer.queue, None, key.due_ms)), key=_ordinal_of)
    return msgspec.structs.replace(timer, count=timer.count - 1, known=tuple(known))


def due_ms_of(header: BatchHeader, clock_ms: int) -> int | None:
    """Return when a batch that is placed now becomes visible; None for at once."""
    delay_ms = header.delay_ms
    due_ms = header.deliver_at_ms if delay_ms is None else clock_ms + delay_ms
    return due_ms if due_ms is not None and due_ms > clock_ms else None


def check_delay(header: BatchHeader, clock_ms: int) -> None:
    """Refuse (`invalid_request`) a batch that asks for two times, or for a time that is too far away."""
    if header.deliver_at_ms is not None and header.delay_ms is not None:
        raise Refused(INVALID_REQUEST, f"batch {header.batch_id}: deliver_at_ms or delay_ms, not both")
    delay_ms = header.delay_ms
    if header.deliver_at_ms is not None:
        delay_ms = max(0, header.deliver_at_ms - clock_ms)
    if delay_ms is not None and not 0 <= delay_ms <= DELAY_MAX_MS:
        raise Refused(
            INVALID_REQUEST,
            f"batch {header.batch_id}: a message waits at most {DELAY_MAX_MS} ms (40 days), not {delay_ms} ms",
        )


def _ordinal_of(message: KnownMessage) -> int:
    return message.ordinal


def _parse_cursor(cursor: str) -> tuple[TimerKey, int]:
    parts = cursor.split("-")
    # 19 digits always fit the 64 bits of a key.
    if len(parts) != 3 or not all(part.isascii() and part.isdigit() and len(part) <= 19 for part in parts):
        raise Refused(INVALID_REQUEST, f"after: {cursor!r} is not the `next` of a listing")
    due_ms, sequence, ordinal = map(int, parts)
    return TimerKey(due_ms, sequence), ordinal
