"""The feature level of a running cluster: which one is in force, who knows which, and how it is raised.

The level is part of the configuration (raft/membership.py) and in force once that is committed: from then on every node
that can take part knows it, since a log that says it is refused by who does not. It never goes down.
"""

import logging
from collections.abc import Callable
from typing import Final

from raft.errors import MembershipRefused, RaftError
from raft.membership import Configuration
from raft.messages import Build
from raft.state import RaftState
from store.features import FEATURES, LevelOf, describe
from store.log.record import KIND_NOOP

log = logging.getLogger(__name__)

NEW_LOG_ENTRIES_MAX: Final = 16
"""A log that holds no more entries than this, all of them no-ops, is that of a new cluster."""


def own_build() -> Build:
    """What runs here."""
    return Build(FEATURES.version, FEATURES.minimum, FEATURES.maximum)


def refusal_of_build(peer: Build, in_force: LevelOf, node_id: int) -> str:
    """Why a peer cannot be spoken to, or ''. `in_force`: by what is committed as far as is known here."""
    own = own_build()
    if peer.level_max < in_force.level:
        return (
            f"the cluster is at feature level {in_force.level}, which KeelMQ {in_force.version} and later know; node "
            f"{node_id} runs KeelMQ {peer.version}, which knows {describe(peer.level_min, peer.level_max)}: start that "
            "version, or a later one, there"
        )
    if peer.level_min > max(in_force.level, own.level_max):
        return (
            f"node {node_id} runs KeelMQ {peer.version}, which works at feature level "
            f"{describe(peer.level_min, peer.level_max)}; this is KeelMQ {own.version}, which knows "
            f"{FEATURES.describe()}: upgrade in smaller steps (docs/upgrading.md)"
        )
    return ""


class FeatureLevels:
    """Loop-only. `build_of(peer)` is what runs on a node that is connected, else None."""

    def __init__(
        self,
        state: RaftState,
        leads_and_knows_all: Callable[[], bool],
        build_of: Callable[[int], Build | None],
        propose: Callable[[Callable[[Configuration], Configuration]], object],
    ) -> None:
        self._state = state
        self._leads_and_knows_all = leads_and_knows_all
        self._build_of = build_of
        self._propose = propose
        self._may_be_new = self._is_new()

    @property
    def in_force(self) -> int:
        """Nothing above it is proposed, or counted on. Committed, so it never goes down."""
        return self._state.membership.settled.configuration.feature_level

    def build_of(self, node_id: int) -> Build | None:
        """What runs on a node; None while it is not connected."""
        return own_build() if node_id == self._state.node_id else self._build_of(node_id)

    def highest_known(self) -> int | None:
        """The highest level that every member knows; None while one is not connected."""
        builds = [self.build_of(member.node_id) for member in self._state.membership.current.members]
        known = [build.level_max for build in builds if build is not None]
        return min(known) if known and len(known) == len(builds) else None

    def raised(self, configuration: Configuration, level: int | None) -> Configuration:
        """The configuration at `level`, or at the highest that every member knows. MembershipRefused when a member does
        not know it or is not connected, or when the cluster is past it.
        """
        builds = {member.node_id: self.build_of(member.node_id) for member in configuration.members}
        silent = sorted(node for node, build in builds.items() if build is None)
        if silent:
            raise MembershipRefused(
                "feature_level_not_known",
                f"nodes {silent} are not connected, so it is not known what they run: start them, or remove them first "
                "if they are gone for good",
            )
        known = {node: build for node, build in builds.items() if build is not None}
        if level is None:
            level = max(configuration.feature_level, min(build.level_max for build in known.values()))
        if level < configuration.feature_level:
            raise MembershipRefused(
                "feature_level_in_force",
                f"the cluster is at feature level {configuration.feature_level}; a level never goes down",
            )
        old = [
            f"node {node} (KeelMQ {build.version}, {describe(build.level_min, build.level_max)})"
            for node, build in sorted(known.items())
            if not build.knows(level)
        ]
        if old:
            raise MembershipRefused(
                "feature_level_not_known",
                f"feature level {level} is not known to {', '.join(old)}: upgrade them first, or remove them",
            )
        return configuration.with_feature_level(level)

    def tick(self) -> None:
        """As the first leader of a new cluster, which has met all of its nodes: raise it to what all of them know.
        Later that is for operators to say, since there is no way back.
        """
        if not self._may_be_new or not self._leads_and_knows_all():
            return
        level = self.highest_known()
        if level is None:
            return
        self._may_be_new = False
        if self._state.membership.index or level <= self.in_force or not self._is_new():
            return
        try:
            self._propose(lambda configuration: self.raised(configuration, level))
        except RaftError as error:
            log.info("the new cluster stays at feature level %d: %s", self.in_force, error)

    def _is_new(self) -> bool:
        """Whether nothing was ever done: at most some elections."""
        log = self._state.log
        if log.base.index or log.last_index > NEW_LOG_ENTRIES_MAX:
            return False
        return all(log.entry(index).kind == KIND_NOOP for index in range(1, log.last_index + 1))
