"""A drained node: an operator wants other nodes to lead, and nothing stops for that."""

from raft.election.fitness import FIT, Fitness
from raft.election.leadership import PATIENCE_TIMEOUTS
from raft.messages import FRAME, PreVote, Vitals, decode, encode
from tests.unit.raft.test_disk_health import Time, World, disk_of, time

__all__ = ["time"]


def drain(world: World, peer: int, *, drained: bool = True) -> None:
    """Have a peer say whether it is drained."""
    clocks = world.node.clocks
    vitals = Vitals(clocks.wall_ms(), int(clocks.steady_ms()), disk=disk_of(), is_drained=drained)
    world.node.on_message(peer, vitals)


def test_a_drained_leader_hands_over_to_who_is_not(time: Time) -> None:
    world = World(time)
    world.lead({2: 2, 3: 2})
    leadership, signs = world.node.leadership, world.node.vital_signs
    drain(world, 3)
    assert leadership.successor() is None, "nothing hinders this node"
    assert leadership.successors() == [2, 3]
    signs.drain(drained=True)
    assert leadership.own_fitness == Fitness(is_drained=True)
    assert leadership.successor() == 2
    assert world.asked_to_stand() == [2]
    drain(world, 2)
    assert leadership.successor() is None, "all are drained: one of them has to lead"
    drain(world, 3, drained=False)
    assert leadership.successor() == 3
    signs.drain(drained=False)
    assert leadership.own_fitness == FIT


def test_a_drained_node_leads_sooner_than_one_without_room_and_later_than_a_slow_one(time: Time) -> None:
    world = World(time)
    world.lead({2: 2, 3: 2})
    world.node.disks.note_space(0, is_low=True)
    drain(world, 2)
    world.say(3, disk_of(is_low=True))
    assert world.node.leadership.successor() == 2
    order = [FIT, Fitness(disk_is_slow=True), Fitness(is_drained=True), Fitness(disk_is_low=True)]
    assert sorted(reversed(order)) == order


def asks_within(world: World, timeouts: int, *, heard: tuple[int, ...]) -> bool:
    """Return whether the node asks for votes within the election timeouts, in which it hears these nodes."""
    world.transport.sent.clear()
    for _ in range(10 * timeouts):
        world.time.now_s += world.config.election_timeout_ms / 10_000
        for peer in heard:
            world.say(peer, disk_of())
        world.node.step()
    return any(isinstance(message, PreVote) for _, message in world.transport.sent)


def test_a_drained_node_stands_when_the_others_had_their_time(time: Time) -> None:
    world = World(time)
    world.node.vital_signs.drain(drained=True)
    assert not asks_within(world, PATIENCE_TIMEOUTS - 1, heard=(2, 3))
    assert world.node.election.hindrance() == "others that are fitter come first: it is drained"
    assert asks_within(world, 5, heard=(2, 3)), "nobody else has stood"


def test_a_drained_node_waits_for_nobody_when_the_others_are_drained_too(time: Time) -> None:
    world = World(time)
    world.node.vital_signs.drain(drained=True)
    for peer in (2, 3):
        drain(world, peer)
    assert world.node.election.hindrance() == ""


def test_who_is_drained_is_told_at_once_to_peers_that_know_of_it(time: Time) -> None:
    world = World(time)
    world.node.step()
    world.transport.sent.clear()
    world.node.vital_signs.drain(drained=True)
    time.now_s += world.config.heartbeat_ms / 1000
    world.node.step()
    told = [message for _, message in world.transport.sent if isinstance(message, Vitals)]
    assert [each.is_drained for each in told] == [True, True]
    for level, known in ((1, False), (2, True)):
        frame = b"".join(encode(told[0], level))
        _, header_length, header_crc = FRAME.unpack_from(frame)
        again = decode(memoryview(frame)[FRAME.size :], header_length, header_crc)
        assert isinstance(again, Vitals)
        assert again.is_drained == known, level
