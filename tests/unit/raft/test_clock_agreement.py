"""The time agreed by a majority of wall clocks, whichever minority of them is wrong."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raft.health.clock import Clock
from raft.health.clock_agreement import READING_INTERVALS, ClockAgreement, agreement

YEAR_MS = 365 * 86_400_000
NOW_MS = 1_700_000_000_000
SKEW_MS = 10_000
INTERVAL_MS = 1_000


class World:
    """Nodes whose wall clocks can be set, and whose monotonic clocks began at different times."""

    def __init__(self, nodes: int, voters: int | None = None) -> None:
        self.true_s = 1_000.0
        self.ahead_ms = dict.fromkeys(range(1, nodes + 1), 0)
        self.voters = set(range(1, (voters or nodes) + 1))
        self.down: set[int] = set()
        self.nodes = {node_id: self._node(node_id) for node_id in self.ahead_ms}

    def _node(self, node_id: int) -> ClockAgreement:
        clock = Clock(
            lambda: NOW_MS + int(self.true_s * 1000) + self.ahead_ms[node_id], lambda: self.true_s + 77.0 * node_id
        )
        return ClockAgreement(node_id, clock, lambda: self.voters, max_skew_ms=SKEW_MS, interval_ms=INTERVAL_MS)

    @property
    def true_ms(self) -> int:
        return NOW_MS + int(self.true_s * 1000)

    def tell(self, delay_s: float = 0.0) -> None:
        """Let an interval pass, and let every running node tell every other its clock, which takes `delay_s`."""
        self.true_s += INTERVAL_MS / 1000 - delay_s
        up = self.nodes.keys() - self.down
        sent = [(a, b, self.nodes[a].vitals_for(b)) for a in up for b in up if a != b]
        self.true_s += delay_s
        for source, target, vitals in sent:
            self.nodes[target].hear(source, vitals)

    def offset_ms(self, node_id: int) -> float:
        """Return how far the node's time is ahead of the true time."""
        time_ms = self.nodes[node_id].time_ms()
        assert time_ms is not None
        return time_ms - self.true_ms


@pytest.mark.parametrize("ahead_ms", [YEAR_MS, -YEAR_MS, 2 * SKEW_MS, -2 * SKEW_MS])
def test_the_one_whose_clock_is_wrong_knows_it_and_so_do_the_others(ahead_ms: int) -> None:
    world = World(3)
    world.tell()
    assert all(node.is_sure() and not node.is_in_doubt for node in world.nodes.values())
    world.ahead_ms[2] = ahead_ms
    world.tell()
    for node_id, node in world.nodes.items():
        assert node.is_sure()
        assert abs(world.offset_ms(node_id)) <= 1
        assert [node.is_wrong(each) for each in (1, 2, 3)] == [False, True, False]
        assert node.now.offsets_ms[2] == pytest.approx(ahead_ms, abs=2)
    assert world.nodes[2].is_in_doubt
    world.ahead_ms[2] = 0
    world.tell()
    assert not any(node.is_in_doubt for node in world.nodes.values())


def test_two_clocks_that_differ_are_not_sure_and_the_one_behind_counts() -> None:
    """One of three nodes is down. Nobody can know which of the two clocks is wrong, and no node is thrown out."""
    world = World(3)
    world.down = {3}
    world.ahead_ms[2] = YEAR_MS
    world.tell()
    world.tell()
    for node_id in (1, 2):
        assert not world.nodes[node_id].is_sure()
        assert not world.nodes[node_id].is_in_doubt
        assert abs(world.offset_ms(node_id)) <= 1
    world.down = set()
    world.tell()
    assert world.nodes[2].is_in_doubt
    assert world.nodes[1].is_sure()


def test_readings_count_for_some_intervals_only() -> None:
    world = World(3)
    world.tell()
    world.down = {2, 3}
    for _ in range(READING_INTERVALS):
        assert world.nodes[1].is_sure()
        world.tell()
    world.tell()
    assert not world.nodes[1].is_sure()
    assert world.nodes[1].time_ms() is None


