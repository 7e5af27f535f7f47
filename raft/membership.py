"""The nodes of the cluster, which of them vote, and which sets are a majority: all quorum arithmetic is here.

The configuration is a record of the log (`KIND_CONFIG`), in force on a node from the moment it is in the node's log
until a later one is, or it is cut off (Raft dissertation 4.1). Consecutive configurations differ by at most one voter,
so a majority of the one and a majority of the other share a node. docs/membership.md explains why that is safe.
"""

import logging
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta

from raft.config import NODE_ID_MAX, OVERRIDE_NUMBER_MAX, AddressOverride, PeerAddress, RaftConfig
from raft.errors import MembershipRefused, ProtocolError
from store.features import FEATURES, FIRST_LEVEL, LEVEL_MAX, VERSION_LENGTH_MAX, LevelOf, read_level
from store.limits import PRINCIPAL_CHARACTERS_MAX
from store.log.commit_log import CommitLog
from store.log.record import KIND_CONFIG
from store.state.machine import StateMachine

log = logging.getLogger(__name__)

MEMBERS_MAX: Final = 16
"""Maximum number of nodes in a cluster, learners included."""
ADDRESS_LENGTH_MAX: Final = 300
URL_LENGTH_MAX: Final = 2_048
ORIGIN_LENGTH_MAX: Final = 100


