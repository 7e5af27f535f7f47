"""A node whose disk is new to the cluster: when its copies count, and when it votes (raft/copies/rejoin.py has why)."""

import logging

from raft.copies.own_copy import OwnCopy
from raft.copies.rejoin import Rejoin
from raft.messages import PreVote
from raft.sender import Sender
from raft.state import RaftState
from store.log.errors import DiskFull

log = logging.getLogger(__name__)


class NewDisk:
    """Loop-only. On a disk that may vote already it does nothing."""

    def __init__(self, state: RaftState, sender: Sender, own_copy: OwnCopy) -> None:
        self._state = state
        self._sender = sender
        self._own_copy = own_copy
        self._rejoin = Rejoin(state.config.election_timeout_ms)
        self._asked: set[int] = set()  # for their terms; said once each

    def heard(self, peer: int) -> None:
        """Note that a message of this peer has come; its term, if it was higher, has been adopted, durably."""
        self._rejoin.heard(peer)

    def follow(self, term: int, commit_index: int) -> None:
        """Note how much the leader of the present `term` has committed; 0 while it does not know yet."""
        self._rejoin.follow(term, commit_index)

    @property
    def may_count(self) -> bool:
        """True when the leader may count this node's copy for a commit, although the node does not vote yet."""
        return self._own_copy.is_sound and self._is_member and self._rejoin.has_heard_all(self._candidates)

    @property
    def _is_member(self) -> bool:
        """True when the configuration in force names this node, and one is known to be committed.

        A node that was told to join begins without any configuration, and the first record in its log may remove the
        only node that knows better.
        """
        state = self._state
        return bool(state.membership.settled.configuration.members) and (
            state.configuration.find(state.node_id) is not None
        )

    @property
    def _candidates(self) -> frozenset[int]:
        """Nodes for which a disk that this node had before may have voted."""
        return self._state.membership.nodes - {self._state.node_id}

    def tick(self) -> None:
        """Vote again as soon as this node can contradict nothing that its old disk knew."""
        state = self._state
        if state.journal.voter or not self._own_copy.is_sound or state.leader_id is None or not self._is_member:
            return
        if not self._rejoin.has_heard_all(self._candidates):
            self._ask_for_terms()
        elif self._rejoin.holds_all(state.term, state.commit_index, state.log.term_at):
            self._become_voter(state.leader_id)

    def _ask_for_terms(self) -> None:
        state = self._state
        for peer in self._rejoin.to_ask(self._candidates):
            if peer not in self._asked:
                self._asked.add(peer)
                log.info("this disk is new: asking node %d for its term, before its votes and copies count", peer)
            self._sender.send(peer, PreVote(state.term, state.log.last_index, state.log.last_term, False))

    def _become_voter(self, leader: int) -> None:
        """The vote in the present term counts as given to the leader that this node follows, unless it was given
        already: a node that stood in that term, and lost, had voted for itself.
        """
        state = self._state
        try:
            if state.library.voted_for is None:
                state.library.set_term(state.term, leader)
            state.journal.become_voter()
        except DiskFull as error:  # the next step tries again
            log.debug("cannot note yet that this node has caught up, and tries again: %s", error)
        else:
            can = "from now on this node votes" if state.is_voter else "this node may be promoted"
            log.info("caught up at entry %d: %s", state.commit_index, can)
