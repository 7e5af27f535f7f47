"""Decides when a node whose disk is new to the cluster may vote.

Its old disk knew two things that must not be contradicted: which entries it acknowledged, and for which candidates it
voted. The node votes again once it cannot contradict either:

* The node has everything that the leader had committed when the node came, and an entry of that leader's own term is
  committed here: that entry stands behind everything that earlier leaders committed (Raft paper 5.4.2).
* Every other node has spoken to it since it started, so its term is at least that of every vote it may have given: a
  candidate has its term on disk before it asks for a vote. Its vote in the present term counts as given to the leader
  it follows.

The second condition is also needed for its copies to count: having voted for another candidate, the old disk would not
have taken them. "Every other node" means the nodes of the last configuration known to be committed and of all later
ones, learners included. In another log than the leader's a learner may be a voter already, and a node that is being
removed may be the next leader as long as the removal is not committed; afterwards no majority elects a node that does
not know of it.
"""

from collections.abc import Callable, Collection

from raft.library import now

ASK_INTERVAL_TIMEOUTS = 1
"""Election timeouts between two requests for the terms of nodes that have not spoken yet."""


class Rejoin:
    """Collects what a node that does not vote has learnt since it started. Nothing of it is durable. Use it only on the
    event loop.
    """

    def __init__(self, election_timeout_ms: int) -> None:
        self._heard: set[int] = set()
        self._target = (0, 0)  # term, and the first commit index of its leader
        self._ask_interval_s = ASK_INTERVAL_TIMEOUTS * election_timeout_ms / 1000
        self._ask_again_at_s = 0.0

    def heard(self, peer: int) -> None:
        """Note a message of this peer; the message's term, if it was higher, is already this node's term, durably."""
        self._heard.add(peer)

    def follow(self, term: int, commit_index: int) -> None:
        """Note that the leader of this node's `term` has committed up to `commit_index`; 0 when the leader does not
        know yet.
        """
        if self._target[0] != term and commit_index:
            self._target = (term, commit_index)

    def holds_all(self, term: int, commit_index: int, term_at: Callable[[int], int]) -> bool:
        """Return whether a node in `term` with `commit_index` holds every entry that it can ever have acknowledged."""
        target_term, target_index = self._target
        return target_term == term and 0 < target_index <= commit_index and term_at(commit_index) == term

    def to_ask(self, nodes: Collection[int]) -> list[int]:
        """Return the nodes that have not spoken; empty while the last request may still be answered."""
        unheard = sorted(set(nodes) - self._heard)
        if not unheard or now() < self._ask_again_at_s:
            return []
        self._ask_again_at_s = now() + self._ask_interval_s
        return unheard

    def has_heard_all(self, nodes: Collection[int]) -> bool:
        return self._heard.issuperset(nodes)
