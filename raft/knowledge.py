"""What a node knows beyond its own log, and how a disk that was put back is found out (docs/decisions.md, 23).

Raft trusts disks to remember. A disk that is put back to an earlier state (an older copy of the data directory, a
snapshot of a virtual machine, a drive that lied) has forgotten acknowledgements and votes and does not know it. Others
do:

* Every node remembers the last entry that a leader called committed, also if its own log does not reach it. Whoever
  lacks that entry gets no vote, and nobody stands who lacks it: the two who know less do not decide without the third.
* Every node remembers of every other one the latest term in which it spoke and, as leader, what it acknowledged, and
  tells it on every new connection. A node that finds that it holds less has forgotten: from then on its disk is a new
  one, under a new incarnation, which neither votes nor counts until a leader has filled it (raft/rejoin.py).

A node may hold less than it acknowledged and have forgotten nothing: what was never committed is cut by later leaders.
So the term of the last cut is kept, durable before anything is cut.
"""

from raft.library import now
from raft.membership import MEMBERS_MAX
from raft.messages import Recall
from store.log.watermarks import PeerMark, Watermarks

MARKS_MAX = 2 * MEMBERS_MAX
"""Nodes that were removed are remembered as long as there is room."""
SUPERSEDED_MAX = 3
"""Disks that a node had before, of which it may come back with one: an old copy of a machine is put back twice."""
SUPERSEDED_LENGTH_MAX = 40
"""Incarnations are 32 characters; longer ones of a peer would not all fit into the file."""
MARKS_INTERVAL_S = 0.1
"""The marks of the other nodes change with every acknowledgement, and are written this often at most."""
SYNC_INTERVAL_S = 1.0
"""What a power loss may take of the watermarks is not older than this while the node runs."""


class Knowledge:
    """Loop-only. Invariant: `committed` and what is known of one incarnation of a peer never go back."""

    def __init__(self, watermarks: Watermarks) -> None:
        self._file = watermarks
        self.committed: tuple[int, int] = watermarks.known_term, watermarks.known_index
        """Term and index of the last entry that was called committed, here or by a leader."""
        self._marks = watermarks.marks
        self._marks_changed = False
        self._synced_at_s = now()
        self._marked_at_s = float("-inf")

    # --- what is committed -------------------------------------------------------------------------------------

    def told_committed(self, term: int, index: int) -> None:
        """By a leader, this node or another, of the last entry that it knows to be committed."""
        if (term, index) > self.committed:
            self.committed = term, index

    def is_complete(self, last_term: int, last_index: int) -> bool:
        """Whether a log that ends with this entry can hold everything that is known to be committed (Raft paper 5.4.1:
        who lacks a committed entry has a last entry of an earlier term, or of the same term and a lower index).
        """
        return (last_term, last_index) >= self.committed

    # --- what others have said ---------------------------------------------------------------------------------

    def met(self, peer: int, incarnation: str) -> None:
        """The peer is connected; what was known of another disk of its does not concern this one."""
        mark = self._marks.get(peer)
        if mark is None or mark.incarnation != incarnation:
            before = () if mark is None else (*mark.superseded, mark.incarnation)
            self._marks.pop(peer, None)
            while len(self._marks) >= MARKS_MAX:  # of nodes that were removed, the oldest first
                del self._marks[next(iter(self._marks))]
            kept = [each for each in dict.fromkeys(reversed(before)) if len(each) <= SUPERSEDED_LENGTH_MAX]
            self._marks[peer] = PeerMark(incarnation, superseded=tuple(reversed(kept[:SUPERSEDED_MAX])))
            self._marks_changed = True

    def heard(self, peer: int, term: int) -> None:
        """The peer has spoken in this term."""
        mark = self._marks.get(peer)
        if mark is not None and term > mark.term:
            mark.term = term
            self._marks_changed = True

    def acknowledged(self, peer: int, term: int, index: int) -> None:
        """To this leader of `term`, whose own entries begin at or before `index`."""
        mark = self._marks.get(peer)
        if mark is not None and (term, index) > (mark.acked_term, mark.acked_index):
            mark.acked_term, mark.acked_index = term, index
            self._marks_changed = True

    def recall(self, peer: int, own_term: int) -> Recall | None:
        """What that peer is to be reminded of; None if nothing is known."""
        mark = self._marks.get(peer)
        is_superseded = mark is not None and mark.incarnation in mark.superseded
        if mark is None or not (mark.term or is_superseded):
            return None
        return Recall(own_term, mark.incarnation, mark.term, mark.acked_term, mark.acked_index, is_superseded)

    # --- what this node has forgotten --------------------------------------------------------------------------

    def forgotten(self, told: Recall, own_term: int, last_term: int, last_index: int) -> str:
        """What of `told` this node's disk does not know, in words; empty if it knows all of it."""
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
        """Durable on return: what is cut in this term was not forgotten."""
        self._file.note_cut(term)

    # --- the file ----------------------------------------------------------------------------------------------

    def write(self, committed_index: int) -> bool:
        """Note `committed_index`, up to which this node's own log is committed, and whatever has changed. Returns
        whether the sync thread has to be asked to sync that as well, once a second. Raises DiskError.
        """
        self._file.note_commit(committed_index, *self.committed)
        if self._marks_changed and now() - self._marked_at_s >= MARKS_INTERVAL_S:
            self._file.note_marks(self._marks)
            self._marks_changed, self._marked_at_s = False, now()
        is_due = self._file.is_dirty and now() - self._synced_at_s >= SYNC_INTERVAL_S
        if is_due:
            self._synced_at_s = now()
            self._file.sync_wanted = True
        return is_due
