"""Nodes are dialled at their address in the log, and at the one that they report while nobody answers there."""

import msgspec
import pytest

from raft.config import PeerAddress, RaftConfig
from raft.errors import ProtocolError
from raft.membership import Configuration, InForce, Member, Membership
from raft.messages import TimeoutNow
from raft.peers.whereabouts import Whereabouts, parse
from tests.unit.raft.test_transport import free_port, running, two_nodes, until

IN_LOG, SAID = PeerAddress("10.0.0.2", 7091), PeerAddress("10.1.0.2", 7091)


@pytest.mark.parametrize(
    "address", ["", "nowhere", "h:0x10", "h:65536", "h:999999", ":7091", "h:-1", "0.0.0.0:1", ":::1", "h:\u0661"]
)
def test_what_is_no_address_is_not_dialled(address: str) -> None:
    assert parse(address) is None
    whereabouts = Whereabouts()
    assert whereabouts.hear(2, address, object()) is None
    assert whereabouts.choose(2, IN_LOG, 1) == IN_LOG


def test_an_address_may_be_a_name_and_of_either_kind() -> None:
    assert parse("node-2.example:7091") == PeerAddress("node-2.example", 7091)
    assert parse("fd00::2:7091") == PeerAddress("fd00::2", 7091)


def test_the_log_is_right_as_long_as_somebody_answers_there() -> None:
    whereabouts, connection = Whereabouts(), object()
    whereabouts.hear(2, "10.1.0.2:7091", connection)
    assert [whereabouts.choose(2, IN_LOG, failures) for failures in range(4)] == [IN_LOG, SAID, IN_LOG, SAID]
    assert whereabouts.choose(3, IN_LOG, 1) == IN_LOG, "another node"


def test_what_a_node_said_counts_as_long_as_its_connection_stands() -> None:
    whereabouts, first, second = Whereabouts(), object(), object()
    whereabouts.hear(2, "10.9.9.9:1", first)
    whereabouts.hear(2, "10.1.0.2:7091", second)
    whereabouts.forget(2, first)
    assert whereabouts.choose(2, IN_LOG, 1) == SAID
    whereabouts.forget(2, second)
    assert whereabouts.choose(2, IN_LOG, 1) == IN_LOG
    whereabouts.hear(2, "10.1.0.2:7091", first)
    whereabouts.hear(2, "0.0.0.0:7091", second)
    assert whereabouts.choose(2, IN_LOG, 1) == IN_LOG, "a later Hello counts"


def said_by(first: RaftConfig, second: RaftConfig, address: PeerAddress) -> Membership:
    """Return the membership of a log that has the second node at that address."""
    members = (
        Member(1, first.listen.host, first.listen.port, "", True),
        Member(2, address.host, address.port, "", True),
    )
    return Membership(InForce(10, Configuration(members)))


async def test_a_node_that_the_log_has_somewhere_else_takes_part() -> None:
    first, second = two_nodes()
    alone = msgspec.structs.replace(first, peers={}), msgspec.structs.replace(second, peers={})
    async with running(*alone) as [(one, got_one), (two, got_two)]:
        membership = said_by(first, second, PeerAddress("127.0.0.1", free_port()))
        one.set_membership(membership)
        two.set_membership(membership)
        await until(lambda: got_one.connected == {2} and got_two.connected == {1})
        assert one.send(2, TimeoutNow(1))
        await until(lambda: got_two.messages == [(1, TimeoutNow(1))])
        two.set_membership(said_by(first, second, second.listen))
        one.set_membership(said_by(first, second, second.listen))
        await until(lambda: got_one.connected == {2} and got_two.connected == {1})


async def test_who_answers_at_an_address_is_asked_without_disturbing_anybody() -> None:
    first, second = two_nodes()
    async with running(first, second) as [(one, got_one), (two, got_two)]:
        await until(lambda: got_one.connected == {2} and got_two.connected == {1})
        await one.check_answers(2, second.listen)
        await one.check_answers(1, first.listen)
        with pytest.raises(ProtocolError, match="this is node 1, not 2"):
            await one.check_answers(2, first.listen)
        with pytest.raises(ConnectionRefusedError):
            await one.check_answers(2, PeerAddress("127.0.0.1", free_port()))
        assert two.send(1, TimeoutNow(7))
        await until(lambda: got_one.messages == [(2, TimeoutNow(7))])


async def test_who_does_not_know_the_secret_or_is_of_another_cluster_does_not_answer() -> None:
    first, second = two_nodes()
    trusting = msgspec.structs.replace(first, peer_secrets=(b"s" * 32,))
    elsewhere = msgspec.structs.replace(first, cluster_uid="another")
    async with running(second) as [(two, _)]:
        two.cluster_uid = lambda: "this"
        for asking, why in ((trusting, "peer secret"), (elsewhere, "two clusters")):
            async with running(msgspec.structs.replace(asking, peers={})) as [(one, _)]:
                with pytest.raises(ProtocolError, match=why):
                    await one.check_answers(2, second.listen)
