"""Election safety: a term has at most one leader, a node at most one vote in it, a leader the votes of a majority.

And nobody follows another.
"""

from collections.abc import Collection

from .violation import Violation


class ElectionSafety:
    def __init__(self) -> None:
        self._leader_of_term: dict[int, int] = {}
        self._votes: dict[tuple[int, int], int] = {}  # (term, voter) -> candidate

    def on_vote(self, voter: int, candidate: int, term: int) -> None:
        """Record a vote that leaves the voter, whose disk may have been replaced since it gave another."""
        first = self._votes.setdefault((term, voter), candidate)
        if first != candidate:
            raise Violation("second_vote", f"node {voter} votes for {candidate} in term {term}, and did for {first}")

    def on_leader(self, node_id: int, term: int) -> None:
        other = self._leader_of_term.setdefault(term, node_id)
        if other != node_id:
            raise Violation("election_safety", f"term {term} has two leaders, {other} and {node_id}")

    def check_votes(self, node_id: int, term: int, electorate: Collection[int]) -> None:
        """Check that `node_id` has become leader by the votes of `electorate`; `on_vote` saw every vote."""
        voters = {node_id} | {
            voter for (at, voter), candidate in self._votes.items() if (at, candidate) == (term, node_id)
        }
        if len(voters.intersection(electorate)) <= len(electorate) // 2:
            raise Violation(
                "elected_by_few", f"node {node_id} leads term {term} with the votes of {sorted(voters)} only"
            )

    def check_followed(self, node_id: int, term: int, leader: int) -> None:
        """Check that `node_id` takes the right `leader` for that of its term: it sends clients there, and with a new
        disk votes for it.
        """
        if self._leader_of_term.get(term) != leader:
            raise Violation(
                "follows_another",
                f"node {node_id} follows {leader} in term {term}, which {self._leader_of_term.get(term)} leads",
            )

    @property
    def terms(self) -> int:
        """Number of terms that had a leader. A run with only one such term has tested little."""
        return len(self._leader_of_term)
