"""What leader and followers do with entries, acknowledgements and the commit index, broken."""

from collections.abc import Sequence
from typing import Any

import msgspec

import raft.node
from raft.gate import DurabilityGate
from raft.handlers import APPLY_BYTES, SafeSyncObj
from raft.journal import Journal
from raft.library import LEADER
from raft.messages import Append, AppendEntries, AppendReply
from store.log.record import Entry
from tests.sim.variant import Swap, Variant, mutant

ANY_INDEX = 1 << 62
"""Mutants that commit by rules of their own are not held back by the configuration either."""


class TakesAcksOfAnyTerm(SafeSyncObj):
    """An acknowledgement given to an earlier leadership is counted in this one."""

    def on_append_reply(self, peer: int, reply: AppendReply) -> None:
        super().on_append_reply(peer, msgspec.structs.replace(reply, term=self.term))


class CountsANewDiskAtOnce(SafeSyncObj):
    """The copy on a new disk counts although the old one may have voted for who leads a later term."""

    def on_append_reply(self, peer: int, reply: AppendReply) -> None:
        super().on_append_reply(peer, msgspec.structs.replace(reply, counts=True))


class CountsAcksOfAnEarlierConnection(SafeSyncObj):
    """What a node acknowledged before it came back, with another disk or the same put back, still counts."""

    def on_peer_connected(self, peer: int, incarnation: str) -> None:
        kept = self._progress.get(peer)
        super().on_peer_connected(peer, incarnation)
        if kept is not None and peer in self._progress:
            kept.restart()
            self._progress[peer] = kept
            self._count_acknowledged(peer)


class KeepsPromisesOfPastTerms(SafeSyncObj):
    """An acknowledgement that waited for the disk still leaves after its sender has gone on to a later term."""

    def on_higher_term(self) -> None:
        pass


class CutsMatchingEntries(SafeSyncObj):
    """The stock library's habit: everything after the previous entry goes, even what matches."""

    def _append_missing(self, prev_index: int, entries: Sequence[Entry]) -> tuple[int, int]:
        if entries and max(self.commit_index, 1) <= prev_index < self.log.last_index:
            self.log.truncate_from(prev_index + 1)
        return super()._append_missing(prev_index, entries)


class CutsCommittedEntries(SafeSyncObj):
    """The stock library's habit without a look at the commit index: committed entries are cut too."""

    def _append_missing(self, prev_index: int, entries: Sequence[Entry]) -> tuple[int, int]:
        if entries and 0 < prev_index < self.log.last_index:
            self.log.truncate_from(prev_index + 1)
        return super()._append_missing(prev_index, entries)


class AppendsWithoutMatching(SafeSyncObj):
    """A follower appends behind an entry of another term than the leader's."""

    def _mismatch(self, message: AppendEntries) -> int | None:
        return None if message.prev_index <= self.log.last_index else self.log.last_index + 1


class FollowsDeposedLeaders(SafeSyncObj):
    """Entries of a leader of an earlier term are taken."""

    def on_append(self, peer: int, append: Append) -> None:
        message = msgspec.structs.replace(append.message, term=self.term)
        super().on_append(peer, Append(message, append.entries))


class _BoastfulGate(DurabilityGate):
    def submit(self, peer: int, message: Any, needs_index: int, synced_index: int) -> None:
        if isinstance(message, AppendReply):
            message = msgspec.structs.replace(message, match_index=max(message.match_index, synced_index))
        super().submit(peer, message, needs_index, synced_index)


class AcksItsWholeLog(SafeSyncObj):
    """An acknowledgement names the end of the follower's synced log, not how far the leader has checked it."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.gate = _BoastfulGate(self._transport_send)

    def send(self, peer: int, message: Any) -> None:
        if isinstance(message, AppendReply) and message.success:
            message = msgspec.structs.replace(message, match_index=self.log.synced_index)
        super().send(peer, message)


class CommitsAlone(SafeSyncObj):
    """What is on the leader's own disk counts as committed."""

    commit_limit = ANY_INDEX

    def on_synced(self) -> None:
        super().on_synced()
        if self.role == LEADER:
            self.commit_index = self.log.synced_index


