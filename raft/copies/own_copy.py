"""A node's judgement of its own copy: whether it forgot something, or differs from the others' copies.

Either way the copy is worth no vote. A disk that forgot begins anew by itself; one that differs waits for an operator,
since whoever looks for the cause needs it as it is.
"""

import logging
from collections.abc import Callable

from raft.copies.replicas import Replicas
from raft.library import LEADER
from raft.messages import Recall
from raft.state import RaftState
from store.log.differs import Difference, DiffersMark
from store.log.errors import DiskFull
from store.state.state_history import StateHistory

log = logging.getLogger(__name__)


class OwnCopy:
    """Invariant: a node that knows that its copy lacks something, or differs, neither votes nor counts from then on,
    and knows it after a restart.
    """

    def __init__(self, state: RaftState, replicas: Replicas, resign: Callable[[], None]) -> None:
        """`resign()` makes a leader ask another node to lead, and step down."""
        self.on_forgotten: Callable[[], None] = lambda: None
        """Called when this disk turned out to have been put back: the node has to start again, as a new disk."""
        self._state = state
        self._replicas = replicas
        self._resign = resign
        self._forgotten = ""  # what this disk lacks of what it once held, in words
        self._differs: DiffersMark | None = None

    def compare_replicas(self, history: StateHistory, differs: DiffersMark | None) -> Replicas:
        """Compare this replica with the others from now on, by the state that `history` describes.

        `differs` is the file in which a difference is, or will be, noted.
        """
        self._differs = differs
        self._replicas.compare(history, None if differs is None else differs.difference)
        return self._replicas

    @property
    def is_sound(self) -> bool:
        """True when this node knows of nothing that its disk lacks, or has otherwise than the other replicas."""
        return not self._forgotten and not self._replicas.differs

    @property
    def differs(self) -> bool:
        """True when this copy is known to differ from the copies of a majority."""
        return self._replicas.differs

    @property
    def votes(self) -> bool:
        """True when this disk holds everything it ever acknowledged, unchanged, as far as this node knows."""
        return self._state.journal.voter and self.is_sound

    def on_recall(self, peer: int, told: Recall, own_term: int) -> None:
        """Hear from a peer what this disk once held (raft/knowledge.py).

        `own_term` is the term that this node knew before the message came.
        """
        state = self._state
        if told.incarnation != state.config.incarnation or self._forgotten:
            return
        self._forgotten = state.knowledge.forgotten(told, own_term, *self._durable_end())
        if self._forgotten:
            log.error(
                "this disk lacks data that it acknowledged, says node %d: %s. The disk was put back to an earlier "
                "state, or lost writes. From now on it counts as a new disk: the leader fills it, and this node votes "
                "when it has caught up. Find out who put the disk back, or replace the drive",
                peer,
                self._forgotten,
            )
            self._begin_anew()

    def _durable_end(self) -> tuple[int, int]:
        """Return term and index of the last durable entry: only durable entries were ever acknowledged, and a disk that
        was put back may be filled at this moment.
        """
        commit_log = self._state.log
        return commit_log.term_at(commit_log.synced_index), commit_log.synced_index

    def has_begun_anew(self) -> bool:
        """Once per step: return whether this disk forgot something, so that the node does nothing but start again.

        Raises DiskFull while the vote cannot be given up; the next step tries again, and until then this node neither
        votes nor counts.
        """
        if self._forgotten:
            self._begin_anew()
        return bool(self._forgotten)

    def _begin_anew(self) -> None:
        """Give the vote up, durably, and have the node start again as a new disk. Raises DiskFull."""
        self._state.journal.lose_vote()
        self.on_forgotten()

    def contradicted(self, peer: int, difference: Difference) -> None:
        """Note that the log of the leader `peer` has other bytes than this one where indexes and terms are equal."""
        self._replicas.contradicted(peer, difference)

    def stop_differing(self) -> None:
        """Once per step: if this replica is found to differ, give up leadership and, durably, the vote, and note the
        difference as soon as the disk has room.

        Raises DiskFull while the vote cannot be given up; the next step tries again, and until then this node neither
        votes nor counts.
        """
        difference: Difference | None = self._replicas.difference
        if difference is None:
            return
        if self._state.role == LEADER:
            self._resign()
        self._state.journal.lose_vote()
        if self._differs is not None:
            try:
                self._differs.note(difference)
            except DiskFull as error:  # the next step tries again; the vote is gone already
                log.debug("cannot note yet that this replica differs, and tries again: %s", error)
