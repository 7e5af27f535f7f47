"""What a node finds out about its own copy: that it forgot something, or that it is not what the others have.

Either way the copy is worth no vote. A disk that forgot begins anew by itself; one that differs waits for an operator,
since whoever looks for the cause needs it as it is.
"""

import logging
from collections.abc import Callable
from typing import Any

from raft.config import RaftConfig
from raft.journal import Journal
from raft.knowledge import Knowledge
from raft.library import FOLLOWER, LEADER, PinnedSyncObj
from raft.messages import Recall
from raft.replicas import Replicas
from store.log.commit_log import CommitLog
from store.log.differs import Difference, DiffersMark
from store.log.errors import DiskFull
from store.state.state_history import StateHistory

log = logging.getLogger(__name__)


class OwnCopy(PinnedSyncObj):
    """Invariant: who knows that its copy lacks something, or differs, neither votes nor counts from then on, and knows
    it after a restart.
    """

    config: RaftConfig
    journal: Journal
    log: CommitLog
    knowledge: Knowledge
    replicas: Replicas

    def __init__(self, *arguments: Any) -> None:
        self.on_forgotten: Callable[[], None] = lambda: None
        """Called when this disk turned out to have been put back: the node has to start again, as a new disk."""
        self._forgotten = ""  # what this disk lacks of what it once held, in words
        self._differs: DiffersMark | None = None
        super().__init__(*arguments)

    def compare_replicas(self, history: StateHistory, differs: DiffersMark | None) -> Replicas:
        """From now on, by the state that `history` is of; `differs` is where a difference is, or will be, noted."""
        self._differs = differs
        self.replicas.history = history
        self.replicas.difference = None if differs is None else differs.difference
        return self.replicas

    @property
    def votes(self) -> bool:
        """Whether this disk holds everything it ever acknowledged, unchanged, as far as this node knows."""
        return self.journal.voter and not self._forgotten and not self.replicas.differs

    def on_recall(self, peer: int, told: Recall, own_term: int) -> None:
        """A peer says what this disk held once (raft/knowledge.py); it knew `own_term` before that message came."""
        if told.incarnation != self.config.incarnation or self._forgotten:
            return
        self._forgotten = self.knowledge.forgotten(told, own_term, self.log.last_term, self.log.last_index)
        if self._forgotten:
            log.error(
                "this disk lacks what it acknowledged: %s, says node %d. It was put back to an earlier state, or lost "
                "writes. From now on it counts as a new disk: the leader fills it, and it votes when it has caught up. "
                "Find out who put it back, or replace the drive",
                self._forgotten,
                peer,
            )
            self.begin_anew()

    def begin_anew(self) -> None:
        """Gives the vote up, durably, and has the node start again as a new disk. Raises DiskFull: the next tick tries
        again, and until then this node neither votes nor counts.
        """
        self.journal.lose_vote()
        self.on_forgotten()

    def stop_differing(self) -> None:
        """If this replica is found to differ: vote and leadership are given up, durably, and the difference is noted as
        soon as the disk has room. Raises DiskFull while the vote cannot be given up: the next tick tries again; until
        then it neither votes nor counts.
        """
        difference: Difference | None = self.replicas.difference
        if difference is None:
            return
        if self.role == LEADER:
            self.ask_successor()
            self.become(FOLLOWER)
            self.set_leader(None)
        self.journal.lose_vote()
        if self._differs is not None:
            try:
                self._differs.note(difference)
            except DiskFull as error:  # the next tick tries again; the vote is gone already
                log.debug("cannot note that this replica differs: %s", error)

    def ask_successor(self) -> None:
        raise NotImplementedError