class Member(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """One node of the cluster. A learner receives the log; it neither votes nor counts for any majority."""

    node_id: Annotated[int, Meta(ge=0, le=NODE_ID_MAX)]
    host: Annotated[str, Meta(max_length=ADDRESS_LENGTH_MAX)]
    port: Annotated[int, Meta(ge=0, le=65535)]
    url: Annotated[str, Meta(max_length=URL_LENGTH_MAX)]
    voter: bool

    @property
    def address(self) -> PeerAddress:
        """The address at which the node speaks Raft."""
        return PeerAddress(self.host, self.port)


class Configuration(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True, dict=True):
    """The members of a cluster in the order of their ids. A node that was told to join a cluster and does not know it
    yet has a configuration without members.
    """

    members: Annotated[tuple[Member, ...], Meta(max_length=MEMBERS_MAX)] = ()
    origin: Annotated[str, Meta(max_length=ORIGIN_LENGTH_MAX)] = ""
    """Incarnation of the first disk of a cluster that began as one node: on another disk another cluster begins."""
    feature_level: Annotated[int, Meta(ge=FIRST_LEVEL, le=LEVEL_MAX)] = FIRST_LEVEL
    """The feature level, in force once this configuration is committed (raft/feature_levels.py)."""
    feature_version: Annotated[str, Meta(max_length=VERSION_LENGTH_MAX)] = ""
    """The first version that knows that level, for builds that do not know it; empty for the first level."""
    override: Annotated[int, Meta(ge=0, le=OVERRIDE_NUMBER_MAX)] = 0
    """The number of the last override of addresses that was written into the log."""
    principal: Annotated[str, Meta(max_length=PRINCIPAL_CHARACTERS_MAX)] = ""
    """The authenticated principal that asked for this configuration; empty without one."""

    @cached_property
    def voters(self) -> frozenset[int]:
        return frozenset(member.node_id for member in self.members if member.voter)

    @property
    def majority(self) -> int:
        """Number of voters that form a majority; 1 when there are no voters, so that no majority exists."""
        return len(self.voters) // 2 + 1

    def find(self, node_id: int) -> Member | None:
        return next((member for member in self.members if member.node_id == node_id), None)

    def has_majority(self, nodes: Iterable[int]) -> bool:
        """Return whether a majority of the voters is among `nodes`; nodes that do not vote do not count."""
        return len(self.voters.intersection(nodes)) >= self.majority

    def held_by_majority(self, held: Mapping[int, int]) -> int:
        """Return the highest index that a majority of the voters holds, given each node's index; 0 if there is none."""
        indexes = sorted([held.get(voter, 0) for voter in self.voters])
        return indexes[-self.majority] if indexes else 0

    # --- one change at a time ----------------------------------------------------------------------------------

    def with_learner(self, learner: Member) -> "Configuration":
        """Return the configuration with one more learner. Raises MembershipRefused when its id or address is taken, or
        the cluster has MEMBERS_MAX nodes already.
        """
        for member in self.members:
            if member.node_id == learner.node_id:
                raise MembershipRefused(
                    "node_exists",
                    f"node {learner.node_id} is in the cluster already, at {member.host}:{member.port} and "
                    f"{member.url}; remove it first if that is wrong",
                )
            if member.address == learner.address or member.url == learner.url:
                raise MembershipRefused(
                    "node_exists", f"node {member.node_id} has that address already; give another one"
                )
        if len(self.members) >= MEMBERS_MAX:
            raise MembershipRefused("too_many_nodes", f"a cluster has at most {MEMBERS_MAX} nodes; remove one first")
        return self._with([*self.members, learner])

    def with_voter(self, node_id: int) -> "Configuration":
        """Return the configuration in which the learner is a voter. Raises MembershipRefused when it is unknown or a
        voter already.
        """
        member = self._known(node_id)
        if member.voter:
            raise MembershipRefused("node_exists", f"node {node_id} is a voter already; nothing is left to do")
        others = [other for other in self.members if other.node_id != node_id]
        return self._with([*others, msgspec.structs.replace(member, voter=True)])

    def without(self, node_id: int) -> "Configuration":
        member = self._known(node_id)
        if member.voter and len(self.voters) == 1:
            raise MembershipRefused("last_voter", f"node {node_id} is the only voter; promote another node first")
        return self._with([other for other in self.members if other.node_id != node_id])

    # --- addresses: nobody's vote changes with them ------------------------------------------------------------------

    def with_address(self, node_id: int, address: PeerAddress | None, url: str | None) -> "Configuration":
        """Return the configuration with another address or URL for the node; None keeps the present value. Raises
        MembershipRefused when there is no such node, or another node has that address or URL.
        """
        member = self._known(node_id)
        at = address or member.address
        moved = msgspec.structs.replace(member, host=at.host, port=at.port, url=member.url if url is None else url)
        others = [other for other in self.members if other.node_id != node_id]
        return _all_apart(self._with([*others, moved]))

    def is_overridden_by(self, override: AddressOverride | None) -> bool:
        """Return whether the override replaces the log's addresses: an override is used up once the log has its number
        or a later one.
        """
        return override is not None and bool(self.members) and override.number > self.override

    def overridden(self, override: AddressOverride) -> "Configuration":
        """Return the configuration with the addresses and URLs of `override`; members it does not name keep theirs.
        Raises MembershipRefused when two nodes would have the same address or URL.
        """
        members = tuple(_moved(member, override) for member in self.members)
        return _all_apart(msgspec.structs.replace(self, members=members, override=override.number))

    def with_feature_level(self, level: int) -> "Configuration":
        """Return the configuration at `level`, which this build must know."""
        return msgspec.structs.replace(self, feature_level=level, feature_version=FEATURES.version_of(level))

    def named(self, principal: str) -> "Configuration":
        """Return the configuration as one that `principal` asked for."""
        return self if principal == self.principal else msgspec.structs.replace(self, principal=principal)

    @property
    def level(self) -> LevelOf:
        """The feature level and its version, as errors name them."""
        return LevelOf(self.feature_level, self.feature_version)

    def _with(self, members: Iterable[Member]) -> "Configuration":
        return msgspec.structs.replace(self, members=_sorted(members))

    def _known(self, node_id: int) -> Member:
        member = self.find(node_id)
        if member is None:
            raise unknown_node(node_id)
        return member


class InForce(NamedTuple):
    """A configuration and the log index from which on it is in force; index 0 is the configuration that nodes start
    with.
    """

    index: int  # type: ignore[assignment]  # hides tuple.index
    configuration: Configuration


class Membership:
    """The configurations of a node's log that may still matter: the last one is in force, and the one before is
    restored when the last one is cut off.

    Invariant: ascending indexes; the first is settled (applied here, or the configuration that the node started with),
    hence never cut off.
    """

    def __init__(
        self, settled: InForce, later: Iterable[InForce] = (), override: AddressOverride | None = None
    ) -> None:
        self._known = [settled, *later]
        self.override = override

    @property
    def current(self) -> Configuration:
        return self._known[-1].configuration

    @property
    def index(self) -> int:
        """Index of the record that holds the current configuration; 0 for the one that nodes start with."""
        return self._known[-1].index

    @property
    def settled(self) -> InForce:
        """The last configuration that is known to be committed."""
        return self._known[0]

    @property
    def level_of_proposals(self) -> int | None:
        """Feature level of commands that are proposed now; None while a higher one is in the log and not settled."""
        known = self._known
        level = known[0].configuration.feature_level
        return level if len(known) == 1 or known[-1].configuration.feature_level == level else None

    @property
    def nodes(self) -> frozenset[int]:
        """Ids of the nodes of all these configurations, learners included."""
        return frozenset(member.node_id for each in self._known for member in each.configuration.members)

    @property
    def is_overridden(self) -> bool:
        """True when this node was given addresses that replace the log's addresses until the log holds them."""
        return self.current.is_overridden_by(self.override)

    def find(self, node_id: int) -> Member | None:
        """Return a member of the current configuration with the address in force (the override's or the log's), or
        None.
        """
        member = self.current.find(node_id)
        return _moved(member, self.override) if member and self.override and self.is_overridden else member

    @property
    def addresses(self) -> dict[int, PeerAddress]:
        """Raft addresses of the nodes of all these configurations, by the latest configuration that has each node. A
        node whose removal is not committed is included: the removal may be cut off, and the node may lead.
        """
        said = {member.node_id: member.address for each in self._known for member in each.configuration.members}
        if self.override is not None and self.is_overridden:
            said.update({peer: at for peer, at in self.override.addresses.items() if peer in said})
        return said

    def append(self, index: int, configuration: Configuration) -> None:
        """Add the configuration of a new record. A record before the settled one is ignored: it comes late, to a log
        that is filled up to an installed state.
        """
        if index > self.index:
            self._known.append(InForce(index, configuration))

    def truncate_from(self, index: int) -> bool:
        """Note that the log is cut from `index` on. Returns whether that reverts the configuration."""
        known = len(self._known)
        self._known = [self._known[0], *(each for each in self._known[1:] if each.index < index)]
        return len(self._known) != known

    def settle(self, commit_index: int) -> bool:
        """Note that entries up to `commit_index` are committed. Returns whether that settles another configuration."""
        if len(self._known) == 1 or self._known[1].index > commit_index:
            return False
        while len(self._known) > 1 and self._known[1].index <= commit_index:
            del self._known[0]
        return True

    def is_stranger(self, node_id: int, configuration_index: int) -> bool:
        """Return whether a node, which knows the configuration of `configuration_index`, does not belong to the
        cluster: no configuration that matters here has it, and it cannot know a later one that does.
        """
        if not self._known[-1].configuration.members:
            return False  # this node learns the members from a leader
        if any(each.configuration.find(node_id) for each in self._known):
            return False
        return configuration_index <= self.settled.index


def founding(config: RaftConfig) -> Configuration:
    """Return the configuration of a new cluster: the nodes of `config`, all of them voters; no members if the node
    joins.
    """
    if config.joins:
        return Configuration()
    addresses = {**config.peers, config.node_id: config.advertised or config.listen}
    members = [
        Member(node_id, address.host, address.port, config.urls.get(node_id, ""), voter=True)
        for node_id, address in addresses.items()
    ]
    return Configuration(_sorted(members), "" if config.peers else config.incarnation)


def recovered(
    founders: Configuration,
    applied: tuple[int, bytes] | None,
    records: Iterable[tuple[int, bytes]],
    override: AddressOverride | None = None,
) -> Membership:
    """Return the membership with which a node starts: the configuration that its index has applied, else the founding
    one, and then the later configurations of `records` (index and payload) from its log.
    """
    settled = InForce(0, founders) if applied is None else InForce(applied[0], decode_configuration(applied[1]))
    later = [InForce(index, decode_configuration(payload)) for index, payload in records if index > settled.index]
    return Membership(settled, later, override)


def encode_configuration(configuration: Configuration) -> bytes:
    """Return the payload of a configuration record."""
    return _encoder.encode(FEATURES.at(configuration, configuration.feature_level))


def decode_configuration(payload: bytes) -> Configuration:
    """Decode the payload of a configuration record. Raises ProtocolError when it is malformed, has no voter, or has a
    node twice; UnknownFeatureLevel when its level is above the levels that this build knows: the rest of it may then
    have any form.
    """
    try:
        FEATURES.require_known(read_level(payload), "this log")
        found = _decoder.decode(payload)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"malformed configuration: {error}") from error
    if not found.voters or len({member.node_id for member in found.members}) != len(found.members):
        raise ProtocolError("the configuration has no voters, or a node twice")
    return found


