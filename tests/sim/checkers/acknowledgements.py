"""An acknowledgement is true when it leaves: its sender's synced log equals the leader's up to the index it names."""

from collections.abc import Callable

from raft.messages import AppendReply

from .durable_log import DurableLog
from .violation import Violation


def check_counted(leader: int, peer: int, index: int, term: int, durable: DurableLog, *, knows_disk: bool) -> None:
    """Check that the peer's synced log equals the leader's up to the entry (index, term), as the leader believes.

    A leader that does not know that the peer has a new disk may go by the acknowledgements of the old one.
    """
    if not (durable.term_at(index) == term if knows_disk else durable.counts_for(index, term)):
        raise Violation(
            "acknowledgement", f"leader {leader} counts node {peer} up to {index} of term {term}, which is not there"
        )


class Acknowledgements:
    """Knowledge of each leader's log: its entries at the election, and behind them entries of its own term only."""

    def __init__(self) -> None:
        self._logs: dict[int, list[int]] = {}  # term of a leader -> the terms of its entries when it was elected

    def on_leader(self, leader_term: int, last_index: int, term_at: Callable[[int], int | None]) -> None:
        """Record that a node became leader of `leader_term`; `term_at` reads its log."""
        inherited = [term_at(index) or 0 for index in range(1, last_index + 1)]
        self._logs[leader_term] = [term for term in inherited if term < leader_term]

    def on_reply(self, node_id: int, reply: AppendReply, durable: DurableLog) -> None:
        """Check an acknowledgement that `node_id` sends to the leader of `reply.term`."""
        inherited = self._logs.get(reply.term)
        if not reply.success or not reply.match_index or inherited is None:
            return
        within = reply.match_index <= len(inherited)
        expected = inherited[reply.match_index - 1] if within else reply.term
        found = durable.term_at(reply.match_index)
        if found != expected:
            raise Violation(
                "acknowledgement",
                f"node {node_id} tells the leader of term {reply.term} that it has everything up to entry "
                f"{reply.match_index}; that one is of term {found} there, and of term {expected} in the leader's log",
            )
