"""A model of the cluster's members: the configurations in all logs, and the rules of changing them.

A record (index, term) is the same in every log that has it, so one table serves all nodes. The last configuration in a
log is the one in force there.
"""

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

import msgspec

from .violation import Violation

TermAt = Callable[[int], int | None]


class Members(NamedTuple):
    """A configuration; `index` 0 is the configuration that the nodes are started with."""

    index: int  # type: ignore[assignment]  # hides tuple.index
    term: int
    voters: frozenset[int]
    learners: frozenset[int]
    places: frozenset[tuple[int, str, int, str]] = frozenset()
    """Id, host, port and URL of each node."""
    override: int = 0


class MembershipModel:
    def __init__(self, founders: Iterable[int]) -> None:
        self._records: list[Members] = []  # latest last
        self._founded = Members(0, 0, frozenset(founders), frozenset())
        self._committed_by: dict[int, Members] = {}
        self.removals: list[int] = []
        self.promotions: list[int] = []
        """Nodes that may lose, or get, their vote by requests without a known outcome."""

    @property
    def record_count(self) -> int:
        """Number of configuration records that some log has had."""
        return len(self._records)

    def has_changed(self, knows: Callable[[int, int], bool]) -> bool:
        """Return whether a change of the members is committed. `knows(index, term)` says whether an entry is."""
        return any(knows(members.index, members.term) for members in self._records)

    def in_force(self, term_at: TermAt) -> Members:
        """Return the configuration in force in the log that `term_at` reads."""
        for members in reversed(self._records):
            if term_at(members.index) == members.term:
                return members
        return self._founded

    def unheard(
        self, heard: Collection[int], term_at: TermAt, up_to: int, knows: Callable[[int, int], bool]
    ) -> frozenset[int]:
        """Return the nodes not in `heard` that may lead without the entries before `up_to` of the log that `term_at`
        reads.

        These are members of the last configuration that is committed up to `up_to`, or of a later one up to `up_to`. No
        such node is left when all members of a committed configuration after `up_to` are in `heard`. `knows(index,
        term)` says whether an entry is committed.
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
        """Record a configuration record that some node has now, and return its members."""
        listed, _, _, _, override, *_ = msgspec.msgpack.decode(payload)
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
        """Check a leader's change of the members. `led` says whether an entry of its own term is committed;
        `knows(index, term)` says whether an entry is.
        """

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
        """Check, after a step of a node, that its voters and learners are those of `members`, as its log says."""
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
        """Check the commit of entries for which the leader has counted copies of these members."""
        for index in range(first, last + 1):
            self._committed_by.setdefault(index, members)

    def committed_by(self, index: int, otherwise: Members) -> Members:
        return self._committed_by.get(index, otherwise)

    def bears(self, impaired: set[int], logs: Iterable[TermAt]) -> bool:
        """Return whether the impaired nodes are a minority of all nodes that count for a majority, now or soon."""
        for voters in {self.in_force(term_at).voters for term_at in logs}:
            fewest = len(voters.difference(self.removals))
            if len(impaired & voters.union(self.promotions)) > (fewest - 1) // 2:
                return False
        return True