def is_next(current: Configuration, following: Configuration) -> bool:
    """Return whether every majority of the one shares a node with every majority of the other: at most one vote
    changes.
    """
    return len(current.voters ^ following.voters) <= 1


def recover_membership(config: RaftConfig, commit_log: CommitLog, state_machine: StateMachine) -> Membership:
    """Return the configurations of the node's index and log, or the founding one of `config` where they hold none.
    Raises UnknownFeatureLevel when they are at a level that this build does not work at.
    """
    founders = founding(config)
    if config.override is not None and _is_blank(commit_log):
        log.warning(
            "this node's directory is empty, and addresses can only be overridden where a cluster is: this node "
            "founds none, and waits to be filled. Is its volume mounted? To begin a new cluster, leave "
            "--override-addresses out"
        )
        founders = Configuration()
    indexes = commit_log.indexes_of_kind(KIND_CONFIG, state_machine.applied_index + 1)
    records = [(index, commit_log.entry(index).payload) for index in indexes]
    membership = recovered(founders, state_machine.configuration, records, config.override)
    FEATURES.require_supported(membership.current.level, "this log")
    _tell_differences(config, membership)
    return membership


def _is_blank(commit_log: CommitLog) -> bool:
    """Return whether the log holds its genesis record alone."""
    return commit_log.last_index == 1 and commit_log.base.index == 0


