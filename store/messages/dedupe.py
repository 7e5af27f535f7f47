"""The dedupe window: batch and message ids that became visible in the last DEDUPE_WINDOW_MS of the replicated clock,
and in any case the DEDUPE_MIN_ENTRIES youngest ids.

An id is remembered when its message gets its offset: at once for a plain produce, at the commit of a transaction for a
half message, when its timer fires for a delayed message (until then the timer holds the id, see timers.py). So an id
that was only ever in a rolled-back transaction can be used again, and an id that arrives twice, by any path, is
delivered once.

Each entry that remembers ids leaves one expiry record; each later entry removes at most EXPIRED_RECORDS_PER_ENTRY of
the oldest records that are out of the window, or too many. The remembered ids are thus a function of the log alone, and
the work per entry is bounded.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from store.commands.messages import BatchHeader
from store.index import keys
from store.index.index import Index
from store.limits import DEDUPE_MAX_ENTRIES, DEDUPE_MIN_ENTRIES, DEDUPE_WINDOW_MS

EXPIRED_RECORDS_PER_ENTRY: Final = 2
"""More than one, so that expiry catches up after a burst: an entry adds at most one expiry record."""
UNKNOWN_KEPT: Final = 4_096
"""Number of batch ids that were looked for in vain and are not looked for again: those of half messages are asked for
twice, at the half and at its commit.
"""


class KnownMessage(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """A message of a batch that was not appended with it, because its id was known, and the place of the message that
    has the id. `offset` is None if that message was waiting for its time.
    """

    ordinal: int
    queue: int
    offset: int | None
    deliver_at_ms: int | None = None


class SeenBatch(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """An accepted batch: its content, which tells a retry from another use of the id, and its place."""

    count: int
    crc32c: int
    length: int
    queue: int
    offset: int | None
    """Offset of the first message; None while the batch waits for its time, and when all of it was cancelled before."""
    appended: int
    """Number of messages appended for the batch; fewer than `count` when some of its explicit ids were known."""
    known: tuple[KnownMessage, ...] = ()
    """The messages that were not appended, by ordinal."""
    deliver_at_ms: int | None = None
    """The time the batch waits for; set when `offset` is None."""

    def is_of(self, header: BatchHeader) -> bool:
        return (self.count, self.crc32c, self.length) == (header.count, header.crc32c, header.length)


class SeenMessage(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    queue: int
    offset: int


class DedupeCounters(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """Replicated counters: expiry records are first_sequence <= s < next_sequence; together they hold `entries` ids."""

    first_sequence: int = 0
    next_sequence: int = 0
    entries: int = 0


_encode = msgspec.msgpack.Encoder().encode
_decode_batch = msgspec.msgpack.Decoder(SeenBatch).decode
_decode_message = msgspec.msgpack.Decoder(SeenMessage).decode
_decode_expiry = msgspec.msgpack.Decoder(tuple[int, list[bytes]]).decode


class DedupeWindow:
    def __init__(
        self,
        index: Index,
        counters: DedupeCounters,
        window_ms: int = DEDUPE_WINDOW_MS,
        max_entries: int = DEDUPE_MAX_ENTRIES,
        min_entries: int = DEDUPE_MIN_ENTRIES,
    ) -> None:
        self._index = index
        self.counters = counters
        self._window_ms = window_ms
        self._max_entries = max_entries
        self._min_entries = min_entries
        self._remembered: list[bytes] = []
        self._unknown: set[bytes] = set()
        """Keys of batch ids that are not in the index: `_remember` is all that adds one."""
        self._oldest: tuple[int, int] | None = None  # time and number of ids of the oldest expiry record, once read

    def batch(self, topic_id: int, batch_id: str) -> SeenBatch | None:
        key = keys.batch_id(topic_id, batch_id)
        if key in self._unknown:
            return None
        value = self._index.get(key)
        if value is not None:
            return _decode_batch(value)
        if len(self._unknown) >= UNKNOWN_KEPT:
            self._unknown.clear()
        self._unknown.add(key)
        return None

    def message(self, topic_id: int, message_id: str) -> SeenMessage | None:
        value = self._index.get(keys.message_id(topic_id, message_id))
        return _decode_message(value) if value is not None else None

    def messages(self, topic_id: int, message_ids: Iterable[str | None]) -> dict[str, SeenMessage]:
        """Return the place of each id that is known. A request may have thousands of ids, most of them new."""
        prefix, get = keys.message_ids(topic_id), self._index.get
        found = [(each, get(prefix + each.encode())) for each in message_ids if each is not None]
        return {message_id: _decode_message(value) for message_id, value in found if value is not None}

    def remember_batch(self, topic_id: int, batch_id: str, seen: SeenBatch) -> None:
        """Remember a batch id. The id must not be known."""
        self._remember(keys.batch_id(topic_id, batch_id), _encode(seen))

    def remember_messages(self, topic_id: int, seen: Iterable[tuple[str, SeenMessage]]) -> None:
        """Remember message ids. No id may be known, or given twice."""
        prefix = keys.message_ids(topic_id)
        pairs = [(prefix + message_id.encode(), _encode(place)) for message_id, place in seen]
        self._index.put_all(pairs)
        self._remembered.extend([key for key, _ in pairs])

    def is_cancelled(self, topic_id: int, message_id: str) -> bool:
        return self._index.get(keys.cancelled_message(topic_id, message_id)) is not None

    def remember_cancelled(self, topic_id: int, message_id: str, *, again: bool = False) -> None:
        """Remember a cancelled message. `again` is for one that is remembered already: its key then tells with which
        expiry record it goes, because an earlier one names it too.
        """
        value = keys.u64(self.counters.next_sequence) if again else b""
        self._remember(keys.cancelled_message(topic_id, message_id), value)

    def end_entry(self, clock_ms: int, *, by_age: bool = True) -> None:
        """Close the entry: store when its ids expire and forget some expired ids. Without `by_age` only surplus ids are
        forgotten.
        """
        counters = self.counters
        if self._remembered:
            self._index.put(keys.dedupe_expiry(counters.next_sequence), _encode((clock_ms, self._remembered)))
            counters.next_sequence += 1
            counters.entries += len(self._remembered)
            self._remembered = []
        for _ in range(EXPIRED_RECORDS_PER_ENTRY):
            if not self._expire_oldest(clock_ms if by_age else None):
                return

    def _remember(self, key: bytes, value: bytes) -> None:
        self._unknown.discard(key)
        self._index.put(key, value)
        self._remembered.append(key)

    def _expire_oldest(self, clock_ms: int | None) -> bool:
        counters = self.counters
        if counters.entries <= self._min_entries or counters.first_sequence == counters.next_sequence:
            return False
        if self._oldest is not None and not self._may_expire(*self._oldest, clock_ms):
            return False
        key = keys.dedupe_expiry(counters.first_sequence)
        value = self._index.get(key)
        if value is None:
            raise AssertionError(f"expiry record {counters.first_sequence} is missing")
        at_ms, expired = _decode_expiry(value)
        self._oldest = at_ms, len(expired)
        if not self._may_expire(at_ms, len(expired), clock_ms):
            return False
        self._index.delete_all([each for each in expired if not self._expires_later(each)])
        self._index.delete(key)
        counters.first_sequence += 1
        counters.entries -= len(expired)
        self._oldest = None
        return True

    def _expires_later(self, key: bytes) -> bool:
        """Return whether an id of the oldest expiry record goes with a later one: that of a message cancelled again."""
        value = self._index.get(key) if key.startswith(keys.TOPIC_TIMER) else None
        return bool(value) and value != keys.u64(self.counters.first_sequence)

    def _may_expire(self, at_ms: int, count: int, clock_ms: int | None) -> bool:
        """Return whether an expiry record may be removed. A record is removed as a whole and holds up to one request's
        ids: the floor counts the ids that stay.
        """
        entries = self.counters.entries
        is_old = clock_ms is not None and clock_ms - at_ms >= self._window_ms
        over = entries > self._max_entries or is_old
        return over and entries - count >= self._min_entries
