"""The table of transactions: records, their listing by state and age, due check-backs, and timelines.

A record itself holds the `prepared` event and the decision; checks, `unknown` answers, and a discard that an operator
undid are separate events. A decided transaction's timeline is closed, unless an operator reopens it.
"""

import heapq
import itertools
from collections.abc import Iterator
from typing import Final

import msgspec

from store.commands.messages import BatchHeader, Position
from store.commands.transactions import TransactionState
from store.commands.views import (
    DueCheck,
    HalfBatchView,
    TimelineEvent,
    TimelineEventName,
    TransactionPage,
    TransactionView,
)
from store.errors import INVALID_REQUEST, Refused
from store.index import keys
from store.index.index import Index
from store.limits import TIMELINE_EVENTS_MAX
from store.messages.block_location import BlockLocation
from store.messages.log_references import Holder, LogReferences
from store.messages.named_rows import encoded_with_principal

STATES: Final[tuple[TransactionState, ...]] = ("prepared", "committed", "rolled_back", "discarded")
PREPARED, COMMITTED, ROLLED_BACK, DISCARDED = range(4)
_DECIDED: Final = (COMMITTED, ROLLED_BACK)
_ANSWER_OF_STATE: Final = {COMMITTED: "commit", ROLLED_BACK: "rollback"}


HEADER_BYTES: Final = 100
"""Size of a usual batch header in a command, without ids and keys."""
HELD_BYTES_KEPT: Final = 4_096
"""Number of transactions, the newest undecided ones, whose `held_bytes` are known without a look into the index."""


VALUES_KEPT: Final = 4_096
VALUE_BYTES_KEPT: Final = 1_024
"""Bounds of the undecided transactions whose values are kept in memory. Most are decided within milliseconds, and each
look into the index costs several microseconds on every node.
"""


