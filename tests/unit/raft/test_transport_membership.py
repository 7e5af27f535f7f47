"""Connections follow the configuration: a new node is dialled; a removed one is refused and told."""

import asyncio

import msgspec
import pytest

from raft.config import PeerAddress, RaftConfig
from raft.membership import Configuration, InForce, Member, Membership
from raft.messages import TimeoutNow
from raft.peers import transport
from raft.peers.transport import TcpTransport
from tests.unit.raft.test_transport import running, two_nodes, until

FIRST_FAILURE_S = 0.3
"""The name is refused at once, without a look at the network."""


def configuration(*configs: RaftConfig) -> Configuration:
    return Configuration(
        tuple(Member(config.node_id, config.listen.host, config.listen.port, "", True) for config in configs)
    )


def without_peers(config: RaftConfig) -> RaftConfig:
    return msgspec.structs.replace(config, peers={})


async def test_who_knows_a_later_configuration_is_heard_and_answered() -> None:
    """A leader was added while this node was away: its address is in no configuration here."""
    first, second = two_nodes()
    async with running(without_peers(first), without_peers(second)) as [(one, got_one), (two, got_two)]:
        two.set_membership(Membership(InForce(10, configuration(first, second))))
        await until(lambda: got_one.connected == {2} and got_two.connected == {1})
        assert two.send(1, TimeoutNow(1))
        await until(lambda: got_one.messages == [(2, TimeoutNow(1))])
        assert one.send(2, TimeoutNow(2))
        await until(lambda: got_two.messages == [(1, TimeoutNow(2))])


async def test_an_empty_node_that_joins_hears_anybody_of_the_cluster() -> None:
    first, second = two_nodes()
    joins = msgspec.structs.replace(without_peers(second), joins=True)
    async with running(first, joins) as [(_, got_one), (two, got_two)]:
        await until(lambda: got_one.connected == {2} and got_two.connected == {1})
        assert two.removed_by is None


async def test_an_empty_node_answers_also_when_the_change_that_added_it_is_taken_back() -> None:
    """The leader that added it was deposed first; the next one has to fill it, and needs its answers."""
    first, second = two_nodes()
    joins = msgspec.structs.replace(without_peers(second), joins=True)
    async with running(first, joins) as [(one, got_one), (two, got_two)]:
        await until(lambda: got_one.connected == {2} and got_two.connected == {1})
        membership = Membership(InForce(0, Configuration()))
        membership.append(50, configuration(first, second))
        two.set_membership(membership)
        assert membership.truncate_from(50)
        two.set_membership(membership)
        await until(lambda: got_one.connected == {2} and got_two.connected == {1})
        assert one.send(2, TimeoutNow(7))
        await until(lambda: (1, TimeoutNow(7)) in got_two.messages)
        assert two.send(1, TimeoutNow(8))
        await until(lambda: (2, TimeoutNow(8)) in got_one.messages)


async def test_who_was_removed_is_disconnected_and_told() -> None:
    first, second = two_nodes()
    async with running(first, second) as [(one, got_one), (two, got_two)]:
        await until(lambda: got_one.connected == {2} and got_two.connected == {1})
        one.set_membership(Membership(InForce(10, configuration(first))))
        await until(lambda: got_one.connected == got_two.connected == set())
        await until(lambda: two.removed_by == 1)


async def test_who_was_heard_before_it_was_added_is_no_guest_once_it_was_removed() -> None:
    first, second = two_nodes()
    async with running(without_peers(first), without_peers(second)) as [(one, got_one), (two, got_two)]:
        both = configuration(first, second)
        two.set_membership(Membership(InForce(10, both)))
        await until(lambda: got_one.connected == {2} and got_two.connected == {1})
        one.set_membership(Membership(InForce(10, both)))
        one.set_membership(Membership(InForce(11, configuration(first))))
        await until(lambda: got_one.connected == got_two.connected == set())
        await until(lambda: two.removed_by == 1)
        two.set_membership(Membership(InForce(12, both)))
        assert two.removed_by is None


