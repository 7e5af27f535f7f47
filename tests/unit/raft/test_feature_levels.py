"""The level in the log: a node that does not know it refuses it before anything is written, and it is raised to a level
that all know.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

import raft.feature_levels
from raft.errors import MembershipRefused, ProtocolError
from raft.feature_levels import FeatureLevels, own_build, refusal_of_build
from raft.library import FOLLOWER, LEADER
from raft.membership import Configuration, decode_configuration, encode_configuration
from raft.messages import Build, Challenge, Hello, Vitals, decode, encode, make_append
from raft.peers.handshake import opener_statement
from store.features import FEATURES, LEVELS, FeatureLevel, LevelOf, UnknownFeatureLevel
from store.log.record import KIND_CONFIG, KIND_ENTRY, KIND_NOOP, Entry
from store.version import VERSION
from tests.unit.raft.members import cluster as cluster_of
from tests.unit.raft.members import leader_of, put_topic
from tests.unit.raft.test_joining import Started, advance, member
from tests.unit.raft.test_transport import until

__all__ = ["advance"]
HIGHEST = LEVELS[-1].number
ABOVE = HIGHEST + 1
THREE = Configuration((member(1), member(2), member(3)))


@pytest.fixture
def _next_version() -> Iterator[None]:
    """Give this build one more level for as long as the test runs."""
    FEATURES.set_levels(
        [*LEVELS, FeatureLevel(ABOVE, "9.1.0", frozenset({f"Vitals.{Vitals.__struct_fields__[-1]}"}))], 1, "9.1.0"
    )
    yield
    FEATURES.set_levels(LEVELS, 1, VERSION)


def above(origin: str = "") -> bytes:
    """Return a configuration of a version to come, with fields that nobody knows."""
    return msgspec.msgpack.encode([THREE.members, origin, ABOVE, "9.1.0", ["what", "is", "this"]])


def test_a_configuration_above_what_is_known_names_the_version() -> None:
    with pytest.raises(UnknownFeatureLevel, match=r"needs feature level \d, which KeelMQ 9\.1\.0 and later know"):
        decode_configuration(above())


def test_a_configuration_of_a_known_level_has_no_more_elements_than_that_knows() -> None:
    payload = msgspec.msgpack.encode([THREE.members, "", HIGHEST, "", 0, "", "more"])
    with pytest.raises(ProtocolError, match="at most length"):
        decode_configuration(payload)


def test_configurations_of_before_levels_are_of_the_first() -> None:
    found = decode_configuration(msgspec.msgpack.encode([THREE.members, "disk"]))
    assert (found.level, found.origin) == (LevelOf(1, ""), "disk")
    assert decode_configuration(encode_configuration(found)) == found


def test_a_follower_that_is_too_old_writes_nothing_of_it(advance: Callable[[float], None]) -> None:
    """The follower writes nothing that comes before it in the same append either, and cuts nothing off for it."""
    one = Started(1, joins=True)
    one.connect(2)
    one.hear(2, make_append(5, 1, 0, 1, [Entry(b"", 2, 5, KIND_NOOP, -1), Entry(b"", 3, 5, KIND_NOOP, -1)]))
    assert one.log.last_index == 3
    entries = [Entry(b"", 2, 6, KIND_NOOP, -1), Entry(above(), 3, 6, KIND_CONFIG, -1)]
    with pytest.raises(UnknownFeatureLevel, match=r"9\.1\.0"):
        one.hear(2, make_append(6, 1, 0, 1, entries))
    assert (one.log.last_index, one.log.term_at(2), one.log.term_at(3)) == (3, 5, 5)


def test_an_append_of_a_version_to_come_is_no_fault_of_the_connection() -> None:
    frame = b"".join(encode(make_append(6, 1, 0, 1, [Entry(above(), 2, 6, KIND_CONFIG, -1)])))
    header_length, crc = int.from_bytes(frame[4:8], "little"), int.from_bytes(frame[8:12], "little")
    decode(memoryview(frame)[12:], header_length, crc)


@pytest.mark.usefixtures("_next_version")
def test_the_level_is_told_before_the_record_is_written(advance: Callable[[float], None]) -> None:
    one = Started(1, joins=True)
    told: list[tuple[int, int]] = []
    one.node.log_writer.on_feature_level = lambda found: told.append((found.level, one.log.last_index))
    one.connect(2)
    payload = encode_configuration(THREE.with_feature_level(ABOVE))
    one.hear(2, make_append(5, 1, 0, 1, [Entry(payload, 2, 5, KIND_CONFIG, -1)]))
    assert told == [(ABOVE, 1)]
    one.hear(3, make_append(6, 1, 0, 1, [Entry(b"", 2, 6, KIND_NOOP, -1)]))
    assert told[1:] == [(1, 1)], "and taken back when the record is cut off"


class Cluster:
    """A leader's view of three nodes, and its proposals."""

    def __init__(self, **builds: Build | None) -> None:
        self.builds = {int(name[1:]): build for name, build in builds.items()}
        self.one = Started(1, joins=False)
        self.proposed: list[Configuration] = []
        self.levels = FeatureLevels(
            self.one.node.state,
            lambda: self.one.node.leads_and_knows_all,
            self.builds.get,
            self.builds.get,
            self.propose,
        )

    def propose(self, change: Callable[[Configuration], Configuration]) -> None:
        self.proposed.append(change(self.one.node.state.configuration))


