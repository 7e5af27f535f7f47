"""The replicated clock stamps entries."""

import pytest

from raft.health.clock import Clock, ReplicatedClock


class Times:
    def __init__(self) -> None:
        self.wall_ms = 1_000_000
        self.agreed_ms: float | None = 1_000_000
        self.applied_ms = 0
        self.monotonic_s = 50.0


@pytest.fixture
def times() -> Times:
    return Times()


@pytest.fixture
def clock(times: Times) -> ReplicatedClock:
    of_node = Clock(lambda: times.wall_ms, lambda: times.monotonic_s)
    return ReplicatedClock(of_node, lambda: times.applied_ms, lambda: times.agreed_ms)


def test_it_is_the_agreed_time_while_that_is_ahead(times: Times, clock: ReplicatedClock) -> None:
    assert clock() == 1_000_000
    times.agreed_ms = 1_000_007
    times.applied_ms = 1_000_003
    assert clock() == 1_000_007


def test_it_follows_a_leap_that_a_majority_agrees_on(times: Times, clock: ReplicatedClock) -> None:
    """The cluster was off for a week."""
    times.applied_ms = 1_000_000
    times.agreed_ms = 1_000_000 + 7 * 86_400_000
    assert clock() == times.agreed_ms


def test_it_is_never_that_of_the_own_wall_clock(times: Times, clock: ReplicatedClock) -> None:
    times.wall_ms += 365 * 86_400_000
    assert clock() == 1_000_000
    times.agreed_ms = None
    times.monotonic_s += 3
    assert clock() == 1_003_000


def test_it_goes_on_at_its_pace_while_no_majority_is_heard(times: Times, clock: ReplicatedClock) -> None:
    times.applied_ms, times.agreed_ms = 700_000, None
    assert clock() == 700_000
    times.monotonic_s += 1.5
    assert clock() == 701_500


def test_it_shows_the_wall_clock_when_there_is_nothing_else_and_is_not_held_to_it(
    times: Times, clock: ReplicatedClock
) -> None:
    """A node that had lost its index was asked before it had heard anybody, and led a year ahead from then on."""
    times.agreed_ms = None
    times.wall_ms += 365 * 86_400_000
    assert clock() == times.wall_ms
    assert clock.stamp_ms() is None
    times.agreed_ms = 1_000_000
    assert clock() == clock.stamp_ms() == 1_000_000
    times.agreed_ms = None
    times.monotonic_s += 1
    assert clock.stamp_ms() == 1_001_000


def test_it_goes_on_when_an_entry_was_stamped_in_the_future(times: Times, clock: ReplicatedClock) -> None:
    """Found in review: one entry an hour ahead stopped every check of transactions for an hour."""
    times.applied_ms = 4_600_000
    assert clock() == 4_600_000
    times.monotonic_s += 2
    times.agreed_ms = 1_002_000
    assert clock() == 4_602_000
    assert clock.lead_ms() == 3_600_000
    times.applied_ms = 4_602_500
    assert clock() == 4_602_500
    times.monotonic_s += 1
    assert clock() == 4_603_500


def test_it_does_not_fall_when_the_agreed_time_does(times: Times, clock: ReplicatedClock) -> None:
    times.applied_ms = before = clock()
    times.agreed_ms = 500_000
    times.monotonic_s += 1
    assert clock() == before + 1_000


def test_it_does_not_take_back_what_it_has_said(times: Times, clock: ReplicatedClock) -> None:
    """Simulation seed 3: a check fell due while the clock was ahead, and was recorded before that moment."""
    times.agreed_ms = 1_600_000
    before = clock()
    times.agreed_ms = 1_000_000
    times.monotonic_s += 1
    assert clock() == before + 1_000