def test_a_reading_is_never_ahead_and_one_that_was_long_on_its_way_says_nothing() -> None:
    world = World(3)
    world.tell()
    world.tell(delay_s=0.8)
    assert -802 <= world.offset_ms(1) <= 0
    late = world.nodes[2].vitals_for(1)
    world.tell()
    assert -2 <= world.offset_ms(1) <= 0
    world.true_s += 0.51 * SKEW_MS / 1000
    world.nodes[1].hear(2, late)
    assert world.nodes[1].now.offsets_ms.keys() <= {1, 3}


def test_a_learner_is_compared_and_does_not_count() -> None:
    world = World(3, voters=2)
    world.ahead_ms[3] = YEAR_MS
    world.tell()
    assert world.nodes[1].is_sure()
    assert world.nodes[1].is_wrong(3)
    assert world.nodes[3].is_in_doubt
    assert abs(world.offset_ms(3)) <= 1


def test_a_lone_voter_trusts_its_clock_from_its_start_and_follows_no_leap() -> None:
    world = World(1)
    node = world.nodes[1]
    assert node.is_sure()
    assert world.offset_ms(1) == pytest.approx(0, abs=1)
    for _ in range(5):  # as NTP would set it
        world.ahead_ms[1] += SKEW_MS // 2
        world.tell()
        assert node.is_sure()
    world.ahead_ms[1] += YEAR_MS
    world.tell()
    node.hear(9, node.vitals_for(9))
    assert (node.is_sure(), node.time_ms()) == (False, None)
    assert node.now.offsets_ms[1] == pytest.approx(YEAR_MS, abs=1_001)
    world.ahead_ms[1] -= YEAR_MS
    world.tell()
    assert node.is_sure()
    world.ahead_ms[1] += YEAR_MS
    assert World._node(world, 1).is_sure()  # started again


@given(
    st.sampled_from((2, 3, 4, 5, 7)),
    st.data(),
)
def test_no_minority_of_wrong_clocks_carries_the_time_ahead(voters: int, data: st.DataObject) -> None:
    """Any set of nodes may be heard. If all are heard, the agreed time is not behind either."""
    wrong = data.draw(st.sets(st.integers(1, voters), max_size=(voters - 1) // 2))
    heard = data.draw(st.sets(st.integers(1, voters)))
    known = {
        node_id: float(data.draw(st.integers(-YEAR_MS, YEAR_MS)) if node_id in wrong else 0)
        for node_id in range(1, voters + 1)
    }
    some = agreement({node_id: known[node_id] for node_id in heard}, known.keys(), SKEW_MS)
    assert (some.agreed_ms is None) == (len(heard) <= voters // 2)
    assert some.agreed_ms is None or some.agreed_ms <= 0
    everybody = agreement(known, known.keys(), SKEW_MS)
    assert everybody.is_sure
    assert everybody.agreed_ms is not None
    assert -SKEW_MS <= everybody.agreed_ms <= 0


def offsets(*ahead_ms: float) -> dict[int, float]:
    return dict(enumerate(ahead_ms, 1))


@pytest.mark.parametrize(
    ("ahead_ms", "voters", "agreed_ms", "is_sure"),
    [
        ((0, 0, 0), 3, 0, True),
        ((0, YEAR_MS), 3, 0, False),
        ((0, SKEW_MS), 3, 0, True),
        ((0, SKEW_MS + 1), 3, 0, False),
        ((-YEAR_MS, 0, YEAR_MS), 3, 0, False),
        ((0,), 3, None, False),
        ((0, 0, YEAR_MS, YEAR_MS), 5, 0, False),
        ((0, 0), 2, 0, True),
        ((0, 1, 2, 3), 4, 1, True),
        ((), 0, None, False),
    ],
)
def test_what_readings_come_to(ahead_ms: Iterable[float], voters: int, agreed_ms: float | None, is_sure: bool) -> None:
    found = agreement(offsets(*ahead_ms), range(1, voters + 1), SKEW_MS)
    assert (found.agreed_ms, found.is_sure) == (agreed_ms, is_sure)
