"""A run says which of its moments it never reached."""

from .tally import ALWAYS_MISSED_MIN, Tally


def test_a_moment_that_never_came_is_named() -> None:
    tally = Tally(1)
    tally.moments.update({"a sync": ALWAYS_MISSED_MIN, "recovery": ALWAYS_MISSED_MIN, "leader change": 1})
    tally.missed.update({"a sync": ALWAYS_MISSED_MIN, "recovery": ALWAYS_MISSED_MIN - 1, "leader change": 1})
    assert tally.never_reached() == ["a sync"]
    assert tally.result()["moments_never_reached"] == ["a sync"]
