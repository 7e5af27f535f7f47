"""Broken ways to decide which nodes count."""

from collections.abc import Iterable
from typing import Any

import cluster.core.core
import raft.membership
from cluster.core.core import Core
from raft.config import AddressOverride, PeerAddress
from raft.copies.new_disk import NewDisk
from raft.entries.proposing import OnOutcome, Proposing
from raft.feature_levels import FeatureLevels
from raft.handlers import SafeRaft
from raft.library import LEADER
from raft.membership import Configuration, InForce, Member, Membership, encode_configuration, recovered
from raft.replication.replication import Replication
from raft.state import RaftState
from store.log.record import KIND_CONFIG
from tests.sim.mutants.parts import swap_part
from tests.sim.variant import Swap, Variant, mutant

ANY_INDEX = 1 << 62
_with_address, _overridden = Configuration.with_address, Configuration.overridden


class ChangesTwoAtOnce(Proposing):
    """The next change of the nodes does not wait until the last one is committed."""

    def propose_configuration(self, configuration: Configuration, on_outcome: OnOutcome) -> int:
        index = self._propose(KIND_CONFIG, encode_configuration(configuration), on_outcome)
        self._replication.send_heartbeats()
        return index


class ChangesBeforeItHasCommitted(Proposing):
    """A new leader changes the nodes before an entry of its own term is committed."""

    def propose_configuration(self, configuration: Configuration, on_outcome: OnOutcome) -> int:
        leads_from, self._replication.leads_from = self._replication.leads_from, 0
        try:
            return super().propose_configuration(configuration, on_outcome)
        finally:
            self._replication.leads_from = leads_from


def _leads_whatever_it_knows(handlers: SafeRaft) -> bool:
    return handlers.state.role == LEADER


def _leads(core: Core) -> bool:
    return core.raft.is_leader


class ChangesWhenCommitted(RaftState):
    """A configuration is in force when it is committed, not when it is in the log."""

    @property
    def configuration(self) -> Configuration:
        return self.membership.settled.configuration


class _LooksForCommitted(SafeRaft):
    def on_tick(self) -> None:
        before = self.state.configuration
        super().on_tick()
        if self.state.configuration is not before:
            self.on_configuration()


class LearnersCount(RaftState):
    """A learner votes and counts like any other node."""


def _all_of(configuration: Configuration) -> frozenset[int]:
    return frozenset(member.node_id for member in configuration.members)


class LearnersStand(RaftState):
    """A learner stands for election."""

    @property
    def is_voter(self) -> bool:
        return True


class CountsTheRemoved(RaftState):
    """A node that was removed is still asked for its vote and for acknowledgements, and counts."""

    _ever: frozenset[int] = frozenset()

    @property
    def other_voters(self) -> list[int]:
        self._ever |= self.configuration.voters
        return sorted(self._ever - {self.node_id})

    @property
    def peer_ids(self) -> list[int]:
        return sorted({*super().peer_ids, *self.other_voters})


def _count_everybody(configuration: Configuration, nodes: Iterable[int]) -> bool:
    return len(set(nodes)) >= configuration.majority


def keeps_what_was_cut_off(membership: Membership, index: int) -> bool:
    """A configuration that was cut off the log stays in force."""
    return False


def forgets_configurations(founders: Configuration, *_: Any) -> Membership:
    """A node that starts goes by its own configuration, whatever its index and its log say."""
    return Membership(InForce(0, founders))


def overlooks_the_log(founders: Configuration, applied: tuple[int, bytes] | None, *_: Any) -> Membership:
    """A node that starts knows only the configurations that were applied, not those behind in its log."""
    return recovered(founders, applied, ())


class CountsUnheardLearners(NewDisk):
    """A new disk's copy counts once the voters in force have spoken: no learners, nor who is being removed."""

    @property
    def _candidates(self) -> frozenset[int]:
        return frozenset(self._state.other_voters)


class PromotesWhoHasNothing(Replication):
    """A learner becomes a voter whether it has caught up or not."""

    def is_caught_up(self, peer: int) -> bool:
        return True


def moves_and_promotes(
    configuration: Configuration, node_id: int, address: PeerAddress | None, url: str | None
) -> Configuration:
    """A node that is said to be somewhere else also gets a vote."""
    moved = _with_address(configuration, node_id, address, url)
    return moved if node_id in moved.voters else moved.with_voter(node_id)


def brings_nodes_back(configuration: Configuration, override: AddressOverride) -> Configuration:
    """An override makes learners of all nodes that it has addresses for."""
    for node_id, at in override.addresses.items():
        if configuration.find(node_id) is None:
            member = Member(node_id, at.host, at.port, override.urls[node_id], voter=False)
            configuration = configuration.with_learner(member)
    return _overridden(configuration, override)


def leaves_new_clusters_behind(levels: FeatureLevels) -> None:
    """The first leader of a new cluster leaves it at the first feature level."""


def _part(part: type, *more: Swap, rare: bool = False) -> Variant:
    return mutant(18, swap_part(part), *more, rare=rare)


MUTANTS = (
    _part(ChangesTwoAtOnce),
    _part(
        ChangesBeforeItHasCommitted,
        Swap(SafeRaft, "leads_and_knows_all", property(_leads_whatever_it_knows)),
        Swap(cluster.core.core.Core, "is_leader", _leads),
        rare=True,
    ),
    _part(ChangesWhenCommitted, swap_part(_LooksForCommitted)),
    _part(LearnersCount, Swap(Configuration, "voters", property(_all_of))),
    _part(LearnersStand),
    _part(
        CountsTheRemoved,
        Swap(Configuration, "has_majority", _count_everybody),
        Swap(SafeRaft, "commit_limit", ANY_INDEX),
    ),
    mutant(18, Swap(Membership, "truncate_from", keeps_what_was_cut_off), rare=True),
    mutant(18, Swap(raft.membership, "recovered", forgets_configurations)),
    mutant(18, Swap(raft.membership, "recovered", overlooks_the_log), rare=True),
    _part(PromotesWhoHasNothing),
    _part(CountsUnheardLearners, rare=True),
    mutant(18, Swap(Configuration, "with_address", moves_and_promotes)),
    mutant(18, Swap(Configuration, "overridden", brings_nodes_back)),
    mutant(23, Swap(FeatureLevels, "tick", leaves_new_clusters_behind)),
)
