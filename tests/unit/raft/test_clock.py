"""The clock that stamps entries."""

import pytest

from raft.clock import Clock, ReplicatedClock


class Times:
    def __init__(self) -> None:
        self.wall_ms = 1_000_000
        self.applied_ms = 0
        self.monotonic_s = 50.0


@pytest.fixture
def times() -> Times:
    return Times()


def make_clock(times: Times) -> ReplicatedClock:
    return ReplicatedClock(Clock(lambda: times.wall_ms, lambda: times.monotonic_s), lambda: times.applied_ms)


def test_it_is_wall_time_while_that_is_ahead(times: Times) -> None:
    clock = make_clock(times)
    assert clock() == 1_000_000
    times.wall_ms += 7
    times.applied_ms = 1_000_003
    assert clock() == 1_000_007


def test_it_goes_on_when_an_entry_was_stamped_in_the_future(times: Times) -> None:
    """Found in review: one entry an hour ahead stopped every check of transactions for an hour."""
    clock = make_clock(times)
    times.applied_ms = 4_600_000
    assert clock() == 4_600_000
    times.monotonic_s += 2
    times.wall_ms += 2_000
    assert clock() == 4_602_000
    times.applied_ms = 4_602_500
    assert clock() == 4_602_500
    times.monotonic_s += 1
    assert clock() == 4_603_500


def test_it_does_not_fall_when_the_wall_clock_does(times: Times) -> None:
    clock = make_clock(times)
    times.applied_ms = clock()
    before = clock()
    times.wall_ms -= 500_000
    times.monotonic_s += 1
    assert clock() == before + 1_000


def test_it_does_not_take_back_what_it_has_said(times: Times) -> None:
    """Simulation seed 3: a check fell due while the wall clock was ahead, and was recorded before that moment."""
    clock = make_clock(times)
    times.wall_ms += 600_000
    before = clock()
    times.wall_ms -= 600_000
    times.monotonic_s += 1
    assert clock() == before + 1_000