class CommitsEarlierTerms(SafeSyncObj):
    """An entry of an earlier term counts as committed once a majority has it (Raft paper 5.4.2)."""

    commit_limit = ANY_INDEX

    def _onTick(self, timeToWait: float = 0.0) -> None:  # noqa: N802, N803
        if self.role == LEADER:
            held = sorted([self.log.synced_index, *(progress.acked for progress in self._progress.values())])
            self.commit_index = held[-self.majority]
        super()._onTick(timeToWait)


class TakesTheLeadersCommitIndex(SafeSyncObj):
    """A follower commits up to the leader's commit index, beyond what it knows to match (row 3)."""

    def on_append(self, peer: int, append: Append) -> None:
        super().on_append(peer, append)
        if append.message.term == self.term and self.leader_id == peer:
            self._known_committed = max(self._known_committed, min(append.message.commit_index, self.log.last_index))
            self.commit_index = self._known_committed


def calls_all_committed_after_a_restart(journal: Journal) -> int:
    """A node that starts takes its whole log for committed (row 6)."""
    return journal.log.synced_index


class AppliesBeforeCommit(SafeSyncObj):
    """A follower applies what it has on disk, committed or not."""

    def apply_committed(self) -> None:
        if self.role != LEADER and self.last_applied < self.log.synced_index:
            entries = self.log.entries(self.last_applied + 1, APPLY_BYTES, last=self.log.synced_index)
            self._apply(entries, lambda: True)
            self.last_applied = entries[-1].index
        super().apply_committed()


class AppliesABacklogAtOnce(SafeSyncObj):
    """However long it takes, all that is committed is applied before anything else is looked at."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        apply = self._apply
        self._apply = lambda entries, _: apply(entries, lambda: True)


class AppliesTwice(SafeSyncObj):
    """Entries are handed to the state machine once more."""

    def apply_committed(self) -> None:
        applied_before = self.last_applied
        super().apply_committed()
        if self.last_applied > applied_before:
            self._apply(self.log.entries(applied_before + 1, APPLY_BYTES, last=self.last_applied), lambda: True)


class AnswersForAnothersEntry(SafeSyncObj):
    """A deposed leader keeps its clients waiting and answers them with whatever is committed in that place."""

    def on_role_changed(self, previous: int, role: int) -> None:
        waiting, self._waiting = self._waiting, {}
        super().on_role_changed(previous, role)
        self._waiting = waiting

    def apply_committed(self) -> None:
        last = self.log.last_index
        self._waiting = {
            index: (self.log.term_at(index) if index <= last else term, on_outcome)
            for index, (term, on_outcome) in self._waiting.items()
        }
        super().apply_committed()


def _handlers(invariant: int, part: type[SafeSyncObj], *, rare: bool = False) -> Variant:
    return mutant(invariant, Swap(raft.node, "SafeSyncObj", part), rare=rare)


MUTANTS = (
    _handlers(1, TakesAcksOfAnyTerm, rare=True),
    _handlers(12, CountsAcksOfAnEarlierConnection),
    _handlers(12, CountsANewDiskAtOnce),
    _handlers(1, KeepsPromisesOfPastTerms, rare=True),
    _handlers(1, CutsMatchingEntries),
    _handlers(3, CutsCommittedEntries),
    _handlers(3, AppendsWithoutMatching),
    _handlers(3, FollowsDeposedLeaders, rare=True),
    _handlers(1, AcksItsWholeLog, rare=True),
    _handlers(1, CommitsAlone),
    _handlers(3, CommitsEarlierTerms),
    _handlers(3, TakesTheLeadersCommitIndex, rare=True),
    mutant(3, Swap(Journal, "getRaftCommitIndex", calls_all_committed_after_a_restart)),
    _handlers(4, AppliesBeforeCommit),
    _handlers(0, AppliesABacklogAtOnce),
    _handlers(8, AppliesTwice),
    _handlers(11, AnswersForAnothersEntry),
)
