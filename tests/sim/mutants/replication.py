"""Broken ways of leader and followers to handle entries, acknowledgements and the commit index."""

from collections.abc import Sequence
from typing import Any

import msgspec

from raft.entries.applier import APPLY_BYTES, Applier
from raft.entries.follower import Follower
from raft.entries.proposing import Proposing
from raft.gate import DurabilityGate
from raft.handlers import SafeRaft
from raft.journal import Journal
from raft.library import LEADER
from raft.messages import Append, AppendEntries, AppendReply
from raft.replication.replication import Replication
from raft.sender import Sender
from store.log.record import Entry
from tests.sim.mutants.parts import swap_part
from tests.sim.variant import Swap, Variant, mutant

ANY_INDEX = 1 << 62
"""Mutants that commit by rules of their own are not held back by the configuration either."""


class TakesAcksOfAnyTerm(Replication):
    """An acknowledgement given to an earlier leadership is counted in this one."""

    def on_append_reply(self, peer: int, reply: AppendReply) -> None:
        super().on_append_reply(peer, msgspec.structs.replace(reply, term=self._state.term))


class CountsANewDiskAtOnce(Replication):
    """The copy on a new disk counts although the old one may have voted for who leads a later term."""

    def on_append_reply(self, peer: int, reply: AppendReply) -> None:
        super().on_append_reply(peer, msgspec.structs.replace(reply, counts=True))


class CountsAcksOfAnEarlierConnection(Replication):
    """A node's acknowledgements still count after it came back with another disk, or with the same one put back."""

    def on_peer_connected(self, peer: int, *, forgetful: bool) -> None:
        kept = self._progress.get(peer)
        super().on_peer_connected(peer, forgetful=forgetful)
        if kept is not None and peer in self._progress:
            kept.restart()
            self._progress[peer] = kept
            self._count(peer)


class KeepsPromisesOfPastTerms(SafeRaft):
    """An acknowledgement that waited for the disk still leaves after its sender has gone on to a later term."""

    def on_higher_term(self) -> None:
        pass


class CutsMatchingEntries(Follower):
    """The stock library's habit: everything after the previous entry goes, even entries that match."""

    def _append_missing(self, prev_index: int, entries: Sequence[Entry]) -> tuple[int, int]:
        if entries and max(self._state.commit_index, 1) <= prev_index < self._state.log.last_index:
            self._state.log.truncate_from(prev_index + 1)
        return super()._append_missing(prev_index, entries)


class CutsCommittedEntries(Follower):
    """The stock library's habit without a look at the commit index: committed entries are cut too."""

    def _append_missing(self, prev_index: int, entries: Sequence[Entry]) -> tuple[int, int]:
        if entries and 0 < prev_index < self._state.log.last_index:
            self._state.log.truncate_from(prev_index + 1)
        return super()._append_missing(prev_index, entries)


class AppendsWithoutMatching(Follower):
    """A follower appends behind an entry of another term than the leader's."""

    def _mismatch(self, message: AppendEntries) -> int | None:
        last_index = self._state.log.last_index
        return None if message.prev_index <= last_index else last_index + 1


class FollowsDeposedLeaders(Follower):
    """Entries of a leader of an earlier term are taken."""

    def on_append(self, peer: int, append: Append) -> None:
        message = msgspec.structs.replace(append.message, term=self._state.term)
        super().on_append(peer, Append(message, append.entries))


class _BoastfulGate(DurabilityGate):
    def submit(self, peer: int, message: Any, needs_index: int, synced_index: int) -> None:
        if isinstance(message, AppendReply):
            message = msgspec.structs.replace(message, match_index=max(message.match_index, synced_index))
        super().submit(peer, message, needs_index, synced_index)


class AcksItsWholeLog(Sender):
    """An acknowledgement names the end of the follower's synced log, not how far the leader has checked it."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.gate = _BoastfulGate(self._transport_send)

    def send(self, peer: int, message: Any) -> None:
        if isinstance(message, AppendReply) and message.success:
            message = msgspec.structs.replace(message, match_index=self._state.log.synced_index)
        super().send(peer, message)


class CommitsAlone(SafeRaft):
    """An entry on the leader's own disk counts as committed."""

    commit_limit = ANY_INDEX

    def on_synced(self) -> None:
        super().on_synced()
        if self.state.role == LEADER:
            self.state.library.commit_index = self.state.log.synced_index


class CommitsEarlierTerms(SafeRaft):
    """An entry of an earlier term counts as committed once a majority has it (Raft paper 5.4.2)."""

    commit_limit = ANY_INDEX

    def on_tick(self) -> None:
        state = self.state
        if state.role == LEADER:
            acked = (progress.acked for progress in self.replication._progress.values())
            state.library.commit_index = sorted([state.log.synced_index, *acked])[-state.majority]
        super().on_tick()


