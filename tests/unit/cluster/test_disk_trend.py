"""The pace at which a disk fills up is that of the last hour, whatever comes and goes meanwhile."""

import re

import pytest

from cluster.health.disk_trend import KNOWN_AFTER_S, SAMPLE_S, WINDOW_S, DiskTrend
from tests.unit.cluster.conftest import Node

GIB = 1 << 30


def test_a_pace_is_known_after_ten_minutes() -> None:
    trend = DiskTrend()
    for second in range(int(KNOWN_AFTER_S)):
        trend.note(second, GIB - 1_000 * second)
        assert trend.fill_bytes_per_s == 0
    trend.note(KNOWN_AFTER_S, GIB - 1_000 * int(KNOWN_AFTER_S))
    assert trend.fill_bytes_per_s == pytest.approx(1_000)


def test_files_that_come_and_go_are_no_trend() -> None:
    trend = DiskTrend()
    for minute in range(60):
        trend.note(minute * SAMPLE_S, GIB - (minute % 4) * (128 << 20))
    assert abs(trend.fill_bytes_per_s) < (128 << 20) / WINDOW_S


def test_what_is_older_than_an_hour_counts_no_more() -> None:
    trend = DiskTrend()
    for minute in range(60):
        trend.note(minute * SAMPLE_S, GIB - minute * 1_000_000)
    for minute in range(60, 121):
        trend.note(minute * SAMPLE_S, GIB + minute * 60_000)
    assert trend.fill_bytes_per_s == pytest.approx(-1_000)


async def test_a_node_shows_the_pace_of_its_disk(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    guard, free = node.broker._guards.disk, [GIB]
    guard._trend = DiskTrend()  # the node has measured the real disk
    monkeypatch.setattr(guard._disk, "free_bytes", lambda path: free[0])
    for _ in range(11):
        guard.look()
        free[0] -= 6_000_000
        node.clock.now_ms += int(SAMPLE_S * 1000)
    shown = (await node.call("GET", "/metrics")).body.decode()
    pace = re.search(r"^keelmq_disk_fill_bytes_per_second (\S+)", shown, re.MULTILINE)
    assert pace is not None
    assert float(pace[1]) == pytest.approx(100_000, rel=0.1)
