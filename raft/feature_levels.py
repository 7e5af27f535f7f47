"""The feature level of a running cluster: the level in force, the levels each node knows, and how the level is raised.

The level is part of the configuration (raft/membership.py) and in force once that is committed. From then on every
node that can take part knows the level, since a node that does not know it refuses the log that holds it. The level
never goes down.
"""

import logging
from collections.abc import Callable
from typing import Final

from raft.errors import MembershipRefused, RaftError
from raft.library import LEADER
from raft.membership import Configuration
from raft.messages import Build
from raft.state import RaftState
from store.features import FEATURES, LevelOf, describe
from store.log.errors import DiskFull
from store.log.record import KIND_NOOP
from store.version import COMMIT

log = logging.getLogger(__name__)

NEW_LOG_ENTRIES_MAX: Final = 16
"""Limit of entries: a log with at most this number of entries, all of them no-ops, belongs to a new cluster."""


def own_build() -> Build:
    """Return the build of this process: its version, the feature levels it works at, and its commit."""
    return Build(FEATURES.version, FEATURES.minimum, FEATURES.maximum, COMMIT)


def refusal_of_build(peer: Build, in_force: LevelOf, node_id: int) -> str:
    """Return why this node cannot talk to a peer, or ''. `in_force` is the committed level by this node's log."""
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
    """Knows the level in force, and raises it in a new cluster. `build_of(peer)` returns the build of a connected node,
    `last_build_of(peer)` the one of a node that was connected since the start of this process; else None. Use it only
    on the event loop.
    """

    def __init__(
        self,
        state: RaftState,
        leads_and_knows_all: Callable[[], bool],
        build_of: Callable[[int], Build | None],
        last_build_of: Callable[[int], Build | None],
        propose: Callable[[Callable[[Configuration], Configuration]], object],
    ) -> None:
        self._state = state
        self._leads_and_knows_all = leads_and_knows_all
        self._build_of = build_of
        self._last_build_of = last_build_of
        self._propose = propose
        self._judged_term = 0
        self._is_first_leader = False
        """The log was new when this node began to lead the judged term. Then nothing was committed before: whoever wins
        an election has everything that was.
        """
        self.may_be_new = self._is_new()
        """True while `tick` may still raise the level, of a new cluster."""

    @property
    def in_force(self) -> int:
        """The committed feature level: no command above it is proposed or relied on. It never goes down."""
        return self._state.membership.settled.configuration.feature_level

    def of_proposals(self) -> int | None:
        """The level of commands that are proposed now; None while a higher one is in the log and not committed yet."""
        return self._state.membership.level_of_proposals

    def build_of(self, node_id: int) -> Build | None:
        """Return the build that a node runs; None while the node is not connected."""
        return own_build() if node_id == self._state.node_id else self._build_of(node_id)

    def highest_known(self) -> int | None:
        """Return the highest level that every member knows; None while a member is not connected."""
        builds = [self.build_of(member.node_id) for member in self._state.membership.current.members]
        known = [build.level_max for build in builds if build is not None]
        return min(known) if known and len(known) == len(builds) else None

    def raised(self, configuration: Configuration, level: int | None) -> Configuration:
        """Return the configuration at `level`, or if None at the highest level that every member knows. Raises
        MembershipRefused when a member is not connected or does not know the level, or when the cluster is at a higher
        level already.
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
        """Raise the level of a new cluster as its first leader, to the highest that all members know, once each of them
        was connected. The leader of a blank log has met all, so this comes before the first command; a later one, whose
        log has no command either, may have to wait, also while commands come. A member that is replaced by an older
        build meanwhile is refused by name. Later only operators raise the level, since a level never goes down.

        Call it before each proposal, so that a term is judged before anything is proposed in it.
        """
        state = self._state
        if not self.may_be_new or state.role != LEADER:
            return
        if self._judged_term != state.term:
            self._judged_term, self._is_first_leader = state.term, self._is_new()
        if not self._leads_and_knows_all():
            return
        level = self._highest_heard() if self._is_first_leader else self.in_force
        if level is None:
            return
        self.may_be_new = False
        if state.membership.index or level <= self.in_force:
            return
        try:
            self._propose(lambda configuration: configuration.with_feature_level(level))
        except (RaftError, DiskFull) as error:
            log.info("the new cluster stays at feature level %d: %s", self.in_force, error)

    def _highest_heard(self) -> int | None:
        """Return the highest level that every member knew when it was last connected; None if one never was."""
        state = self._state
        others = [each.node_id for each in state.membership.current.members if each.node_id != state.node_id]
        builds = [own_build(), *map(self._last_build_of, others)]
        known = [build.level_max for build in builds if build is not None]
        return min(known) if len(known) == len(builds) else None

    def _is_new(self) -> bool:
        """Return whether the log holds nothing but the no-ops of some elections."""
        log = self._state.log
        if log.base.index or log.last_index > NEW_LOG_ENTRIES_MAX:
            return False
        return all(log.entry(index).kind == KIND_NOOP for index in range(1, log.last_index + 1))
