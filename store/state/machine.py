"""The state machine: applies committed entries in order, each exactly once in effect.

- `apply` is the only way state changes. Its effect is a function of the entries alone: not of the time, the number of
  calls, or the replica. A running hash over entries and results shows any violation.
- A command that cannot be carried out gives `Refused` as its result and changes nothing.
- Work that takes long pauses where its caller says so, between commands of an entry or within one. Queries then see a
  part of the entry's effects; `applied_index` and the hashes are those of before it.
- Any other exception leaves `apply`: memory and index may disagree then, and the process must stop. A restart begins
  at the state of the index on disk.
- Applied is not durable: the commit log is. The index reaches the disk from time to time; a restart applies the entries
  after the `applied_index` on disk again.
"""

import struct
from collections.abc import Callable, Sequence
from hashlib import blake2b
from types import GeneratorType
from typing import Any, Final, NamedTuple

import msgspec

from store.commands.entry import IRREVERSIBLE, Command, DecodedEntry, Result, decode_entry
from store.commands.groups import CommitOffsets
from store.commands.messages import Produce
from store.commands.pops import AckPopped
from store.commands.transactions import Decide, Prepare
from store.errors import CLOCK_IN_DOUBT, Refused
from store.features import FEATURES, FIRST_LEVEL, read_level
from store.groups.pops import Pops
from store.groups.redelivery import Redeliveries
from store.index import keys
from store.index.index import Index
from store.limits import DEDUPE_MIN_ENTRIES
from store.log.record import KIND_CONFIG, KIND_ENTRY, Entry
from store.messages.dedupe import DedupeCounters
from store.messages.log_references import LOG_RANGE_BYTES
from store.messages.placement import At, CarriedOut
from store.messages.timers import TimerCounters
from store.messages.topics import FIRST_TOPIC_ID
from store.state.expiry import OUTCOMES_REMOVED_MIN
from store.state.handlers import Handlers
from store.state.index_upgrade import upgrade
from store.state.message_search import MessageSearch
from store.state.queries import Queries
from store.state.rows_hash import SUMMED, rows_hash, rows_hash_in_steps
from store.state.state_history import StateDigest, StateHistory
from store.state.tables import Tables
from store.steps import ITEMS_PER_STEP, Steps

FLUSH_LOG_BYTES: Final = 64 * 1024 * 1024
"""The index is flushed after this many bytes of log were applied ..."""

FLUSH_ENTRIES: Final = 20_000
"""... or this many entries: together they bound the work that a restart applies again."""

WRITTEN_ROWS_MAX: Final = 1_000
"""No further entry is applied before the index write once this many rows have changed: a thousand rows are written in
0.7 ms, which the caller's clock does not see before the write."""

SMALL_PER_STEP: Final = 64
"""Number of small commands in one step: half a millisecond. More than that share an entry only in a backlog."""

HASH_BYTES: Final = 8
_HASHED_HEADER: Final = struct.Struct(">QQBQ")
_SMALL: Final = frozenset({Produce, Prepare, Decide, CommitOffsets, AckPopped})
"""Commands of which many share an entry, where their bytes bound what they cost together (raft/proposals.py)."""


