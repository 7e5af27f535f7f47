"""Broken ways to count data as durable, and to answer for it."""

from typing import Any

from raft.gate import DurabilityGate
from raft.library import PinnedSyncObj
from raft.proposals import ProposalQueue
from raft.replication.replication import Replication
from raft.sender import Sender
from store.log.commit_log import CommitLog, SyncRun
from store.log.errors import DiskError
from store.log.record import Entry
from tests.sim.mutants.parts import swap_part
from tests.sim.variant import Swap, mutant


class _OpenGate(DurabilityGate):
    def submit(self, peer: int, message: Any, needs_index: int, synced_index: int) -> None:
        super().submit(peer, message, 0, synced_index)


class AcksBeforeSync(Sender):
    """Appends, votes and vote requests are promised while the log is still in the page cache."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.gate = _OpenGate(self._transport_send)


class CountsOwnCopyEarly(Replication):
    """The leader's own copy counts before it is durable."""

    def _count(self, peer: int) -> None:
        self._library.set_match(peer, self._progress[peer].acked)


class _CommitsUnsynced(PinnedSyncObj):
    def _get_commit_index(self) -> int:
        return self._commit_index

    def _set_commit_index(self, index: int) -> None:
        self._commit_index = max(self._commit_index, index)

    commit_index = property(_get_commit_index, _set_commit_index)
    _SyncObj__raftCommitIndex = commit_index


class ReceiptNamesEverybody(Replication):
    """A receipt names all nodes that are connected, also those that have not synced the entry."""

    def durable_on(self, index: int) -> tuple[int, ...]:
        state = self._state
        return tuple(sorted([state.node_id, *filter(state.connected, state.peer_ids)]))


_begin_sync, _end_sync = CommitLog.begin_sync, CommitLog.end_sync


def sync_covers_too_much(log: CommitLog, error: BaseException | None = None) -> None:
    """Entries that are appended while a sync runs count as synced by it."""
    if log._sync_run is not None:
        log._sync_run = log._sync_run._replace(index=log.last_index, position=log.end_position)
    _end_sync(log, error)


def retries_failed_sync(log: CommitLog, error: BaseException | None = None) -> None:
    """A failed fsync is tried again; the second succeeds, and the pages are gone (fsyncgate)."""
    if log._sync_run is not None and isinstance(error, DiskError):
        log._sync_run.file.fdatasync()
        error = None
    _end_sync(log, error)


def marks_before_sync(log: CommitLog) -> SyncRun | None:
    """The `synced` mark is raised before the sync has returned: a crash in between looks like lost data."""
    run = _begin_sync(log)
    if run is not None:
        log._mark.set_progress(run.epoch, run.position)
    return run


_on_outcome = ProposalQueue._on_outcome


def answers_in_the_wrong_order(
    proposals: ProposalQueue, group: Any, timestamp_ms: int, entry: Entry | None, outcome: Any
) -> None:
    """The answers of requests that shared an entry are interchanged."""
    _on_outcome(proposals, group, timestamp_ms, entry, outcome[::-1] if entry is not None else outcome)


MUTANTS = (
    mutant(2, swap_part(AcksBeforeSync)),
    mutant(2, swap_part(CountsOwnCopyEarly), swap_part(_CommitsUnsynced)),
    mutant(1, swap_part(ReceiptNamesEverybody)),
    mutant(2, Swap(CommitLog, "end_sync", sync_covers_too_much)),
    mutant(2, Swap(CommitLog, "end_sync", retries_failed_sync), rare=True),
    mutant(10, Swap(CommitLog, "begin_sync", marks_before_sync)),
    mutant(11, Swap(ProposalQueue, "_on_outcome", answers_in_the_wrong_order)),
)
