"""The five demonstrations: what stock PySyncObj 0.3.17 does to a client that trusted it.

Each function plays one interleaving on a bench and raises `Violation` if the nodes break their promise. Row numbers are
those of docs/safe-pysyncobj.md. Where the stock library is at fault, every message in play is one that its own handlers
sent, over links that lose and reorder nothing.
"""

from .bench import HEARTBEAT_US, IMPATIENCE_US, LEADER_FORGOTTEN_US, Bench, MakeMember, bench_world
from .checkers import Violation
from .world import World


def resent_batch_cuts_acknowledged_entries(make_member: MakeMember) -> None:
    """Row 1: an ack of the first entry makes the leader send the rest again; the follower, which has acknowledged all
    of it, cuts its log at the first of those batches, and the leader dies before it sends the next."""
    with bench_world() as world:
        bench = _bench_with_leader(world, make_member, 3)
        bench.network.part(3, 1, 2)
        bench.submit(1, b"money-1", b"money-2", b"money-3", b"money-4")
        bench.network.deliver(1, 2)
        bench.network.deliver(2, 1)
        world.now_us += HEARTBEAT_US
        bench[1].tick()  # a heartbeat is due: the stock leader sends from the second on
        bench.network.deliver(1, 2, 3)
        bench.network.deliver(2, 1, 4)
        bench[1].tick()
        if len(bench.acknowledged) != 4:  # a leader with a window had to be let send more first
            bench.exchange(1, 2)
            bench[1].tick()
        assert len(bench.acknowledged) == 4
        bench.network.deliver(1, 2)  # the first of the batches sent again
        bench[1].crash()
        bench.network.join(3, 2)
        bench.elect(2, 3)
        bench.check_acknowledged_in(2)


def snapshot_message_commits_a_divergent_tail(make_member: MakeMember) -> None:
    """Row 2: a deposed leader with entries nobody else has comes back after the others compacted their logs. The first
    part of the snapshot raises its commit index, and it applies its own, never committed, entries."""
    with bench_world() as world:
        bench = _bench_with_leader(world, make_member, 3)
        bench.network.part(1, 2, 3)
        bench.submit(1, b"ghost1", b"ghost2", b"ghost3")
        bench.elect(2, 3)
        bench.run(2, 3)
        for number in range(8):
            bench.submit(2, b"real%d" % number)
            bench.run(2, 3, heartbeats=2)
        bench[2].compact()
        bench.run(2, 3)
        bench.network.join(1, 2, 3)
        bench.run(2, 1, 3, heartbeats=40)
        bench.check_acknowledged_in(2)
        if bench[1].applied_payloads != bench[2].applied_payloads:
            raise Violation("state_machine_safety", "the replicas do not end with the same applied entries")


def acknowledgement_of_an_earlier_leadership(make_member: MakeMember) -> None:
    """Row 4: an ack that was slow arrives when its receiver leads again, two terms later, and is counted for entries
    that the sender of the ack has since given up. One slow link and one crash lose an acknowledged entry."""
    with bench_world() as world:
        bench = _bench_with_leader(world, make_member, 5)
        bench.network.part(1, 3, 4, 5)
        bench.submit(1, b"old1", b"old2", b"old3", b"old4")
        bench.network.deliver(1, 2, 8)  # node 2 has them; its acks are still on the way to node 1
        bench[2].tick()
        bench.network.part(2, 3, 4, 5)
        bench.elect(3, 4, 5)
        bench.run(3, 4, 5, heartbeats=3)
        bench.network.join(3, 1, 2)
        _carry_one_way(bench, 3, 1, 2)  # nodes 1 and 2 follow node 3 and give up what only they had
        bench.network.part(3, 1, 2)
        bench.network.join(1, 4, 5)
        bench.elect(1, 4, 5)
        bench.exchange(1, 4, 5)
        bench.submit(1, b"new1", b"new2", b"new3")
        bench.exchange(1, 4)  # two of five have it
        bench.network.deliver(2, 1, 8)  # the slow acks of the first leadership
        bench[1].tick()
        bench[1].crash()
        bench[4].crash()
        bench.network.join(2, 3, 5)
        bench.elect(5, 2, 3)
        bench.check_acknowledged_in(5)


def duplicated_vote_is_counted_twice(make_member: MakeMember) -> None:
    """Row 5: two nodes stand in one term; the network duplicates one vote, and both lead."""
    with bench_world() as world:
        bench = Bench(world, make_member, 5)
        bench.exchange(1, 2, 3, 4, 5)
        world.now_us += LEADER_FORGOTTEN_US
        for candidate in (1, 5):
            bench[candidate].skew_us += IMPATIENCE_US
        for candidate, voters in ((1, (2,)), (5, (3, 4))):
            for _ in range(4):
                bench[candidate].tick()
                for voter in voters:
                    bench.network.deliver(candidate, voter, 4)
                    bench.network.deliver(voter, candidate, 4, twice=True)
        leaders = [member.node_id for member in bench.members.values() if member.is_leader]
        if len(leaders) > 1:
            raise Violation("election_safety", f"nodes {leaders} lead")


def failing_callback_applies_twice(make_member: MakeMember) -> None:
    """Row 10: the callback of a client raises after its entry was applied; the entry is applied again."""
    with bench_world() as world:
        bench = _bench_with_leader(world, make_member, 3)

        def broken_client() -> None:
            raise ConnectionResetError("the client has gone")

        bench[1].submit(b"pay", broken_client)
        bench.run(1, 2, 3)
        if not bench[1].up:
            bench.elect(2, 3)
            bench.run(2, 3)
        for member in bench.members.values():
            times = member.applied_payloads.count(b"pay")
            if member.up and times != 1:
                raise Violation("applied_once", f"node {member.node_id} applied an entry {times} times")


def failing_apply_leaves_a_mute_leader(make_member: MakeMember) -> None:
    """Row 10: apply raises on the leader. Either it goes on leading, or it stops; it must not do neither."""
    with bench_world() as world:
        bench = _bench_with_leader(world, make_member, 3)
        bench.submit(1, b"poison1")
        bench.exchange(1, 2, 3)
        bench.run(1, 2, 3)
        leader = bench[1]
        if leader.up and leader.is_leader:
            for peer in (2, 3):
                bench.network.queues[1, peer].clear()
            world.now_us += 500_000
            leader.tick()
            if not bench.network.queues[1, 2]:
                raise Violation("progress", "the leader neither stops nor sends heartbeats: it raises in every tick")


def _bench_with_leader(world: World, make_member: MakeMember, node_count: int) -> Bench:
    """Return a bench on which all nodes are up and agree on node 1."""
    bench = Bench(world, make_member, node_count)
    others = range(2, node_count + 1)
    bench.elect(1, *others)
    bench.run(1, *others)
    return bench


def _carry_one_way(bench: Bench, leader: int, *followers: int) -> None:
    """Carry the leader's appends to the followers and their answers back; no two followers talk."""
    for _ in range(30):
        bench.world.now_us += HEARTBEAT_US
        bench[leader].tick()
        for follower in followers:
            bench.exchange(leader, follower, rounds=2)
