"""Addresses of nodes: which changes are allowed, which of several addresses counts, and that nothing else changes with
them.
"""

from pathlib import Path

import msgspec
import pytest

from raft.config import AddressOverride, PeerAddress, RaftConfig
from raft.errors import MembershipRefused
from raft.membership import (
    Configuration,
    InForce,
    Member,
    Membership,
    decode_configuration,
    encode_configuration,
    recover_membership,
)
from store.index.index import Index
from store.log.commit_log import CommitLog
from store.log.disk import PosixDisk
from store.log.record import KIND_CONFIG, KIND_ENTRY
from store.state.machine import StateMachine
from tests.unit.raft.test_membership import member, of


def override(number: int, *nodes: int, place: str = "new") -> AddressOverride:
    return AddressOverride(
        number, {node: PeerAddress(place, node) for node in nodes}, {node: f"http://{place}:{node}" for node in nodes}
    )


def test_a_node_that_moves_keeps_its_vote_and_changes_nobody_elses() -> None:
    before = of(1, 2, 3, learners=(4,))
    for node_id in (1, 2, 3, 4):
        after = before.with_address(node_id, PeerAddress("new", 9), "http://new:9")
        assert (after.voters, len(after.members)) == (before.voters, 4)
        assert after.find(node_id) == Member(node_id, "new", 9, "http://new:9", node_id != 4)
        assert [each for each in after.members if each.node_id != node_id] == [
            each for each in before.members if each.node_id != node_id
        ]


def test_what_is_not_said_of_a_node_stays() -> None:
    before = of(1, 2)
    assert before.with_address(1, None, "http://new").find(1) == Member(1, "h", 1, "http://new", True)
    assert before.with_address(1, PeerAddress("new", 9), None).find(1) == Member(1, "new", 9, "http://h:1", True)
    assert before.with_address(1, PeerAddress("h", 1), "http://h:1") == before


@pytest.mark.parametrize(
    ("node_id", "at", "url", "code"),
    [
        (3, PeerAddress("new", 9), None, "node_not_found"),
        (1, PeerAddress("h", 2), None, "node_exists"),
        (1, None, "http://h:2", "node_exists"),
    ],
)
def test_where_another_is_a_node_cannot_be(node_id: int, at: PeerAddress | None, url: str | None, code: str) -> None:
    with pytest.raises(MembershipRefused) as raised:
        of(1, 2).with_address(node_id, at, url)
    assert raised.value.code == code


def test_an_override_moves_members_and_makes_none() -> None:
    before = of(1, 2, 3, learners=(4,))
    after = before.overridden(override(1, 1, 2, 4, 5, 6))
    assert (after.voters, [each.node_id for each in after.members]) == (before.voters, [1, 2, 3, 4])
    assert after.find(1) == Member(1, "new", 1, "http://new:1", True)
    assert after.find(3) == before.find(3), "of whom it says nothing"
    assert after.find(4) == Member(4, "new", 4, "http://new:4", False)
    assert after.override == 1
    assert after.origin == before.origin


def test_nodes_may_change_places_and_not_share_one() -> None:
    swapped = AddressOverride(1, {1: PeerAddress("h", 2), 2: PeerAddress("h", 1)}, {})
    moved = of(1, 2, 3).overridden(swapped)
    assert [each.address.port for each in moved.members] == [2, 1, 3]
    with pytest.raises(MembershipRefused):
        of(1, 2, 3).overridden(AddressOverride(1, {1: PeerAddress("h", 2)}, {}))


def counts(membership: Membership) -> bool:
    return membership.is_overridden


def test_an_override_counts_until_the_log_has_its_number_and_never_again() -> None:
    membership = Membership(InForce(10, of(1, 2, 3)), override=override(2, 1, 2, 3))
    assert counts(membership)
    assert membership.addresses == {node: PeerAddress("new", node) for node in (1, 2, 3)}
    assert membership.find(2) == Member(2, "new", 2, "http://new:2", True)
    written = membership.current.overridden(override(2, 1, 2, 3))
    membership.append(11, written)
    assert not counts(membership)
    membership.append(12, written.with_address(1, PeerAddress("later", 1), "http://later:1"))
    assert membership.addresses[1] == PeerAddress("later", 1), "what is left of the move does not undo it"
    membership.truncate_from(11)
    assert counts(membership), "it was never committed"
    membership.append(11, written.overridden(override(3, 1, place="other")))
    assert not counts(membership)
    assert membership.addresses[1] == PeerAddress("other", 1)


def test_an_override_brings_nobody_back() -> None:
    membership = Membership(InForce(10, of(1, 2)), override=override(1, 1, 2, 3))
    assert membership.addresses.keys() == {1, 2}
    assert membership.find(3) is None
    assert membership.is_stranger(3, 0)


def test_records_of_before_have_no_number_and_those_of_now_are_read_as_they_were_written() -> None:
    old = msgspec.msgpack.encode([[[1, "h", 1, "http://h:1", True]], "origin"])
    assert decode_configuration(old) == Configuration((member(1),), "origin", override=0)
    assert decode_configuration(encode_configuration(of(1, 2).overridden(override(7, 1, 2)))).override == 7
    with pytest.raises(Exception, match="configuration"):
        decode_configuration(msgspec.msgpack.encode([[[1, "h", 1, "", True]], "", -1]))


def config(number: int, *, joins: bool = False) -> RaftConfig:
    peers = {} if joins else {2: PeerAddress("new", 2), 3: PeerAddress("new", 3)}
    return RaftConfig(
        cluster_id="c",
        node_id=1,
        listen=PeerAddress("new", 1),
        peers=peers,
        joins=joins,
        override=override(number, 1, 2, 3) if number else None,
    )


def recovered_from(tmp_path: Path, config: RaftConfig, *records: Configuration | None) -> Membership:
    log = CommitLog.open(PosixDisk(), str(tmp_path / "log"), segment_bytes=1 << 16, cache_bytes=1 << 16)
    index = Index.open(str(tmp_path / "index"))
    try:
        for record in records:
            kind, payload = (KIND_ENTRY, b"") if record is None else (KIND_CONFIG, encode_configuration(record))
            log.append(log.last_index + 1, 1, kind, payload)
        return recover_membership(config, log, StateMachine(index))
    finally:
        log.close()
        index.close()


def test_with_an_override_an_empty_directory_founds_no_cluster(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert recovered_from(tmp_path, config(1)).current == Configuration()
    assert "Is its volume mounted?" in caplog.text


def test_without_one_it_does(tmp_path: Path) -> None:
    assert recovered_from(tmp_path, config(0)).current.voters == {1, 2, 3}


def test_founders_whose_log_says_nothing_of_them_go_by_what_they_are_given(tmp_path: Path) -> None:
    membership = recovered_from(tmp_path, config(1), None)
    assert membership.current.voters == {1, 2, 3}
    assert membership.addresses[2] == PeerAddress("new", 2)


def test_who_is_given_other_addresses_than_its_log_has_is_told_what_to_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    membership = recovered_from(tmp_path, config(0), of(1, 2, 3).overridden(override(4, 1, 2, 3, place="last")))
    assert membership.addresses[2] == PeerAddress("last", 2)
    assert "--override-addresses 5" in caplog.text


def test_one_who_is_given_a_number_goes_by_what_it_is_given(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    membership = recovered_from(tmp_path, config(5), of(1, 2).overridden(override(4, 1, 2, place="last")))
    assert membership.addresses[2] == PeerAddress("new", 2)
    assert membership.find(3) is None
    assert "not in the cluster, so their addresses are ignored: [3]" in caplog.text