async def test_a_removal_breaks_no_connection_before_it_is_committed() -> None:
    """The removal may be cut off and the removed node lead, which then needs answers."""
    first, second = two_nodes()
    async with running(first, second) as [(one, got_one), (two, got_two)]:
        await until(lambda: got_one.connected == {2} and got_two.connected == {1})
        both = configuration(first, second)
        membership = Membership(InForce(0, both), [InForce(10, configuration(first))])
        one.set_membership(membership)
        for number in (1, 2):
            assert two.send(1, TimeoutNow(number))
            assert one.send(2, TimeoutNow(number))
        await until(lambda: got_one.messages == [(2, TimeoutNow(1)), (2, TimeoutNow(2))])
        await until(lambda: got_two.messages == [(1, TimeoutNow(1)), (1, TimeoutNow(2))])
        assert two.removed_by is None
        membership.settle(10)
        one.set_membership(membership)
        await until(lambda: got_one.connected == got_two.connected == set())


async def test_who_is_refused_again_and_again_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(transport, "REMOVED_RECONNECT_MS", 1)
    first, second = two_nodes()
    async with running(first, second) as [(one, got_one), (_, got_two)]:
        await until(lambda: got_one.connected == {2} and got_two.connected == {1})
        refusals: list[int] = []
        log_refusal = one._log_refusal

        def counted(node_id: int, refusal: str) -> None:
            refusals.append(node_id)
            log_refusal(node_id, refusal)

        monkeypatch.setattr(one, "_log_refusal", counted)
        one.set_membership(Membership(InForce(10, configuration(first))))
        await until(lambda: len(refusals) > 5)
        one.set_membership(Membership(InForce(11, configuration(first, second))))
        await until(lambda: got_one.connected == {2} and got_two.connected == {1})
        one.set_membership(Membership(InForce(12, configuration(first))))
        await until(lambda: got_two.connected == set() and len(refusals) > 12)
        assert caplog.text.count("refused a peer connection: node 2 was removed") == 2


async def test_a_peer_is_dialled_where_the_configuration_says() -> None:
    first, second = two_nodes()
    astray = msgspec.structs.replace(first, peers={2: PeerAddress("127.0.0.1", 1)})
    async with running(astray, second) as [(one, got_one), _]:
        one.set_membership(Membership(InForce(10, configuration(first, second))))
        await until(lambda: got_one.connected == {2})


async def test_a_host_that_is_no_name_does_not_end_the_dialling() -> None:
    first, _ = two_nodes()
    async with running(without_peers(first)) as [(one, _)]:
        dialling = asyncio.create_task(one._keep_dialling(2, PeerAddress("x" * 64 + ".example", 7091)))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(FIRST_FAILURE_S):
                await asyncio.shield(dialling)
        dialling.cancel()


async def test_an_error_that_nobody_thought_of_does_not_end_the_dialling(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = two_nodes()
    dial, failures = TcpTransport._dial, [KeyError("a bug"), KeyError("a bug")]

    async def fails_first(transport: TcpTransport, peer: int, address: PeerAddress) -> None:
        if failures:
            raise failures.pop()
        await dial(transport, peer, address)

    monkeypatch.setattr(TcpTransport, "_dial", fails_first)
    async with running(first, second) as [(_, got_one), _]:
        await until(lambda: got_one.connected == {2})
    told = [record for record in caplog.records if "a bug" in record.getMessage()]
    assert [record.exc_info is not None for record in told] == [True] * len(told)


async def test_a_node_that_began_anew_is_no_part_of_what_its_old_disk_began(caplog: pytest.LogCaptureFixture) -> None:
    first, second = two_nodes()
    began_anew = msgspec.structs.replace(without_peers(first), cluster_uid="second disk")
    member = msgspec.structs.replace(without_peers(second), cluster_uid="first disk")
    async with running(began_anew, member) as [(_, got_one), (two, got_two)]:
        two.set_membership(Membership(InForce(10, configuration(first, second))))
        await until(lambda: "start it with --join" in caplog.text)
        assert got_one.connected == got_two.connected == set()
        assert two.removed_by is None
