"""Which nodes count: a model of its own of the configurations in all logs, and the rules of changing them.

A record (index, term) is the same in every log that has it, so one table serves all nodes: in force in a log is the
last configuration that it holds.
"""

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

import msgspec

from .violation import Violation

TermAt = Callable[[int], int | None]


class Members(NamedTuple):
    """A configuration; `index` 0 is what the nodes are started with."""

    index: int  # type: ignore[assignment]  # hides tuple.index
    term: int
    voters: frozenset[int]
    learners: frozenset[int]
    places: frozenset[tuple[int, str, int, str]] = frozenset()
    """Of each node, where it is reached."""
    override: int = 0


class MembershipModel:
    def __init__(self, founders: Iterable[int]) -> None:
        self._records: list[Members] = []  # latest last
        self._founded = Members(0, 0, frozenset(founders), frozenset())
        self._committed_by: dict[int, Members] = {}
        self.removals: list[int] = []
        self.promotions: list[int] = []
        """Who may lose, or get, its vote by requests that nothing is known of."""

    def has_changed(self, knows: Callable[[int, int], bool]) -> bool:
        """Durably. `knows`: whether an entry is committed."""
        return any(knows(members.index, members.term) for members in self._records)

    def in_force(self, term_at: TermAt) -> Members:
        """In the log that `term_at` reads."""
        for members in reversed(self._records):
            if term_at(members.index) == members.term:
                return members
        return self._founded

    def unheard(
        self, heard: Collection[int], term_at: TermAt, up_to: int, knows: Callable[[int, int], bool]
    ) -> frozenset[int]:
        """Of the nodes that may lead without that log's entries before `up_to`: those of its last committed
        configuration there and of all between the two; or those of any later one that is committed. `knows`: whether
        one is.
        """
        found: set[int] = set()
        for members in [*reversed(self._records), self._founded]:
            if members.index and term_at(members.index) != members.term:
                continue
            nodes = members.voters | members.learners
            committed = knows(members.index, members.term)
            if members.index <= up_to:
                found |= nodes
            elif committed and nodes.issubset(heard):
                return frozenset()
            if committed and members.index <= up_to:
                break
        return frozenset(found.difference(heard))

    def on_append(self, index: int, term: int, payload: bytes) -> Members:
        """A node has this configuration record now."""
        listed, _, _, _, override = msgspec.msgpack.decode(payload)
        voters = frozenset(node_id for node_id, _, _, _, voter in listed if voter)
        learners = frozenset(member[0] for member in listed) - voters
        places = frozenset((node_id, host, port, url) for node_id, host, port, url, _ in listed)
        members = Members(index, term, voters, learners, places, override)
        if members not in self._records:
            self._records.append(members)
            self._records.sort()
        return members

    def check_proposal(
        self, leader: int, before: Members, proposed: Members, knows: Callable[[int, int], bool], led: bool
    ) -> None:
        """`led`: an entry of the leader's own term is committed. `knows`: whether an entry is."""

        def fail(why: str) -> None:
            raise Violation("membership", f"leader {leader} goes from {before} to {proposed}: {why}")

        if before.index and not knows(before.index, before.term):
            fail("the former is not committed")
        if not led:
            fail("it has committed nothing of its own term")
        if len(before.voters ^ proposed.voters) > 1:
            fail("more than one vote changes")
        if not proposed.voters or leader not in proposed.voters:
            fail("it has no vote there itself")
        if not proposed.voters - before.voters <= before.learners:
            fail("who gets a vote was no learner")
        moved = {node_id for node_id, *_ in proposed.places - before.places} & (before.voters | before.learners)
        overridden = before.override != proposed.override
        if ((moved and before.index) or overridden) and before[2:4] != proposed[2:4]:
            fail("more than addresses changes")
        if proposed.override < before.override:
            fail("an override is taken back")

    @staticmethod
    def check_in_force(node_id: int, voters: frozenset[int], learners: frozenset[int], members: Members) -> None:
        """After each step of a node that goes by these."""
        joins = not members.index and not voters
        if (voters, learners) != (members.voters, members.learners) and not joins:
            raise Violation(
                "membership",
                f"node {node_id} goes by voters {sorted(voters)}, learners {sorted(learners)}, its log by {members}",
            )

    @staticmethod
    def check_leads(node_id: int, term: int, members: Members) -> None:
        if node_id not in members.voters:
            raise Violation("membership", f"node {node_id} leads term {term} without a vote in {members}")

    def on_leader_commit(self, first: int, last: int, members: Members) -> None:
        """A leader calls these entries committed, by counting copies of these members."""
        for index in range(first, last + 1):
            self._committed_by.setdefault(index, members)

    def committed_by(self, index: int, otherwise: Members) -> Members:
        return self._committed_by.get(index, otherwise)

    def bears(self, impaired: set[int], logs: Iterable[TermAt]) -> bool:
        """Whether the impaired nodes are a minority of all that may be asked for a majority, now or soon."""
        for voters in {self.in_force(term_at).voters for term_at in logs}:
            fewest = len(voters.difference(self.removals))
            if len(impaired & voters.union(self.promotions)) > (fewest - 1) // 2:
                return False
        return True
