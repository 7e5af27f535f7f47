"""The commit log and the hard state as the journal PySyncObj expects (row 7 of docs/safe-pysyncobj.md).

The library asks its journal for the last index on every step and for terms in its commit rule, never for payloads:
those travel through raft/replication/replication.py. So an item here is `(b"", index, term)` and costs no disk read. Of
a log whose front was removed the first item is its base, so the journal is never empty.
"""

from collections.abc import Callable
from typing import overload

from pysyncobj.journal import Journal as LibraryJournal

from raft.errors import SafetyViolation
from store.log.commit_log import CommitLog
from store.log.hard_state import HardState
from store.log.record import KIND_NOOP
from store.log.watermarks import Watermarks

Item = tuple[bytes, int, int]


class Journal(LibraryJournal):  # type: ignore[misc]  # the library is untyped
    """Owns neither log, hard state nor watermarks; whoever opened them closes them.

    Invariant: what it reports as committed at start is on this node's disk and was applied, hence committed, or was
    noted as committed, before (row 6).
    """

    def __init__(self, log: CommitLog, hard_state: HardState, applied_index: int, watermarks: Watermarks) -> None:
        self.log = log
        self.watermarks = watermarks
        self._hard_state = hard_state
        self._applied_index = applied_index
        self.opening: Callable[[], bytes] = bytes
        """What the no-op says that a leadership begins with: the name of a cluster that has none."""

    @property
    def durable_index(self) -> int:
        """Everything up to here survives a power loss of this node."""
        return self.log.synced_index

    def add(self, command: bytes, idx: int, term: int) -> None:
        """The library adds only the no-op of a new leader; written, not yet durable."""
        self.log.append(idx, term, KIND_NOOP, self.opening())

    def __len__(self) -> int:
        return self.log.last_index - self._first_item + 1

    @overload
    def __getitem__(self, item: int) -> Item: ...
    @overload
    def __getitem__(self, item: slice) -> list[Item]: ...
    def __getitem__(self, item: int | slice) -> Item | list[Item]:
        log = self.log
        if isinstance(item, slice):
            return [self._item(self._first_item + i) for i in range(*item.indices(len(self)))]
        if item == -1:
            return b"", log.last_index, log.last_term
        return self._item(self._first_item + item)

    @property
    def _first_item(self) -> int:
        return max(self.log.base.index, 1)

    def _item(self, index: int) -> Item:
        return b"", index, self.log.term_at(index)

    def setRaftCommitIndex(self, raftCommitIndex: int) -> None:  # noqa: N802, N803
        """Noted in the watermarks, after each step (raft/knowledge.py)."""

    def getRaftCommitIndex(self) -> int:  # noqa: N802
        return min(max(self._applied_index, self.watermarks.committed_index), self.log.synced_index)

    def setCurrentTerm(self, term: int, votedForNodeId: int | None) -> None:  # noqa: N802, N803
        """Durable on return; an error is not swallowed (unlike the library's own journals)."""
        if (term, votedForNodeId) != (self._hard_state.term, self._hard_state.voted_for):
            self._hard_state.set(term, votedForNodeId)

    def getCurrentTerm(self) -> int:  # noqa: N802
        return self._hard_state.term

    def getVotedForNodeId(self) -> int | None:  # noqa: N802
        return self._hard_state.voted_for

    @property
    def voter(self) -> bool:
        """True when this disk holds everything the node ever acknowledged (store/log/hard_state.py)."""
        return self._hard_state.voter

    def become_voter(self) -> None:
        """Durable on return."""
        if not self._hard_state.voter:
            self._hard_state.become_voter()

    def lose_vote(self) -> None:
        """Durable on return."""
        if self._hard_state.voter:
            self._hard_state.lose_vote()

    def deleteEntriesFrom(self, entryFrom: int) -> None:  # noqa: N802, N803
        raise SafetyViolation("only raft/entries/log_writer.py truncates the log")

    def deleteEntriesTo(self, entryTo: int) -> None:  # noqa: N802, N803
        raise SafetyViolation("the library must not compact the log")

    def clear(self) -> None:
        raise SafetyViolation("the library must not clear the log")

    def _destroy(self) -> None:
        """The log outlives the library's node."""
