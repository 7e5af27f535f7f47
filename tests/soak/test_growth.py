"""The soak's criterion finds a leak behind sawteeth, and none where there is none."""

import pytest

from tests.soak.growth import Sample, growth_of


def sawtooth(at_s: int) -> float:
    return (at_s % 40) * 1e6


def test_sawteeth_and_a_warm_up_are_no_growth() -> None:
    samples = [Sample(at_s, sawtooth(at_s) + min(at_s, 200) * 1e6) for at_s in range(0, 600, 5)]
    assert abs(growth_of(samples).total) < 1e7


def test_a_leak_behind_sawteeth_is_growth() -> None:
    samples = [Sample(at_s, sawtooth(at_s) + at_s * 1e5) for at_s in range(0, 600, 5)]
    growth = growth_of(samples)
    assert growth.total == pytest.approx(400 * 1e5, rel=0.2)


def test_a_single_leap_is_no_steady_growth() -> None:
    samples = [Sample(at_s, 5e7 if at_s == 595 else 1e6) for at_s in range(0, 600, 5)]
    assert abs(growth_of(samples).total) < 1e5


def test_too_little_shows_nothing() -> None:
    with pytest.raises(ValueError, match="2 samples"):
        growth_of([Sample(0, 1), Sample(5, 1)])
