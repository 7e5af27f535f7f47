"""Nodes find out whose disk has no room and whose is slow, and so which node should rather lead."""

import random

import pytest
from pysyncobj import syncobj as library
from pysyncobj.transport import Transport

from raft.config import PeerAddress, RaftConfig
from raft.election.fitness import FIT, Fitness
from raft.election.leadership import PATIENCE_TIMEOUTS
from raft.handlers import SafeRaft
from raft.health import disk_health
from raft.health.disk_health import SLOW_MS, SYNCS, DiskHealth, pace
from raft.health.vital_signs import BACKLOG_ENTRIES
from raft.journal import Journal
from raft.library import LEADER
from raft.messages import DiskVitals, PreVote, TimeoutNow, Vitals
from raft.replication.progress import Progress
from store.log.commit_log import CommitLog
from store.log.hard_state import HardState
from store.log.watermarks import Watermarks
from tests.founded import founded
from tests.simdisk import SimDisk
from tests.single_lane import SingleLane

INTERVAL_MS = 1_000


class Time:
    def __init__(self) -> None:
        self.now_s = 1_000.0


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time()
    monkeypatch.setattr(library, "monotonicTime", lambda: time.now_s)
    return time


def disk_of(sync_ms: int | None = 1, *, is_low: bool = False) -> DiskVitals:
    return DiskVitals(free_bytes=1 << 30, is_low=is_low, sync_ms=sync_ms)


def health_of(voters: int = 3) -> DiskHealth:
    return DiskHealth(1, lambda: set(range(1, voters + 1)), interval_ms=INTERVAL_MS)


def syncs(health: DiskHealth, took_ms: float, times: int = SYNCS) -> None:
    for _ in range(times):
        health.note_sync(took_ms / 1000)


def test_a_disk_is_slow_that_needs_many_times_as_long_as_a_majority(time: Time) -> None:
    health = health_of()
    syncs(health, 400)
    assert health.slow() == set(), "nothing is known of the others"
    for peer in (2, 3):
        health.hear(peer, disk_of(2))
    assert health.slow() == {1}
    assert health.is_slow(1)
    assert not health.is_slow(2)


def test_nobody_is_slow_where_a_majority_is(time: Time) -> None:
    """A commit takes as long whichever of the nodes leads."""
    health = health_of()
    syncs(health, 400)
    health.hear(2, disk_of(380))
    health.hear(3, disk_of(1))
    assert health.slow() == set()


def test_many_times_very_little_is_little(time: Time) -> None:
    health = health_of()
    syncs(health, SLOW_MS - 1)
    for peer in (2, 3):
        health.hear(peer, disk_of(1))
    assert health.slow() == set()


def test_a_disk_is_slow_until_it_is_well_below_the_bounds(time: Time) -> None:
    health = health_of()
    for peer in (2, 3):
        health.hear(peer, disk_of(5))
    syncs(health, 120)
    assert health.slow() == {1}
    for took_ms, is_slow in ((60, True), (45, False), (60, False), (120, True)):
        syncs(health, took_ms)
        assert health.is_slow(1) == is_slow, took_ms