class CommitsBeforeItsNoOpIsDurable(Replication):
    """Followers that are quicker than the own disk let a new leader commit its own log before its no-op: entries of
    earlier terms (seed 8400013).
    """

    @property
    def _committable(self) -> int:
        return min(self.commit_limit, self._state.log.synced_index)


class TakesTheLeadersCommitIndex(Follower):
    """A follower commits up to the leader's commit index, beyond what it knows to match (row 3)."""

    def on_append(self, peer: int, append: Append) -> None:
        super().on_append(peer, append)
        state, message = self._state, append.message
        if message.term == state.term and state.leader_id == peer:
            self._known_committed = max(self._known_committed, min(message.commit_index, state.log.last_index))
            self.commit_synced()


def calls_all_committed_after_a_restart(journal: Journal) -> int:
    """A node that starts takes its whole log for committed (row 6)."""
    return journal.log.synced_index


class AppliesBeforeCommit(Applier):
    """A follower applies the entries that it has on disk, committed or not."""

    def apply_committed(self) -> None:
        state = self._state
        if state.role != LEADER and state.last_applied < state.log.synced_index:
            entries = state.log.entries(state.last_applied + 1, APPLY_BYTES, last=state.log.synced_index)
            self._apply(entries, lambda: True)
            state.library.last_applied = entries[-1].index
        super().apply_committed()


class AppliesOneTooMany(Applier):
    """A follower applies the entry behind the last committed one too, when it is on its disk."""

    @property
    def has_unapplied(self) -> bool:
        return self._state.last_applied < self._last

    @property
    def _last(self) -> int:
        state = self._state
        return state.commit_index if state.role == LEADER else min(state.commit_index + 1, state.log.synced_index)

    def apply_committed(self) -> None:
        state = self._state
        if state.role == LEADER or not self.has_unapplied:
            super().apply_committed()
            return
        entries = self._to_apply or state.log.entries(state.last_applied + 1, APPLY_BYTES, last=self._last)
        results = self._apply(entries, lambda: True)
        self._to_apply = entries[len(results) :] if results else entries
        if results:
            state.library.last_applied = entries[len(results) - 1].index


class AppliesABacklogAtOnce(Applier):
    """All committed entries are applied before anything else is looked at, however long it takes."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        apply = self._apply
        self._apply = lambda entries, _: apply(entries, lambda: True)


class AppliesTwice(Applier):
    """Entries are handed to the state machine once more."""

    def apply_committed(self) -> None:
        state = self._state
        applied_before = state.last_applied
        super().apply_committed()
        if state.last_applied > applied_before:
            self._apply(state.log.entries(applied_before + 1, APPLY_BYTES, last=state.last_applied), lambda: True)


class AnswersForAnothersEntry(Proposing):
    """A deposed leader keeps its clients waiting and answers them with the result of whichever entry is committed in
    that place.
    """

    def lose(self) -> None:
        pass

    def resolve(self, entries: Sequence[Entry], results: Sequence[Any]) -> None:
        last, log = self._state.log.last_index, self._state.log
        self._waiting = {
            index: (log.term_at(index) if index <= last else term, on_outcome)
            for index, (term, on_outcome) in self._waiting.items()
        }
        super().resolve(entries, results)


def _part(invariant: int, part: type, *, rare: bool = False) -> Variant:
    return mutant(invariant, swap_part(part), rare=rare)


MUTANTS = (
    _part(1, TakesAcksOfAnyTerm, rare=True),
    _part(12, CountsAcksOfAnEarlierConnection),
    _part(12, CountsANewDiskAtOnce),
    _part(1, KeepsPromisesOfPastTerms, rare=True),
    _part(1, CutsMatchingEntries),
    _part(3, CutsCommittedEntries),
    _part(3, AppendsWithoutMatching),
    _part(3, FollowsDeposedLeaders, rare=True),
    _part(1, AcksItsWholeLog, rare=True),
    _part(1, CommitsAlone),
    _part(3, CommitsEarlierTerms),
    _part(3, CommitsBeforeItsNoOpIsDurable),
    _part(3, TakesTheLeadersCommitIndex, rare=True),
    mutant(3, Swap(Journal, "getRaftCommitIndex", calls_all_committed_after_a_restart)),
    _part(4, AppliesBeforeCommit),
    _part(4, AppliesOneTooMany),
    _part(0, AppliesABacklogAtOnce),
    _part(8, AppliesTwice),
    _part(11, AnswersForAnothersEntry),
)
