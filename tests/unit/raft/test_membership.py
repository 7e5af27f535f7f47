"""Configurations: their majorities, their allowed successors, and their form in a log."""

import itertools

import msgspec
import pytest

from raft.config import PeerAddress, RaftConfig
from raft.errors import MembershipRefused, ProtocolError
from raft.membership import (
    MEMBERS_MAX,
    Configuration,
    InForce,
    Member,
    Membership,
    decode_configuration,
    encode_configuration,
    founding,
    is_next,
    recovered,
)


def member(node_id: int, *, voter: bool = True) -> Member:
    return Member(node_id, "h", node_id, f"http://h:{node_id}", voter)


def member_key(each: Member) -> int:
    return each.node_id


def of(*voters: int, learners: tuple[int, ...] = ()) -> Configuration:
    members = [member(node_id) for node_id in voters] + [member(node_id, voter=False) for node_id in learners]
    return Configuration(tuple(sorted(members, key=member_key)))


def test_majorities_of_neighbours_share_a_node() -> None:
    """All changes of the members rest on this, for every size."""
    for size in range(1, 8):
        before, after = of(*range(1, size + 1)), of(*range(1, size + 2))
        assert is_next(before, after)
        for first in itertools.combinations(sorted(before.voters), before.majority):
            for second in itertools.combinations(sorted(after.voters), after.majority):
                assert set(first) & set(second)


@pytest.mark.parametrize("following", [of(1), of(1, 4), of(1, 2, 3, 4, 5), of(2, 3, 4)])
def test_two_votes_do_not_change_at_once(following: Configuration) -> None:
    assert not is_next(of(1, 2, 3), following)


def test_only_voters_count() -> None:
    configuration = of(1, 2, 3, learners=(4, 5))
    assert configuration.has_majority((1, 3))
    assert not configuration.has_majority((1, 4, 5, 9))
    assert configuration.held_by_majority({1: 10, 2: 7, 3: 9, 4: 99, 5: 99}) == 9
    assert configuration.held_by_majority({1: 10}) == 0
    assert of(1, 2).held_by_majority({1: 10, 2: 4}) == 4
    assert not Configuration().has_majority(())
    assert Configuration().held_by_majority({1: 5}) == 0


def test_a_node_becomes_a_learner_then_a_voter_then_goes() -> None:
    learner = member(4, voter=False)
    added = of(1, 2, 3).with_learner(learner)
    assert added == of(1, 2, 3, learners=(4,))
    assert added.with_voter(4) == of(1, 2, 3, 4)
    assert added.with_voter(4).without(1) == of(2, 3, 4)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda: of(1, 2).with_learner(member(2, voter=False)), "node_exists"),
        (lambda: of(1, 2).with_learner(Member(3, "h", 2, "http://other", voter=False)), "node_exists"),
        (lambda: of(1, 2).with_learner(Member(3, "other", 2, "http://h:1", voter=False)), "node_exists"),
        (lambda: of(*range(1, MEMBERS_MAX + 1)).with_learner(member(99, voter=False)), "too_many_nodes"),
        (lambda: of(1, 2).with_voter(2), "node_exists"),
        (lambda: of(1, 2).with_voter(3), "node_not_found"),
        (lambda: of(1, 2).without(3), "node_not_found"),
        (lambda: of(1, learners=(2,)).without(1), "last_voter"),
    ],
)
def test_what_cannot_follow_is_refused(change: object, code: str) -> None:
    assert callable(change)
    with pytest.raises(MembershipRefused) as raised:
        change()
    assert raised.value.code == code


def test_a_configuration_is_in_force_until_it_is_cut_off() -> None:
    membership = Membership(InForce(0, of(1, 2, 3)))
    membership.append(10, of(1, 2, 3, learners=(4,)))
    membership.append(20, of(1, 2, 3, 4))
    assert (membership.index, membership.current) == (20, of(1, 2, 3, 4))
    assert not membership.truncate_from(21)
    assert membership.truncate_from(20)
    assert (membership.index, membership.current) == (10, of(1, 2, 3, learners=(4,)))
    assert not membership.settle(9)
    assert membership.settle(10)
    assert not membership.truncate_from(5), "what is committed is never cut off"
    assert membership.settled.index == 10


def test_who_is_a_stranger() -> None:
    membership = Membership(InForce(10, of(1, 2, 3)), [InForce(20, of(1, 2))])
    assert not membership.is_stranger(3, 0), "its removal is not committed"
    assert membership.is_stranger(4, 10)
    assert not membership.is_stranger(4, 11), "it knows a later configuration"
    membership.settle(20)
    assert membership.is_stranger(3, 10)
    joining = Membership(InForce(0, Configuration()))
    assert not joining.is_stranger(4, 0)


def test_a_start_goes_by_index_and_log() -> None:
    founders = of(1, 2, 3)
    assert recovered(founders, None, []).current == founders
    record = encode_configuration(of(1, 2))
    assert recovered(founders, (7, record), []).settled == InForce(7, of(1, 2))
    later = recovered(founders, (7, record), [(7, record), (9, encode_configuration(of(2)))])
    assert (later.settled.index, later.index, later.current) == (7, 9, of(2))


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        encode_configuration(Configuration()),
        encode_configuration(of(learners=(1,))),
        encode_configuration(Configuration((member(1), member(1)))),
        encode_configuration(of(*range(1, MEMBERS_MAX + 2))),
    ],
)
def test_nonsense_from_a_peer_is_refused(payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_configuration(payload)


def test_a_new_cluster_begins_with_what_its_nodes_are_told() -> None:
    config = RaftConfig(
        cluster_id="c",
        node_id=1,
        listen=PeerAddress("0.0.0.0", 7091),
        advertised=PeerAddress("a", 1),
        peers={2: PeerAddress("b", 2)},
        urls={1: "http://a", 2: "http://b"},
    )
    assert founding(config) == Configuration((Member(1, "a", 1, "http://a", True), Member(2, "b", 2, "http://b", True)))
    joins = RaftConfig(cluster_id="c", node_id=3, listen=PeerAddress("c", 3), peers={}, joins=True)
    assert founding(joins) == Configuration()


def test_what_began_anew_on_another_disk_is_another_cluster() -> None:
    """A cluster that began as one node has an origin. No node of several begins anew alone."""
    alone = RaftConfig(cluster_id="c", node_id=1, listen=PeerAddress("h", 1), peers={}, incarnation="first disk")
    first = founding(alone)
    again = founding(msgspec.structs.replace(alone, incarnation="second disk"))
    grown = first.with_learner(member(2, voter=False)).with_voter(2).without(1)
    assert decode_configuration(encode_configuration(grown)).origin == "first disk"
    assert again.origin == "second disk"
    several = founding(msgspec.structs.replace(alone, peers={2: PeerAddress("h", 2)}))
    assert several.origin == ""


def test_who_may_have_had_a_vote_is_every_node_that_may_lead() -> None:
    """A node that is being removed counts, and so does a voter in another log than this one. A removed node does
    not.
    """
    membership = Membership(InForce(10, of(1, 2, 3, learners=(4,))), [InForce(20, of(1, 2, learners=(4,)))])
    assert membership.nodes == {1, 2, 3, 4}
    membership.settle(20)
    assert membership.nodes == {1, 2, 4}
