"""A node's knowledge beyond its own log, which detects a disk that was put back (docs/decisions.md, 23).

Raft trusts disks to remember. A disk that is put back to an earlier state (an older copy of the data directory, a
snapshot of a virtual machine, a drive that lied) has forgotten acknowledgements and votes, and does not know it. The
other nodes know:

* Every node remembers the last entry that a leader called committed, also if its own log does not reach it. A node
  that lacks that entry gets no vote and does not stand for election: two nodes that know less do not decide without
  the third.
* Every node remembers, for every other node, the latest term in which that node spoke and which entries it
  acknowledged to this node as leader, and sends both on every new connection. A node that finds that its disk holds
  less has forgotten: from then on its disk counts as a new one, under a new incarnation, which neither votes nor
  counts until a leader has filled it (raft/copies/rejoin.py).

A node may hold less than it acknowledged and still have forgotten nothing, because later leaders cut entries that were
never committed. So the term of the last cut is kept, and is durable before anything is cut.
"""

from raft.library import now
from raft.membership import MEMBERS_MAX
from raft.messages import Recall
from store.log.watermarks import PeerMark, Watermarks

MARKS_MAX = 2 * MEMBERS_MAX
"""Maximum number of nodes with a mark: nodes that were removed are remembered as long as there is room."""
SUPERSEDED_MAX = 3
"""Number of a node's earlier disks that are remembered; it may come back with one, when an old copy is put back twice.
"""
SUPERSEDED_LENGTH_MAX = 40
"""Maximum length of a remembered incarnation: incarnations are 32 characters, and longer ones would not all fit into
the file.
"""
MARKS_INTERVAL_S = 0.1
"""Minimum seconds between two writes of the marks, which change with every acknowledgement."""
SYNC_INTERVAL_S = 1.0
"""Seconds between two syncs of the watermarks: a power loss takes at most this much of them while the node runs."""


class Knowledge:
    """Owns the committed position and the marks of the other nodes. Use it only on the event loop. Invariant:
    `committed` and the mark of one incarnation of a peer never go back.
    """

    def __init__(self, watermarks: Watermarks) -> None:
        self._file = watermarks
        self.committed: tuple[int, int] = watermarks.known_term, watermarks.known_index
        """Term and index of the last entry that this node or a leader called committed."""
        self._marks = watermarks.marks
        self._marks_changed = False
        self._synced_at_s = now()
        self._marked_at_s = float("-inf")

    # --- what is committed -------------------------------------------------------------------------------------

    def told_committed(self, term: int, index: int) -> None:
        """Take over the last entry that a leader (this node or another) knows to be committed."""
        if (term, index) > self.committed:
            self.committed = term, index

    def is_complete(self, last_term: int, last_index: int) -> bool:
        """Return whether a log that ends with this entry can hold every entry known to be committed (Raft paper 5.4.1:
        a log that lacks a committed entry ends with an entry of an earlier term, or of the same term and a lower
        index).
        """
        return (last_term, last_index) >= self.committed

    # --- what others have said ---------------------------------------------------------------------------------

    def met(self, peer: int, incarnation: str) -> None:
        """Note that the peer is connected. A mark of another incarnation (disk) of the peer is replaced by an empty
        one.
        """
        mark = self._marks.get(peer)
        if mark is None or mark.incarnation != incarnation:
            before = () if mark is None else (*mark.superseded, mark.incarnation)
            self._marks.pop(peer, None)
            while len(self._marks) >= MARKS_MAX:  # drop the oldest marks, which are of removed nodes
                del self._marks[next(iter(self._marks))]
            kept = [each for each in dict.fromkeys(reversed(before)) if len(each) <= SUPERSEDED_LENGTH_MAX]
            self._marks[peer] = PeerMark(incarnation, superseded=tuple(reversed(kept[:SUPERSEDED_MAX])))
            self._marks_changed = True

    def heard(self, peer: int, term: int) -> None:
        """Note that the peer has spoken in `term`."""
        mark = self._marks.get(peer)
        if mark is not None and term > mark.term:
            mark.term = term
            self._marks_changed = True

    def acknowledged(self, peer: int, term: int, index: int) -> None:
        """Note an acknowledgement to this leader of `term`, whose own entries begin at or before `index`."""
        mark = self._marks.get(peer)
        if mark is not None and (term, index) > (mark.acked_term, mark.acked_index):
            mark.acked_term, mark.acked_index = term, index
            self._marks_changed = True

    def recall(self, peer: int, own_term: int) -> Recall | None:
        """Return the `Recall` for a peer, which says what its disk must remember; None if nothing is known, or nothing
        that this node, whose term is `own_term`, can have heard: then it is its own disk that was put back.
        """
        mark = self._marks.get(peer)
        is_superseded = mark is not None and mark.incarnation in mark.superseded
        if mark is None or not (mark.term or is_superseded) or max(mark.term, mark.acked_term) > own_term:
            return None
        return Recall(own_term, mark.incarnation, mark.term, mark.acked_term, mark.acked_index, is_superseded)

    # --- what this node has forgotten --------------------------------------------------------------------------

    def forgotten(self, told: Recall, own_term: int, last_term: int, last_index: int) -> str:
        """Return in words which part of `told` this node's disk does not know; empty if the disk knows all of it."""
        if told.superseded:
            return "it was given up for another one since, and votes and acknowledgements of that one may be missing"
        if own_term < told.spoken_term:
            return f"it spoke in term {told.spoken_term} and knows of term {own_term}"
        missing = (last_term, last_index) < (told.acked_term, told.acked_index)
        if missing and self._file.cut_term <= told.acked_term:
            return (
                f"it acknowledged entry {told.acked_index} in term {told.acked_term}, and its log ends at entry "
                f"{last_index} of term {last_term}"
            )
        return ""

    def note_cut(self, term: int) -> None:
        """Note that entries are cut in `term`, so they do not count as forgotten. The note is durable on return."""
        self._file.note_cut(term)

    # --- the file ----------------------------------------------------------------------------------------------

    def write(self, committed_index: int) -> bool:
        """Note `committed_index`, up to which this node's own log is committed, and all changed marks. Returns True at
        most once a second, when the caller has to request a sync. Raises DiskError.
        """
        self._file.note_commit(committed_index, *self.committed)
        at_s = now()
        if self._marks_changed and at_s - self._marked_at_s >= MARKS_INTERVAL_S:
            self._file.note_marks(self._marks)
            self._marks_changed, self._marked_at_s = False, at_s
        is_due = self._file.is_dirty and at_s - self._synced_at_s >= SYNC_INTERVAL_S
        if is_due:
            self._synced_at_s = at_s
            self._file.sync_wanted = True
        return is_due