class HalfBatch(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """A batch of a half transaction, and the location of its block."""

    topic: str
    queue: int
    count: int
    block: BlockLocation
    has_message_ids: bool
    deliver_at_ms: int | None = None
    delay_ms: int | None = None
    has_keys: bool = False

    def header(self, message_ids: tuple[str | None, ...] | None, hashes: tuple[bytes, ...] | None) -> BatchHeader:
        block = self.block
        return BatchHeader(
            self.topic,
            self.queue,
            self.count,
            block.batch_id,
            message_ids,
            block.crc32c,
            block.length,
            block.encoding,
            block.uncompressed_bytes,
            self.deliver_at_ms,
            self.delay_ms,
            hashes,
        )


class TransactionRecord(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """The value of a transaction in the index."""

    state: int
    producer_group: str
    client_id: str
    prepared_at_ms: int
    prepared_index: int
    batches: tuple[HalfBatch, ...]
    next_check_at_ms: int
    check_times: int = 0
    events: int = 0
    decided_at_ms: int | None = None
    decided_index: int = 0
    decided_source: str | None = None
    decided_client_id: str | None = None
    positions: tuple[Position, ...] = ()
    forced: bool = False
    operator: str | None = None
    """The operator who last decided or resumed the transaction by hand; `reason` says why."""
    reason: str | None = None
    principal: str | None = None
    """The authenticated principal that decided or resumed the transaction last; `operator` is what it said of itself.
    """


_encode = msgspec.msgpack.Encoder().encode
_decode_record = msgspec.msgpack.Decoder(TransactionRecord).decode
_decode_event = msgspec.msgpack.Decoder(TimelineEvent).decode
_decode_ids = msgspec.msgpack.Decoder(tuple[str | None, ...]).decode
_decode_keys = msgspec.msgpack.Decoder(tuple[bytes, ...]).decode


class TransactionTable:
    def __init__(self, index: Index, references: LogReferences) -> None:
        """Count the undecided transactions by their keys."""
        self._index = index
        self._references = references
        prepared = index.scan(keys.transaction_state(PREPARED, 0, ""), keys.transaction_state(PREPARED + 1, 0, ""))
        self.undecided = sum(1 for _ in prepared)
        self._held_bytes: dict[str, int] = {}
        self._kept: dict[str, bytes] = {}
        """Values in the index of the newest undecided transactions."""

    # Changes, during apply.

    def get(self, transaction_id: str) -> TransactionRecord | None:
        value = self._kept.get(transaction_id) or self._index.get(keys.transaction(transaction_id))
        return _decode_record(value) if value is not None else None

    def add(self, transaction_id: str, record: TransactionRecord, headers: tuple[BatchHeader, ...]) -> None:
        """Store a prepared transaction. Explicit ids and keys of messages are stored apart from the record, because
        there may be many and the record is rewritten.
        """
        held_bytes = HEADER_BYTES * len(headers)
        for number, header in enumerate(headers):
            if header.message_ids is not None:
                ids = _encode(header.message_ids)
                self._index.put(keys.transaction_ids(transaction_id, number), ids)
                held_bytes += len(ids)
            if header.keys is not None:
                hashes = _encode(header.keys)
                self._index.put(keys.transaction_keys(transaction_id, number), hashes)
                held_bytes += len(hashes)
        if len(self._held_bytes) >= HELD_BYTES_KEPT:
            del self._held_bytes[next(iter(self._held_bytes))]
        self._held_bytes[transaction_id] = held_bytes
        for batch in record.batches:
            self._references.add(batch.block, Holder.TRANSACTION)
        self.update(transaction_id, record)
        self._index.put(keys.transaction_state(PREPARED, record.prepared_at_ms, transaction_id), b"")
        self.undecided += 1
        self._index.put(keys.check(record.next_check_at_ms, transaction_id), b"")

    def update(self, transaction_id: str, record: TransactionRecord) -> None:
        """Store a changed record whose state stays the same; `set_next_check` and `decide` also change other keys."""
        value = encoded_with_principal(record)
        self._index.put(keys.transaction(transaction_id), value)
        if record.state == PREPARED and len(value) <= VALUE_BYTES_KEPT:
            if len(self._kept) >= VALUES_KEPT and transaction_id not in self._kept:
                del self._kept[next(iter(self._kept))]
            self._kept[transaction_id] = value
        else:
            self._kept.pop(transaction_id, None)

    def set_next_check(self, transaction_id: str, record: TransactionRecord, next_check_at_ms: int) -> None:
        self._index.delete(keys.check(record.next_check_at_ms, transaction_id))
        record.next_check_at_ms = next_check_at_ms
        self._index.put(keys.check(next_check_at_ms, transaction_id), b"")

    def resume(self, transaction_id: str, record: TransactionRecord, next_check_at_ms: int) -> None:
        """Make a discarded transaction prepared again, as if it had never been checked, and store it."""
        self._index.delete(keys.transaction_state(record.state, record.prepared_at_ms, transaction_id))
        record.state = PREPARED
        self.undecided += 1
        record.check_times = 0
        record.decided_at_ms = None
        record.decided_index = 0
        self._index.put(keys.transaction_state(PREPARED, record.prepared_at_ms, transaction_id), b"")
        self.set_next_check(transaction_id, record, next_check_at_ms)
        self.update(transaction_id, record)

    def decide(self, transaction_id: str, record: TransactionRecord, state: int) -> None:
        """Move a prepared or discarded transaction to a final state and store it."""
        self._index.delete(keys.transaction_state(record.state, record.prepared_at_ms, transaction_id))
        self._index.delete(keys.check(record.next_check_at_ms, transaction_id))
        self.undecided -= record.state == PREPARED
        self._held_bytes.pop(transaction_id, None)
        if state in _DECIDED:
            self._release(record)
        record.state = state
        self._index.put(keys.transaction_state(state, record.prepared_at_ms, transaction_id), b"")
        if record.decided_at_ms is not None:
            self._index.put(keys.decided(record.decided_at_ms, transaction_id), b"")
        self.update(transaction_id, record)

    def expire(self, until_ms: int, limit: int) -> int:
        """Remove transactions decided or discarded at or before `until_ms`, with their timelines, at most `limit`.
        Return how many decisions were removed, including decisions that were undone since.
        """
        found = self._index.scan(keys.DECIDED, keys.decided(max(until_ms + 1, 0), ""))
        decided = [key for key, _ in itertools.islice(found, limit)]
        for key in decided:
            self._index.delete(key)
            decided_at_ms, transaction_id = keys.decided_parts(key)
            record = self.get(transaction_id)
            if record is not None and record.decided_at_ms == decided_at_ms:  # or it was resumed, or decided again
                self._forget(transaction_id, record)
        return len(decided)

    def first_decided_at_ms(self) -> int | None:
        """Return the time of the earliest decision that is kept, which may have been undone since; None without any."""
        found = next(self._index.scan(keys.DECIDED, keys.after(keys.DECIDED)), None)
        return None if found is None else keys.decided_parts(found[0])[0]

    def _forget(self, transaction_id: str, record: TransactionRecord) -> None:
        self.forget_message_ids(transaction_id, record)
        prefix = keys.transaction_events(transaction_id)
        for key, _ in list(self._index.scan(prefix, keys.after(prefix))):
            self._index.delete(key)
        self._index.delete(keys.transaction_state(record.state, record.prepared_at_ms, transaction_id))
        self._index.delete(keys.transaction(transaction_id))
        self._kept.pop(transaction_id, None)
        if record.state not in _DECIDED:
            self._release(record)

    def _release(self, record: TransactionRecord) -> None:
        """Release the blocks of the halves: the rows or timers of committed messages point at the blocks themselves."""
        for batch in record.batches:
            self._references.remove(batch.block, Holder.TRANSACTION)

    def set_position(self, transaction_id: str, number: int, position: Position, decided_index: int | None) -> None:
        """Note the place of a committed batch whose timer has fired, unless the transaction is forgotten by then. With
        `decided_index`, only a transaction decided by that entry is changed: a later one may have the same id.
        """
        record = self.get(transaction_id)
        if record is None or decided_index not in (None, record.decided_index):
            return
        positions = record.positions
        record.positions = (*positions[:number], position, *positions[number + 1 :])
        self.update(transaction_id, record)

    def reopen_timeline(self, transaction_id: str, record: TransactionRecord) -> None:
        """Store the record's discard as an event, before another decision takes its place in the record."""
        for event in _decision_events(record):
            self.add_event(transaction_id, record, event, audit=True)

    def add_event(
        self, transaction_id: str, record: TransactionRecord, event: TimelineEvent, *, audit: bool = False
    ) -> None:
        """Append an event to the timeline, up to TIMELINE_EVENTS_MAX; an `audit` event always. The caller stores the
        record.
        """
        if audit or record.events < TIMELINE_EVENTS_MAX:
            self._index.put(keys.transaction_event(transaction_id, record.events), encoded_with_principal(event))
            record.events += 1

    def message_ids(self, transaction_id: str, number: int) -> tuple[str | None, ...]:
        value = self._index.get(keys.transaction_ids(transaction_id, number))
        if value is None:
            raise AssertionError(f"the message ids of batch {number} of transaction {transaction_id} are missing")
        return _decode_ids(value)

    def key_hashes(self, transaction_id: str, number: int) -> tuple[bytes, ...]:
        value = self._index.get(keys.transaction_keys(transaction_id, number))
        if value is None:
            raise AssertionError(f"the keys of batch {number} of transaction {transaction_id} are missing")
        return _decode_keys(value)

    def held_bytes(self, transaction_id: str) -> int:
        """Return the size of the batch headers that a decision carries out, as if a command brought them; 0 if the
        transaction does not exist.
        """
        known = self._held_bytes.get(transaction_id)
        if known is not None:
            return known
        record = self.get(transaction_id)
        size = 0
        for number, batch in enumerate(record.batches if record is not None else ()):
            size += HEADER_BYTES
            if batch.has_message_ids:
                size += len(self._index.get(keys.transaction_ids(transaction_id, number)) or b"")
            if batch.has_keys:
                size += len(self._index.get(keys.transaction_keys(transaction_id, number)) or b"")
        return size

    def forget_message_ids(self, transaction_id: str, record: TransactionRecord) -> None:
        """Remove the explicit message ids and the keys."""
        for number, batch in enumerate(record.batches):
            if batch.has_message_ids:
                self._index.delete(keys.transaction_ids(transaction_id, number))
            if batch.has_keys:
                self._index.delete(keys.transaction_keys(transaction_id, number))

    # Queries.

    def view(self, transaction_id: str) -> TransactionView | None:
        record = self.get(transaction_id)
        return _view(transaction_id, record) if record is not None else None

    def timeline(self, transaction_id: str) -> list[TimelineEvent] | None:
        """Return all events of the transaction, in order; None when the transaction does not exist."""
        record = self.get(transaction_id)
        if record is None:
            return None
        prefix = keys.transaction_events(transaction_id)
        prepared = TimelineEvent(record.prepared_at_ms, "prepared", record.prepared_index, record.client_id)
        stored = [_decode_event(value) for _, value in self._index.scan(prefix, keys.after(prefix))]
        return [prepared, *stored, *_decision_events(record)]

    def page(
        self, state: TransactionState | None, prepared_before_ms: int | None, limit: int, after: str | None
    ) -> TransactionPage:
        """Return transactions from the oldest on, continuing at `after`, the `next` of an earlier page. Refused
        (`invalid_request`) for any other `after`.
        """
        states = range(len(STATES)) if state is None else (STATES.index(state),)
        start = _parse_cursor(after) if after is not None else (0, "")
        found: list[TransactionView] = []
        for prepared_at_ms, transaction_id in heapq.merge(*(self._by_age(number, start) for number in states)):
            if prepared_before_ms is not None and prepared_at_ms >= prepared_before_ms:
                break
            if (prepared_at_ms, transaction_id) <= start:
                continue
            if len(found) == limit:
                return TransactionPage(tuple(found), cursor_of(found[-1]))
            found.append(self._existing(transaction_id))
        return TransactionPage(tuple(found), None)

    def due_checks(self, now_ms: int, limit: int, after: tuple[int, str] | None = None) -> list[DueCheck]:
        """Return prepared transactions whose next check is due, the longest due first. `after` is (next_check_at_ms,
        transaction_id) of the last transaction of an earlier call.
        """
        begin = keys.CHECK if after is None else keys.check(*after) + b"\x00"
        due: list[DueCheck] = []
        for key, _ in self._index.scan(begin, keys.check(now_ms + 1, "")):
            if len(due) == limit:
                break
            transaction_id = keys.check_transaction_id(key)
            view = self._existing(transaction_id)
            if view.next_check_at_ms is None:
                raise AssertionError(f"transaction {transaction_id} is {view.state} and has a check")
            due.append(
                DueCheck(
                    transaction_id,
                    view.producer_group,
                    view.client_id,
                    view.check_times,
                    view.next_check_at_ms,
                    view.prepared_at_ms,
                )
            )
        return due

    def oldest_undecided(self) -> list[TransactionView]:
        """Return the oldest prepared and the oldest discarded transaction, as far as they exist."""
        first = (next(self._by_age(state, (0, "")), None) for state in (PREPARED, DISCARDED))
        return [self._existing(found[1]) for found in first if found is not None]

    def _by_age(self, state: int, start: tuple[int, str]) -> Iterator[tuple[int, str]]:
        end = keys.transaction_state(state + 1, 0, "")
        for key, _ in self._index.scan(keys.transaction_state(state, *start), end):
            yield keys.transaction_state_parts(key)

    def _existing(self, transaction_id: str) -> TransactionView:
        view = self.view(transaction_id)
        if view is None:
            raise AssertionError(f"transaction {transaction_id} is listed and does not exist")
        return view


def _view(transaction_id: str, record: TransactionRecord) -> TransactionView:
    return TransactionView(
        transaction_id=transaction_id,
        state=STATES[record.state],
        producer_group=record.producer_group,
        client_id=record.client_id,
        prepared_at_ms=record.prepared_at_ms,
        prepared_index=record.prepared_index,
        decided_at_ms=record.decided_at_ms,
        check_times=record.check_times,
        next_check_at_ms=record.next_check_at_ms if record.state == PREPARED else None,
        batches=tuple(
            HalfBatchView(
                topic=batch.topic,
                queue=batch.queue,
                count=batch.count,
                batch_id=batch.block.batch_id,
                crc32c=batch.block.crc32c,
                position=batch.block.position,
                block_offset=batch.block.offset,
                block_length=batch.block.length,
                encoding=batch.block.encoding,
                uncompressed_bytes=batch.block.uncompressed_bytes,
            )
            for batch in record.batches
        ),
        positions=record.positions,
    )


def _decision_events(record: TransactionRecord) -> list[TimelineEvent]:
    """Return the decision's event, preceded by the producer's answer when the decision was the answer to a check."""
    if record.decided_at_ms is None:
        return []
    at_ms, raft_index = record.decided_at_ms, record.decided_index
    client_id, source = record.decided_client_id, record.decided_source
    events: list[TimelineEvent] = []
    if source == "check":
        answer = _ANSWER_OF_STATE[record.state]
        said = TimelineEvent(
            at_ms, "answer", raft_index, client_id, answer=answer, source=source, principal=record.principal
        )
        events.append(said)
    if record.state == DISCARDED:
        events.append(TimelineEvent(at_ms, "discarded", raft_index))
        return events
    name: TimelineEventName = "committed" if record.state == COMMITTED else "rolled_back"
    decided = TimelineEvent(at_ms, name, raft_index, client_id, source=source, principal=record.principal)
    if source == "operator":
        decided = msgspec.structs.replace(decided, operator=record.operator, reason=record.reason, forced=record.forced)
    events.append(decided)
    return events


def cursor_of(last: TransactionView) -> str:
    """Return the cursor with which a listing continues after the transaction."""
    return f"{last.prepared_at_ms}-{last.transaction_id}"


def _parse_cursor(cursor: str) -> tuple[int, str]:
    prepared_at_ms, dash, transaction_id = cursor.partition("-")
    # 19 digits always fit the 64 bits of a key.
    if not dash or not transaction_id or not (prepared_at_ms.isascii() and prepared_at_ms.isdigit()):
        raise Refused(INVALID_REQUEST, f"after: {cursor!r} is not the `next` of a listing")
    if len(prepared_at_ms) > 19:
        raise Refused(INVALID_REQUEST, f"after: {cursor!r} is not the `next` of a listing")
    return int(prepared_at_ms), transaction_id
