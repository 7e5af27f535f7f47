"""Group commit of proposals: all waiting proposals become one entry, and a few entries are in flight.

While entries are on their way to the disks the next one collects, so the cost of Raft is per entry, not per request,
and an idle broker answers without any delay.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from raft.errors import FeatureNotEnabled, Overloaded, ProposalTooLarge
from raft.fair_queue import OWN, FairQueue
from store.commands.entry import Command, Proposal, encode_entry
from store.errors import Refused
from store.features import FEATURES
from store.log.record import MAX_PAYLOAD_BYTES, Entry

log = logging.getLogger(__name__)

PROPOSAL_OVERHEAD_BYTES = 256
"""Bytes that a proposal counts beyond its command and its blocks: they bound the number of small ones and the entry."""
COMMAND_OVERHEAD_BYTES = 64
UNKNOWN_S = 0.01
"""Pause in seconds before the time and the feature level are asked for again: the first leader of a new cluster may
have to wait until it has heard a majority of clocks, and until the level that it raises is committed.
"""
ENTRY_WORK_BYTES = 64 * 1024
"""Maximum work of an entry, in bytes: for each command its size without blocks, COMMAND_OVERHEAD_BYTES, and what it
works on in the state (`further_work_bytes`: the batches of a transaction that is committed, for example). A larger
command goes alone. It bounds the time of applying an entry, during which the loop does nothing else: 5 ms for 550 small
produces.
"""

SENDER_SHARE: Final = 3
"""Bytes that one sender may have in flight, as a multiple of those that stay free: three quarters of the limit if it is
alone, 3/7 each if there are two. What is left is for those who have nothing in flight.
"""


@dataclass(frozen=True, slots=True)
class Applied:
    """The outcome of a command that is durable on a majority and applied here."""

    result: Any
    term: int
    index: int
    timestamp_ms: int
    durable_on: tuple[int, ...]


class Proposed(asyncio.Future[Applied]):
    """Future outcome of a proposal. From `is_in_log` on the command may be committed, though the caller gives up."""

    is_in_log = False


class _Waiting(NamedTuple):
    proposal: Proposal
    size_bytes: int
    work_bytes: int
    sender: str
    future: Proposed


def _only_logged(error: Exception) -> None:
    log.error("nothing of what waited can be proposed", exc_info=error)


_encoder = msgspec.msgpack.Encoder()

AppendEntry = Callable[[bytes, Callable[[Entry | None, Any], None]], int]


class ProposalQueue:
    """Collects proposals into entries. `append_entry(payload, on_outcome)` puts an entry into the log or raises
    RaftError or LogError; the entry is stamped with `stamp_ms()` and made at `feature_level()`, and waits while one of
    them is None. Use it only on the event loop.
    """

    def __init__(
        self,
        append_entry: AppendEntry,
        durable_on: Callable[[int], tuple[int, ...]],
        stamp_ms: Callable[[], int | None],
        clock_is_sure: Callable[[], bool],
        feature_level: Callable[[], int | None] = lambda: FEATURES.maximum,
        *,
        max_entry_bytes: int,
        max_entries_in_flight: int,
        max_in_flight_bytes: int,
    ) -> None:
        self._append_entry = append_entry
        self._durable_on = durable_on
        self._stamp_ms = stamp_ms
        self._clock_is_sure = clock_is_sure
        self._feature_level = feature_level
        self._max_entries_in_flight = max_entries_in_flight
        self._max_in_flight_bytes = max_in_flight_bytes
        self.on_failure: Callable[[Exception], None] = _only_logged
        """Called with an error of the flush itself, not of a proposal: this node must not go on."""
        self._waiting: FairQueue[_Waiting] = FairQueue(max_entry_bytes, ENTRY_WORK_BYTES, self._release)
        self._entries_in_flight = 0
        self._flush_scheduled = False
        self._last_timestamp_ms = 0
        self._any_unchecked = False
        """Commands wait that may be above the level in force."""
        self._all_enabled = False
        """The level in force, which never goes down, is the highest that this build knows."""
        self.in_flight_bytes = 0
        """Bytes that are proposed and not yet answered."""
        self._in_flight_of: dict[str, int] = {}
        """The same by sender."""

    def use_weights(self, weight_of: Callable[[str], int]) -> None:
        """Have senders take turns by their weights, each at least 1, from now on: `weight_of` is asked at each turn."""
        self._waiting.weight_of = weight_of

    def submit(self, proposal: Proposal, sender: str = OWN) -> Proposed:
        """Queue a proposal of a sender; senders take turns when more waits than one entry holds. The future fails with
        RaftError, Refused or a LogError. Cancelling the future stops the command only while the command is not in the
        log.

        Raises FeatureNotEnabled for a command above the level in force: every proposal passes here; while the level is
        being raised, the future fails with it. Raises Overloaded when the bytes in flight would pass their limit, or
        those of the sender its share; an idle node always takes one proposal. Raises ProposalTooLarge when no log
        record can hold the proposal.
        """
        if not self._all_enabled:
            self._check_level(proposal.command)
        # 0.2 µs for a usual header: only one full of explicit ids or offsets costs more, and that one must be measured.
        command_bytes = len(_encoder.encode(proposal.command))
        size_bytes = PROPOSAL_OVERHEAD_BYTES + command_bytes + sum(map(len, proposal.blocks))
        if size_bytes > MAX_PAYLOAD_BYTES:
            raise ProposalTooLarge(
                f"the command has {size_bytes} bytes, and a log record holds at most {MAX_PAYLOAD_BYTES}"
            )
        of_sender = self._in_flight_of.get(sender, 0)
        if self.in_flight_bytes:
            self._require_room(size_bytes, 0 if sender == OWN else of_sender)
        loop = asyncio.get_running_loop()
        waiting = _Waiting(
            proposal,
            size_bytes,
            COMMAND_OVERHEAD_BYTES + command_bytes + proposal.further_work_bytes,
            sender,
            Proposed(loop=loop),
        )
        self.in_flight_bytes += size_bytes
        self._in_flight_of[sender] = of_sender + size_bytes
        self._waiting.append(waiting)
        self._schedule_flush(loop)
        return waiting.future

    def _check_level(self, command: Command) -> None:
        """Raise FeatureNotEnabled when the command is above the level in force."""
        level = self._feature_level()
        if level is None:
            self._any_unchecked = True
            return
        require_enabled(command, level)
        self._all_enabled = level >= FEATURES.maximum

    def fail_waiting(self, error: Exception) -> None:
        """Fail every proposal that is not in the log yet with `error`."""
        for waiting in self._waiting.drain():
            self._fail(waiting, error)

    def _require_room(self, size_bytes: int, of_sender: int) -> None:
        """Raise Overloaded unless there is room for a proposal, in all and in the share of its sender."""
        free_bytes = self._max_in_flight_bytes - self.in_flight_bytes
        if size_bytes > free_bytes:
            raise Overloaded(f"{self.in_flight_bytes} bytes are waiting for commit; retry shortly")
        if of_sender and of_sender + size_bytes > SENDER_SHARE * (free_bytes - size_bytes):
            raise Overloaded(f"{of_sender} bytes of this sender are waiting for commit; retry shortly")

    def _schedule_flush(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._flush_scheduled and self._entries_in_flight < self._max_entries_in_flight:
            self._flush_scheduled = True
            loop.call_soon(self._flush)  # after everything else that arrived in this turn of the loop

    def _flush(self) -> None:
        try:
            self._append_waiting()
        except Exception as error:  # the loop would only log it, and nothing would be proposed any more
            self._flush_scheduled = False
            try:
                self.fail_waiting(error)
            finally:  # whatever broke may break that, too
                self.on_failure(error)

    def _append_waiting(self) -> None:
        stamp_ms, level = self._stamp_ms(), self._feature_level()
        if stamp_ms is None or level is None:
            asyncio.get_running_loop().call_later(UNKNOWN_S, self._flush)
            return
        self._flush_scheduled = False
        if self._any_unchecked:
            self._refuse_above(level)
        while self._entries_in_flight < self._max_entries_in_flight and (taken := self._waiting.take()):
            self._last_timestamp_ms = timestamp_ms = max(self._last_timestamp_ms, stamp_ms)
            self._entries_in_flight += 1
            try:
                proposals = [waiting.proposal for waiting in taken]
                payload = encode_entry(timestamp_ms, proposals, in_doubt=not self._clock_is_sure(), level=level)
                self._append_entry(payload, partial(self._on_outcome, taken, timestamp_ms))
                for waiting in taken:
                    waiting.future.is_in_log = True
            except Exception as error:  # nothing was appended: the proposers get the error
                self._entries_in_flight -= 1
                for waiting in taken:
                    self._fail(waiting, error)

    def _refuse_above(self, level: int) -> None:
        """Fail the commands above the level that waited for it."""
        self._any_unchecked = False
        for each in [*self._waiting.drain()]:
            try:
                require_enabled(each.proposal.command, level)
            except FeatureNotEnabled as error:
                self._fail(each, error)
            else:
                self._waiting.append(each)

    def _on_outcome(self, taken: Sequence[_Waiting], timestamp_ms: int, entry: Entry | None, outcome: Any) -> None:
        self._entries_in_flight -= 1
        if entry is None:
            for waiting in taken:
                self._fail(waiting, outcome)
        else:
            durable_on = self._durable_on(entry.index)
            for waiting, result in zip(taken, outcome, strict=True):
                if isinstance(result, Refused):
                    self._fail(waiting, result)
                    continue
                self._release(waiting)
                if not waiting.future.done():
                    waiting.future.set_result(Applied(result, entry.term, entry.index, timestamp_ms, durable_on))
        if self._waiting:
            self._schedule_flush(asyncio.get_running_loop())

    def _release(self, waiting: _Waiting) -> None:
        """Count the proposal as in flight no longer."""
        size_bytes, of_sender = waiting.size_bytes, self._in_flight_of
        self.in_flight_bytes -= size_bytes
        left = of_sender[waiting.sender] - size_bytes
        if left:
            of_sender[waiting.sender] = left
        else:
            del of_sender[waiting.sender]

    def _fail(self, waiting: _Waiting, error: Exception) -> None:
        self._release(waiting)
        if not waiting.future.done():
            waiting.future.set_exception(error)


def awaited(loop: asyncio.AbstractEventLoop) -> tuple["asyncio.Future[Entry]", Callable[[Entry | None, Any], None]]:
    """Return a future and the callback of an entry, which resolves it with the entry or the error that hides its
    outcome.
    """
    future: asyncio.Future[Entry] = loop.create_future()

    def on_outcome(entry: Entry | None, outcome: Any) -> None:
        if future.done():
            return
        if entry is None:
            future.set_exception(outcome)
        else:
            future.set_result(entry)

    return future, on_outcome


def require_enabled(command: Command, level: int) -> None:
    """Raise FeatureNotEnabled when a command, or a field that it uses, belongs to a level above the one in force."""
    if level >= FEATURES.maximum:
        return
    needed = FEATURES.needed(command)
    if needed > level:
        raise FeatureNotEnabled(
            f"this needs feature level {needed}, the cluster is at {level}; once every node runs KeelMQ "
            f"{FEATURES.version_of(needed)} or later, raise it with 'keelmq cluster upgrade'"
        )