def test_one_late_sync_says_nothing_and_an_old_one_neither(time: Time) -> None:
    health = health_of()
    syncs(health, 1)
    syncs(health, 5_000, times=SYNCS // 2)
    assert health.report().sync_ms == 1
    time.now_s += disk_health.SYNCS_COUNT_FOR_S + 1
    assert health.report().sync_ms is None


def test_a_disk_that_hangs_is_slow_before_its_sync_has_ended(time: Time) -> None:
    health = health_of()
    syncs(health, 1)
    begun_s = time.now_s
    health.unsynced_since = lambda: begun_s
    for peer in (2, 3):
        health.hear(peer, disk_of(1))
    assert health.slow() == set()
    time.now_s += 2
    assert health.slow() == {1}
    assert health.report().sync_ms == 2_000


def test_so_is_one_at_which_the_index_takes_no_writes(time: Time) -> None:
    health = health_of()
    syncs(health, 1)
    begun_s = time.now_s
    health.index_waits_since = lambda: begun_s
    for peer in (2, 3):
        health.hear(peer, disk_of(1))
    time.now_s += 2
    assert health.slow() == {1}
    health.index_waits_since = lambda: None
    assert health.slow() == set()


def test_a_report_counts_for_some_intervals(time: Time) -> None:
    health = health_of()
    health.hear(2, disk_of(is_low=True))
    assert health.low() == {2}
    time.now_s += (disk_health.REPORT_INTERVALS + 1) * INTERVAL_MS / 1000
    health.hear(3, disk_of())
    assert health.low() == set()
    assert health.known().keys() == {1, 3}


def test_others_are_told_at_once_when_there_is_no_room_any_more(time: Time) -> None:
    health = health_of()
    health.note_space(1 << 30, is_low=False)
    before = health.has_news
    health.note_space(5, is_low=True)
    assert (before, health.has_news) == (False, True)
    assert health.report() == DiskVitals(free_bytes=5, is_low=True, sync_ms=None)


def test_learners_are_compared_and_do_not_count() -> None:
    assert pace({1: 400, 2: 400, 3: 1, 4: 1}, {1, 2, 3}) == 400
    assert pace({1: 5, 4: 1, 5: 1}, {1, 2, 3}) is None


def test_a_disk_without_room_is_worse_than_a_slow_one_and_that_worse_than_a_wrong_clock() -> None:
    """A node with many entries to apply leads worst of all."""
    order = [FIT, Fitness(clock_is_wrong=True), Fitness(disk_is_slow=True), Fitness(disk_is_low=True)]
    order.append(Fitness(has_backlog=True))
    assert sorted(reversed(order)) == order
    assert str(Fitness(disk_is_slow=True, clock_is_wrong=True)) == "its disk is slow and its wall clock is wrong"


class RecordingTransport(SingleLane, Transport):  # type: ignore[misc]  # the library is untyped
    def __init__(self) -> None:
        super().__init__(None, None, None)
        self.sent: list[tuple[int, object]] = []

    def send(self, node: object, message: object) -> bool:
        self.sent.append((int(getattr(node, "id", node)), message))  # type: ignore[call-overload]
        return True

    def destroy(self) -> None:
        """Do nothing, because there is nothing to close."""


class World:
    """Node 1 of three, which have met."""

    def __init__(self, time: Time) -> None:
        self.time = time
        disk = SimDisk(random.Random(1))
        disk.make_directory("/d")
        self.log = CommitLog.open(disk, "/d/log", segment_bytes=1 << 16, cache_bytes=1 << 16)
        self.log.append(2, 1, 1, b"x")
        self.log.sync()
        peers = {peer: PeerAddress("127.0.0.1", peer) for peer in (2, 3)}
        self.config = RaftConfig(cluster_id="c", node_id=1, listen=PeerAddress("127.0.0.1", 1), peers=peers)
        hard_state = HardState(disk, "/d/hard_state")
        hard_state.set(1, None)
        hard_state.become_voter()
        journal = Journal(self.log, hard_state, 0, Watermarks.open(disk, "/d"))
        self.transport = RecordingTransport()
        self.node = SafeRaft(
            self.config, journal, self.transport, lambda entries, _: [[] for _ in entries], 0, founded(self.config)
        )
        for peer in self.node.state.library._nodes.values():
            self.transport._onNodeConnected(peer)

    def say(self, peer: int, disk: DiskVitals) -> None:
        clocks = self.node.clocks
        self.node.on_message(peer, Vitals(clocks.wall_ms(), int(clocks.steady_ms()), disk=disk))

    def lead(self, acked: dict[int, int]) -> None:
        """Lead with these acknowledgements, all of them recent."""
        node = self.node
        node.state.library.become(LEADER)
        node.state.library.set_leader(1)
        for peer, index in acked.items():
            node.replication._progress[peer] = progress = Progress(index + 1)
            progress.on_ack(index)
            progress.votes = True
            node.state.library.heard_from(peer)
        node.replication.leads_from = 2

    def asked_to_stand(self) -> list[int]:
        self.transport.sent.clear()
        self.node.leadership.ask_successor()
        return [peer for peer, message in self.transport.sent if isinstance(message, TimeoutNow)]


def test_the_successor_is_the_fittest_of_those_that_have_everything(time: Time) -> None:
    world = World(time)
    world.lead({2: 2, 3: 2})
    leadership = world.node.leadership
    assert leadership.successor() is None, "nothing hinders this node"
    world.node.disks.note_space(0, is_low=True)
    world.say(3, disk_of(is_low=True))
    world.say(2, disk_of())
    assert leadership.successor() == 2
    assert world.asked_to_stand() == [2]
    world.say(2, disk_of(is_low=True))
    assert leadership.successor() is None, "nobody is fitter"
    world.say(3, disk_of())
    assert leadership.successor() == 3
    assert world.asked_to_stand() == [3]


def test_who_has_not_caught_up_is_no_successor(time: Time) -> None:
    world = World(time)
    world.lead({2: 1, 3: 1})
    world.node.disks.note_space(0, is_low=True)
    assert world.node.leadership.successor() is None
    assert world.asked_to_stand() == [], "nobody has all of the log"


def test_writes_are_refused_only_while_no_majority_has_room(time: Time) -> None:
    world = World(time)
    world.lead({2: 2, 3: 2})
    leadership = world.node.leadership

    def refused(*, own: bool, second: bool, third: bool) -> list[int]:
        world.node.disks.note_space(0, is_low=own)
        world.say(2, disk_of(is_low=second))
        world.say(3, disk_of(is_low=third))
        return leadership.full_disks()

    assert refused(own=False, second=False, third=False) == []
    assert refused(own=False, second=True, third=False) == []
    assert refused(own=True, second=False, third=False) == [], "it hands over"
    assert refused(own=False, second=True, third=True) == [2, 3]
    assert refused(own=True, second=True, third=False) == [1, 2]
    assert refused(own=False, second=True, third=False) == []
    time.now_s += 3
    world.say(2, disk_of(is_low=True))
    assert leadership.full_disks() == [2], "the third is not there"


def test_a_node_whose_disk_is_full_lets_the_others_stand_first(time: Time) -> None:
    world = World(time)

    def asks_within(timeouts: int) -> bool:
        world.transport.sent.clear()
        for _ in range(10 * timeouts):
            time.now_s += world.config.election_timeout_ms / 10_000
            world.say(2, disk_of())
            world.node.step()
        return any(isinstance(message, PreVote) for _, message in world.transport.sent)

    world.node.disks.note_space(0, is_low=True)
    assert not asks_within(PATIENCE_TIMEOUTS - 1)
    assert asks_within(5), "nobody else has stood"


def test_who_is_waited_for_is_named_with_the_rule(time: Time) -> None:
    world = World(time)
    vacancy = world.node.vacancy
    assert vacancy.waits_for() == "2 of 3 voters are needed, not heard: 2 (never heard), 3 (never heard)"
    world.say(2, disk_of())
    assert vacancy.waits_for() is None
    time.now_s += 7
    assert vacancy.waits_for() == "2 of 3 voters are needed, not heard: 2 (last heard 7 s ago), 3 (never heard)"
    world.node.state.library.set_leader(3)
    assert vacancy.waits_for() is None


def test_who_has_much_to_apply_hands_over_to_who_has_not(time: Time) -> None:
    """A node whose index was removed, for example, would lead and serve nobody until its entries are applied."""
    world = World(time)
    world.lead({2: 2, 3: 2})
    leadership = world.node.leadership
    world.node.state.knowledge.told_committed(1, 2 + BACKLOG_ENTRIES)
    clocks = world.node.clocks
    for peer, unapplied in ((2, BACKLOG_ENTRIES + 1), (3, 0)):
        vitals = Vitals(clocks.wall_ms(), int(clocks.steady_ms()), disk=disk_of(), unapplied=unapplied)
        world.node.on_message(peer, vitals)
    assert leadership.own_fitness == Fitness(has_backlog=True)
    assert leadership.successor() == 3
    assert world.node.vital_signs.of(2).unapplied == 2 + BACKLOG_ENTRIES - world.node.state.last_applied
