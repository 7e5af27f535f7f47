"""Sets of offsets stay sorted and bounded."""

import pytest

from keelmq_spark.folding import intervals


def test_a_set_of_ranges_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keelmq_spark.folding.intervals.RANGES_MAX", 2)
    ranges: intervals.Ranges = []
    for begin in (20, 0, 10):
        intervals.add(ranges, begin, begin + 5)
    assert ranges == [[0, 15], [20, 25]]
    intervals.add_except(ranges, 14, 30, [12, 27, 29])
    assert ranges == [[0, 27], [28, 29]]
    assert list(intervals.missing(ranges, 0, 40)) == [(27, 28), (29, 40)]
    for offset in (28, 40, 0, 5):
        intervals.remove(ranges, offset)
    assert ranges == [[1, 5], [6, 27]]