OLD, NEW = Build("0.2.0", 1, HIGHEST), Build("9.1.0", 1, ABOVE)


@pytest.mark.usefixtures("_next_version")
def test_a_level_is_raised_to_what_all_members_know(advance: Callable[[float], None]) -> None:
    cluster = Cluster(_2=NEW, _3=NEW)
    assert cluster.levels.raised(THREE, None).level == LevelOf(ABOVE, "9.1.0")
    assert cluster.levels.raised(THREE, ABOVE).members == THREE.members


@pytest.mark.usefixtures("_next_version")
@pytest.mark.parametrize(
    ("builds", "level", "code", "named"),
    [
        ({"_2": NEW, "_3": OLD}, ABOVE, "feature_level_not_known", "node 3 (KeelMQ 0.2.0"),
        ({"_2": None, "_3": NEW}, None, "feature_level_not_known", "nodes [2] are not connected"),
        ({"_2": NEW, "_3": NEW}, ABOVE + 1, "feature_level_not_known", "node 1 (KeelMQ 9.1.0"),
    ],
)
def test_a_level_that_a_member_may_not_know_is_refused(
    advance: Callable[[float], None], builds: dict[str, Build | None], level: int | None, code: str, named: str
) -> None:
    cluster = Cluster(**builds)
    with pytest.raises(MembershipRefused) as caught:
        cluster.levels.raised(THREE, level)
    assert caught.value.code == code
    assert named in str(caught.value)


@pytest.mark.usefixtures("_next_version")
def test_a_level_never_goes_down(advance: Callable[[float], None]) -> None:
    cluster = Cluster(_2=NEW, _3=NEW)
    with pytest.raises(MembershipRefused, match="never goes down") as caught:
        cluster.levels.raised(THREE.with_feature_level(ABOVE), HIGHEST)
    assert caught.value.code == "feature_level_in_force"
    grown = THREE.with_feature_level(ABOVE).without(3)
    assert grown.level == LevelOf(ABOVE, "9.1.0"), "changes of the members leave it alone"


@pytest.mark.usefixtures("_next_version")
def test_a_new_cluster_is_raised_once_by_its_first_leader(advance: Callable[[float], None]) -> None:
    cluster = Cluster()
    cluster.levels.tick()
    assert cluster.proposed == [], "it does not lead yet"
    advance(10)
    cluster.one.settle()
    assert cluster.one.node.state.role == LEADER
    cluster.levels.tick()
    cluster.levels.tick()
    assert [each.feature_level for each in cluster.proposed] == [ABOVE]


@pytest.mark.parametrize("first", ["command", "change of members"])
async def test_a_new_cluster_is_raised_before_its_first_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """A client, or an operator, that is quicker than the timer once left a new cluster at the first level for good."""
    with monkeypatch.context() as quick:
        quick.setattr(FeatureLevels, "tick", lambda _: None)
        async with cluster_of(3, tmp_path) as members:
            leader = await leader_of(members)
            await until(lambda: leader.node.feature_levels.highest_known() is not None)
            quick.undo()
            if first == "command":
                await put_topic(leader)
            else:
                with pytest.raises(MembershipRefused, match="not committed yet"):
                    leader.node.propose_configuration(lambda current: current.with_learner(member(9, voter=False)))
            await until(lambda: leader.node.feature_levels.in_force == FEATURES.maximum)