def _tell_differences(config: RaftConfig, membership: Membership) -> None:
    """Log the differences between the nodes that this node was given and those of its log."""
    current, given = membership.current, founding(config).members
    listed = ", ".join(f"{member.node_id} at {member.host}:{member.port}" for member in current.members)
    if membership.is_overridden and config.override is not None:
        unknown = sorted(config.override.addresses.keys() - {member.node_id for member in current.members})
        log.warning(
            "the given addresses are used until a leader has written them into the log, which now has %s%s",
            listed,
            f"; these nodes are not in the cluster, so their addresses are ignored: {unknown}" if unknown else "",
        )
    elif membership.index and given and addresses_of(current) != {each.node_id: each.address for each in given}:
        log.warning(
            "the nodes in this node's configuration are not those of the cluster: the log counts, which has %s. If "
            "the nodes have moved to the addresses in the configuration, start all of them with "
            "--override-addresses %d",
            listed,
            current.override + 1,
        )


def addresses_of(configuration: Configuration) -> dict[int, PeerAddress]:
    return {member.node_id: member.address for member in configuration.members}


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Configuration)


def _moved(member: Member, override: AddressOverride) -> Member:
    at = override.addresses.get(member.node_id, member.address)
    url = override.urls.get(member.node_id, member.url)
    return msgspec.structs.replace(member, host=at.host, port=at.port, url=url)


def unknown_node(node_id: int) -> MembershipRefused:
    return MembershipRefused(
        "node_not_found", f"node {node_id} is not in the cluster; `keelmq cluster status` lists its nodes"
    )


def _all_apart(configuration: Configuration) -> Configuration:
    """Return the configuration unchanged. Raises MembershipRefused when two of its nodes share an address or URL."""
    taken: dict[PeerAddress | str, int] = {}
    for member in configuration.members:
        for place in (member.address, member.url):
            if place and taken.setdefault(place, member.node_id) != member.node_id:
                raise MembershipRefused(
                    "node_exists",
                    f"nodes {taken[place]} and {member.node_id} would have the same address; give each its own",
                )
    return configuration


def _sorted(members: Iterable[Member]) -> tuple[Member, ...]:
    return tuple(sorted(members, key=lambda member: member.node_id))
