"""Nobody helps to depose a leader that it hears: a partitioned node that comes back must not cost an election."""

from raft.messages import Append, PreVoteReply

from .violation import Violation


class LeaderStickiness:
    """Check, by each node's own clock, that no node helps to depose a leader that it hears. A restarted node has heard
    nothing.
    """

    def __init__(self, election_timeout_us: int) -> None:
        self._election_timeout_us = election_timeout_us
        self._heard: dict[int, tuple[int, int]] = {}  # node -> term of the leader it heard last, and when

    def on_start(self, node_id: int) -> None:
        self._heard.pop(node_id, None)

    def on_append(self, node_id: int, append: Append, now_us: int) -> None:
        """Record an append that `node_id` receives."""
        term, _ = self._heard.get(node_id, (0, 0))
        if append.message.term >= term:
            self._heard[node_id] = append.message.term, now_us

    def on_pre_vote_reply(self, node_id: int, reply: PreVoteReply, now_us: int) -> None:
        """Check a reply that `node_id` sends."""
        if node_id not in self._heard:
            return
        term, heard_us = self._heard[node_id]
        if reply.granted and term == reply.asked_term and now_us - heard_us < self._election_timeout_us:
            raise Violation(
                "leader_stickiness",
                f"node {node_id} would vote against the leader of term {term}, which it heard "
                f"{(now_us - heard_us) // 1000} ms ago",
            )