async def test_a_member_that_fell_silent_does_not_keep_a_new_cluster_at_the_first_level(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All nodes have met before the first election; one of them is stopped before the first command."""
    with monkeypatch.context() as quick:
        quick.setattr(FeatureLevels, "tick", lambda _: None)
        async with cluster_of(3, tmp_path) as members:
            leader = await leader_of(members)
            await until(lambda: leader.node.feature_levels.highest_known() is not None)
            await next(each for each in members if each is not leader).stop()
            await until(lambda: leader.node.feature_levels.highest_known() is None)
            quick.undo()
            await put_topic(leader)
            assert leader.node.feature_levels.in_force == FEATURES.maximum


class Leader:
    """A node of three which leads from term to term, with the log of a founder, and its proposals."""

    def __init__(self, **heard: Build) -> None:
        self.heard = {int(name[1:]): build for name, build in heard.items()}
        self.one = Started(1, joins=False)
        self.proposed: list[Configuration] = []
        membership = SimpleNamespace(current=THREE, settled=SimpleNamespace(configuration=THREE), index=0)
        state = SimpleNamespace(node_id=1, role=FOLLOWER, term=0, log=self.one.log, membership=membership)
        self.state = cast("Any", state)
        self.levels = FeatureLevels(
            self.state, lambda: self.state.role == LEADER, lambda _: None, self.heard.get, self.propose
        )

    def propose(self, change: Callable[[Configuration], Configuration]) -> None:
        self.proposed.append(change(THREE))

    def append(self, kind: int = KIND_ENTRY) -> None:
        self.one.log.append(self.one.log.last_index + 1, max(1, self.state.term), kind, b"")

    def lead(self, term: int) -> None:
        self.state.role, self.state.term = LEADER, term
        self.append(KIND_NOOP)
        self.levels.tick()


@pytest.mark.usefixtures("_next_version")
def test_the_first_leader_raises_the_level_once_it_has_heard_every_member() -> None:
    """Commands that came meanwhile change nothing: no earlier version has founded this cluster."""
    leader = Leader(_2=NEW)
    leader.lead(1)
    leader.append()
    leader.levels.tick()
    assert leader.proposed == []
    assert leader.levels.may_be_new
    leader.heard[3] = NEW
    leader.levels.tick()
    leader.levels.tick()
    assert [each.feature_level for each in leader.proposed] == [ABOVE]
    assert not leader.levels.may_be_new


@pytest.mark.usefixtures("_next_version")
def test_what_the_members_are_heard_to_know_first_counts() -> None:
    leader = Leader(_2=NEW, _3=OLD)
    leader.lead(1)
    leader.heard[3] = NEW
    leader.levels.tick()
    leader.levels.tick()
    assert [each.feature_level for each in leader.proposed] == [HIGHEST], "the rest is an operator's upgrade"


@pytest.mark.usefixtures("_next_version")
def test_a_new_disk_in_an_old_cluster_raises_nothing() -> None:
    leader = Leader(_2=NEW, _3=NEW)
    assert leader.levels.may_be_new
    leader.append()
    leader.lead(7)
    assert leader.proposed == []
    assert not leader.levels.may_be_new


@pytest.mark.usefixtures("_next_version")
def test_a_leader_that_lost_its_term_judges_the_log_anew() -> None:
    leader = Leader(_2=NEW)
    leader.lead(1)
    leader.state.role = FOLLOWER
    leader.append()
    leader.heard[3] = NEW
    leader.levels.tick()
    leader.lead(3)
    assert leader.proposed == []


@pytest.mark.usefixtures("_next_version")
def test_a_cluster_with_history_is_left_to_its_operators(advance: Callable[[float], None]) -> None:
    cluster = Cluster()
    advance(10)
    cluster.one.settle()
    cluster.one.node.proposing.propose(b"", lambda *_: None)
    cluster.levels.tick()
    assert cluster.proposed == []
    assert cluster.levels.highest_known() == ABOVE


def test_peers_that_share_no_level_are_told_which_version_to_start() -> None:
    assert refusal_of_build(OLD, LevelOf(1, ""), 2) == ""
    assert "which KeelMQ 9.1.0 and later know; node 2 runs KeelMQ 0.2.0, which knows" in refusal_of_build(
        OLD, LevelOf(ABOVE, "9.1.0"), 2
    )
    assert "works at feature level 7 to 9" in refusal_of_build(Build("99.0.0", 7, 9), LevelOf(1, ""), 2)
    assert own_build().knows(1)


@pytest.mark.usefixtures("_next_version")
def test_a_message_has_what_its_receiver_knows() -> None:
    vitals = Vitals(1, 2, 3, 4)
    lengths = []
    for level in (HIGHEST, ABOVE):
        frame = b"".join(encode(vitals, level))
        lengths.append(len(msgspec.msgpack.decode(frame[12:])))
    fields = len(Vitals.__struct_fields__)
    assert lengths == [fields, fields + 1], "the tag is the first element"


def test_a_build_names_its_commit_to_peers_that_know_of_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit comes behind what 0.2.0 reads of a build, and the proofs of both sides are as without it."""

    class FormerBuild(msgspec.Struct, array_like=True):
        version: str = ""
        level_min: int = 1
        level_max: int = 1

    silent = own_build()
    monkeypatch.setattr(raft.feature_levels, "COMMIT", "0123456789ab")
    named = own_build()
    assert (silent.commit, named.commit) == ("", "0123456789ab")
    said = msgspec.msgpack.encode(named)
    former = msgspec.msgpack.decode(said, type=FormerBuild)
    assert (former.version, former.level_max) == (VERSION, HIGHEST)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(former), type=Build).commit == ""
    hellos = [Hello("shop", 1, 2, 3, "disk", build=build) for build in (silent, named)]
    assert len({opener_statement(hello, Challenge(b"n")) for hello in hellos}) == 1