class _Applied(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """State written with every apply: the last applied entry, and the counters that are not in a table of their own."""

    index: int = 0
    term: int = 0
    clock_ms: int = 0
    state_hash: bytes = bytes(HASH_BYTES)
    next_topic_id: int = FIRST_TOPIC_ID
    next_group_id: int = 1
    dedupe: DedupeCounters = msgspec.field(default_factory=DedupeCounters)
    timers: TimerCounters = msgspec.field(default_factory=TimerCounters)
    first_outcome: int = 0
    """Entries before this one have no outcome row: an older version applied them, or their rows were removed. 0 in a
    value written by that older version.
    """
    rows_hash: int = 0
    """CRC32C over every key and value that the entries after `rows_from` staged: entry by entry, sorted within each
    entry, as a restart may stage them in another order.
    """
    rows_from: int = -1
    """-1 in a value written by an older version, which hashed no rows."""


def _digest(applied: _Applied) -> StateDigest:
    if applied.rows_from < 0:  # an older version hashed no rows: the rows hash begins here
        applied.rows_hash, applied.rows_from = 0, applied.index
    return StateDigest(applied.index, applied.state_hash, applied.rows_from, applied.rows_hash)


_encode = msgspec.msgpack.Encoder(enc_hook=lambda value: _refusal(value)).encode
_decode_applied = msgspec.msgpack.Decoder(_Applied).decode


def _load_applied(index: Index, stored: bytes | None, log_range_bytes: int) -> _Applied:
    """Return the applied state of an index that is first upgraded, in one write, if an earlier version wrote it."""
    applied = _Applied(rows_from=0) if stored is None else _decode_applied(stored)
    if applied.first_outcome == 0:
        applied.first_outcome = applied.index + 1
    if upgrade(index, log_range_bytes):
        applied.rows_from = -1  # the rows so far were hashed as the earlier format has them
        index.put(keys.META_APPLIED, _encode(applied))
        index.commit()
    return applied


class AppliedState(NamedTuple):
    """The last entry applied to an index, and the state hash after it."""

    index: int  # type: ignore[assignment]  # hides tuple.index
    state_hash: str


def applied_state(index: Index) -> AppliedState:
    """Return the applied state of an index without loading it. Raises ValueError when the index holds no state."""
    stored = index.get(keys.META_APPLIED)
    if stored is None:
        raise ValueError("nothing was ever applied")
    applied = _decode_applied(stored)
    return AppliedState(applied.index, applied.state_hash.hex())


class StateMachine(Queries):
    """The replicated state and its queries. Owned by one thread. Queries between two calls of `apply` see all effects
    of the first call and none of the second, unless the first one has paused.
    """

    def __init__(
        self,
        index: Index,
        *,
        flush_log_bytes: int = FLUSH_LOG_BYTES,
        flush_entries: int = FLUSH_ENTRIES,
        dedupe_min_entries: int = DEDUPE_MIN_ENTRIES,
        log_range_bytes: int = LOG_RANGE_BYTES,
    ) -> None:
        """Load the index; a new index gets the system topics, an index of an earlier version is upgraded."""
        stored = index.get(keys.META_APPLIED)
        self._applied = applied = _load_applied(index, stored, log_range_bytes)
        tables = Tables.open(
            index,
            next_topic_id=applied.next_topic_id,
            next_group_id=applied.next_group_id,
            dedupe=applied.dedupe,
            timers=applied.timers,
            dedupe_min_entries=dedupe_min_entries,
            log_range_bytes=log_range_bytes,
        )
        topics, queues, placement, outcomes = tables.topics, tables.queues, tables.placement, tables.outcomes
        redeliveries = Redeliveries(topics, queues, tables.timers, tables.groups, tables.marks, placement, outcomes)
        pops = Pops(topics, queues, tables.groups, tables.leases, redeliveries, outcomes)
        super().__init__(tables, MessageSearch(tables), pops)
        handlers = Handlers(tables, redeliveries, pops, self._releases, self._forget_outcomes)
        self._handlers, self._transactions = handlers.by_type, handlers.transactions
        self._dedupe, self._placement = tables.dedupe, placement
        self._flush_log_bytes, self._flush_entries = flush_log_bytes, flush_entries
        self._flushed_position: int | None = None
        self._unflushed_entries = 0
        self._written_index = self._flushing_index = self._flushed_index = applied.index
        self.shown_index = applied.index
        """Index of the last entry of whose effects queries see some: above `applied_index` while one is half done."""
        self._paused: Steps[list[list[Result | Refused]]] | None = None
        self._has_paused = False
        self.waits_for_index = False
        """True while the index takes no writes, and apply is called in vain: look again after a while."""
        self._may_go_on: Callable[[], bool] = lambda: True
        self.history = StateHistory(_digest(applied))
        self._log_times = tables.log_times
        self._take_level(self._level_applied())
        if stored is None:
            topics.create_system_topics()
            self._commit()

    def _take_level(self, level: int) -> None:
        self.feature_level = level
        self._sums_rows = FEATURES.knows(SUMMED, level)
        self._topics.counts_bytes = FEATURES.knows("retention-bytes", level)

    def _level_applied(self) -> int:
        """Return the level of the last applied configuration; the next entry is carried out and hashed at it."""
        return FIRST_LEVEL if self.configuration is None else read_level(self.configuration[1]).level

    @property
    def applied_index(self) -> int:
        return self._applied.index

    @property
    def applied_term(self) -> int:
        return self._applied.term

    @property
    def clock_ms(self) -> int:
        """The replicated clock in ms: the time of the last entry, never falling."""
        return self._applied.clock_ms

    @property
    def configuration(self) -> tuple[int, bytes] | None:
        """The last configuration record at or below `applied_index`: its index and payload; None before the first."""
        stored = self._index.get(keys.META_CONFIGURATION)
        return None if stored is None else (keys.read_u64(stored[:8]), stored[8:])

    @property
    def cluster_uid(self) -> str:
        """Unique id of the cluster, from the first no-op that has one; empty before that no-op."""
        return (self._index.get(keys.META_CLUSTER) or b"").decode()

    def knows_batch(self, topic: str, batch_id: str) -> bool:
        """Return whether a batch with this id was accepted lately: sent again, the batch is a duplicate."""
        found = self._topics.get(topic)
        return found is not None and self._placement.seen(found, batch_id) is not None

    def carried_out(self, command: Command) -> CarriedOut | None:
        """Return the result of a `Produce` or `Prepare` that was applied before as a whole: applying it again would
        give the same answer and have no effect. None otherwise. Refused when a transaction's id was used for other
        content.
        """
        if isinstance(command, Produce):
            return self._placement.placed_before(command.batches)
        return self._transactions.prepared_before(command) if isinstance(command, Prepare) else None

    @property
    def first_outcome(self) -> int:
        """Index of the first entry whose outcome is kept for `outcomes`."""
        return self._applied.first_outcome

    @property
    def state_hash(self) -> str:
        """Hash, in hex, that is equal on all replicas that applied the same entries; a difference at one applied_index
        is a defect.
        """
        return self._applied.state_hash.hex()

    def apply(
        self, entries: Sequence[Entry], may_go_on: Callable[[], bool] = lambda: True
    ) -> list[list[Result | Refused]]:
        """Apply the entries after `applied_index`; return, per entry, the results of its commands in order.

        `may_go_on()` is called after each entry: if it returns False, or if WRITTEN_ROWS_MAX rows have changed, the
        remaining entries are not applied, and the results are those of the first entries. It is also called within
        work that takes long, which pauses if it returns False, or while the index takes no writes: then there are no
        results yet, and the next call, with the same first entries, goes on there and ends with that entry. One index
        write holds all effects and the new `applied_index`; it is not durable on return. Raises ValueError when the
        entries do not continue at `applied_index + 1` or are not entries.
        """
        self._may_go_on = may_go_on
        self._has_paused = self._paused is not None
        self._paused = steps = self._paused or self._apply_in_steps(entries)
        try:
            next(steps)
            while may_go_on() and not self.waits_for_index:
                next(steps)
        except StopIteration as end:
            self._paused = None
            results: list[list[Result | Refused]] = end.value
            return results
        return []

    @property
    def is_paused(self) -> bool:
        """True while queries may see effects of entries that are not in the index yet: also after an exception."""
        return self._paused is not None

    def _apply_in_steps(self, entries: Sequence[Entry]) -> Steps[list[list[Result | Refused]]]:
        """Apply entries one by one until the turn is over, and then write the effects of all by one index write."""
        results: list[list[Result | Refused]] = []
        for entry in entries:
            results.append((yield from self._apply_entry(entry)))
            if self._has_paused or self._index.staged_rows >= WRITTEN_ROWS_MAX or not self._may_go_on():
                break
        if results:
            if self._index.staged_rows > ITEMS_PER_STEP:
                yield from self._index.prepare_commit()
            yield from self._write()
            self._flush_sometimes(entries[0], entries[len(results) - 1], len(results))
        return results

    def _write(self) -> Steps[None]:
        """Write the staged effects. Pauses until the index takes it: waiting would hold the loop, and with it votes and
        heartbeats.
        """
        while not self._commit():
            self.waits_for_index = True
            yield
        self.waits_for_index = False

    def _apply_entry(self, entry: Entry) -> Steps[list[Result | Refused]]:
        """Carry out the commands of an entry, note its outcomes, and hash what was written. Return the results."""
        applied = self._applied
        if entry.index != applied.index + 1:
            raise ValueError(f"entry {entry.index} does not follow the applied index {applied.index}")
        self.shown_index = entry.index
        touched = self._index.touched
        touched.clear()
        results: list[Result | Refused] = []
        header: bytes | memoryview = b""
        if entry.kind == KIND_ENTRY:
            decoded = decode_entry(entry.payload)
            header = memoryview(entry.payload)[: decoded.header_bytes]
            before_ms, applied.clock_ms = applied.clock_ms, max(applied.clock_ms, decoded.timestamp_ms)
            self._rules.log_position = entry.position
            if self._topics.counts_bytes:
                self._log_times.note(entry.position, before_ms, applied.clock_ms)
            self._references.begin_entry(entry.index)
            results = yield from self._carry_out(decoded, self._at(entry))
            self._dedupe.end_entry(applied.clock_ms, by_age=not decoded.in_doubt)
            self._references.end_entry()
            self._topics.end_entry()
            self._outcomes.store(entry.index, entry.term, applied.clock_ms, self.feature_level)
        elif entry.kind == KIND_CONFIG:
            header = entry.payload
            self._index.put(keys.META_CONFIGURATION, keys.u64(entry.index) + entry.payload)
            self._take_level(read_level(entry.payload).level)
        elif entry.payload:
            header = entry.payload
            if not self.cluster_uid:
                self._index.put(keys.META_CLUSTER, entry.payload)
        if len(touched) > ITEMS_PER_STEP:
            rows = yield from rows_hash_in_steps(touched, applied.rows_hash, summed=self._sums_rows)
        else:
            rows = rows_hash(touched, applied.rows_hash, summed=self._sums_rows)
        applied.index = entry.index
        applied.term = entry.term
        # The header holds the CRC of every block, so the blocks need not be hashed.
        place = _HASHED_HEADER.pack(entry.index, entry.term, entry.kind, entry.position)
        said = _encode(FEATURES.at(results, self.feature_level))
        applied.state_hash = blake2b(
            b"".join((applied.state_hash, place, header, said)), digest_size=HASH_BYTES
        ).digest()
        applied.rows_hash = rows
        self.history.note(entry.index, applied.state_hash, applied.rows_hash)
        return results

    def _at(self, entry: Entry) -> At:
        return At(entry.index, entry.term, entry.position, self._applied.clock_ms, self.feature_level)

    def _carry_out(self, decoded: DecodedEntry, at: At) -> Steps[list[Result | Refused]]:
        results: list[Result | Refused] = []
        for ordinal, (command, block_offsets) in enumerate(zip(decoded.commands, decoded.block_offsets, strict=True)):
            if ordinal and (not ordinal % SMALL_PER_STEP or type(command) not in _SMALL):
                yield
            mark = self._outcomes.mark()
            if decoded.principals:
                at = at._replace(principal=decoded.principals.get(ordinal))
            try:
                if decoded.in_doubt and isinstance(command, IRREVERSIBLE):
                    raise Refused(CLOCK_IN_DOUBT, "the leader was not sure of the time; it is done once clocks agree")
                result: Any = self._handlers[type(command)](command, at, block_offsets)
                results.append((yield from result) if type(result) is GeneratorType else result)
                if at.principal is not None:
                    self._outcomes.name(at.principal, mark)
            except Refused as refused:
                self._outcomes.undo(mark)
                # Without its traceback, which would keep the frames of apply alive as long as the answer.
                results.append(refused.with_traceback(None))
        return results

    def _commit(self) -> bool:
        applied = self._applied
        applied.next_topic_id = self._topics.next_id
        applied.next_group_id = self._groups.next_id
        if not self.waits_for_index:  # otherwise it is staged already, by the write that is tried again now
            self._index.put(keys.META_APPLIED, _encode(applied))
        if not self._index.try_commit():
            return False
        self._written_index = applied.index
        return True

    def _flush_sometimes(self, first: Entry, last: Entry, entries: int) -> None:
        if self._flushed_position is None:
            self._flushed_position = first.position
        self._unflushed_entries += entries
        log_bytes = last.position + len(last.payload) - self._flushed_position
        if log_bytes >= self._flush_log_bytes or self._unflushed_entries >= self._flush_entries:
            self.begin_flush()

    def begin_flush(self) -> bool:
        """Start to bring the applied state to disk, in the background. Return False while an earlier flush is under
        way.
        """
        flushed_index = self.flushed_index
        begun = self._index.begin_flush()
        if begun:
            self._flushed_index, self._flushing_index = flushed_index, self._written_index
            self._flushed_position = None
            self._unflushed_entries = 0
        return begun

    @property
    def flushed_index(self) -> int:
        """Index of the last entry whose effects are known to be on disk, by a flush that `begin_flush` has begun."""
        return self._flushed_index if self._index.is_flushing else self._flushing_index

    def _forget_outcomes(self, before: int) -> None:
        if before - self._applied.first_outcome >= OUTCOMES_REMOVED_MIN:
            self._outcomes.remove(self._applied.first_outcome, before)
            self._applied.first_outcome = before


def _refusal(value: object) -> object:
    """Return the form in which a refusal enters the state hash."""
    if isinstance(value, Refused):
        return (value.code, value.detail, value.extra)
    raise NotImplementedError(f"a result holds a {type(value).__name__}")
