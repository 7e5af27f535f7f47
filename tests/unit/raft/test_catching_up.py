"""How many appends are on the way to a follower that is behind."""

import heapq

import pytest

from raft.replication import progress as progress_module
from raft.replication.catching_up import APPENDS_MAX, APPENDS_MIN, CatchUpWindow
from raft.replication.progress import WINDOW_MESSAGES, Progress


def most_on_the_way(service_s: float, way_s: float, appends: int = 600) -> tuple[int, float]:
    """Send to a follower that works `service_s` on each append, one after the other, over a way of `way_s` there and
    back. Return how many were on the way at most in the second half, and the share of that time in which it worked.
    """
    window = CatchUpWindow()
    at_s, half_s, free_at_s, sent, most = 0.0, 0.0, 0.0, 0, 0
    under_way: list[tuple[float, float]] = []  # when acknowledged, when sent
    while sent < appends:
        while len(under_way) < window.appends:
            free_at_s = max(free_at_s, at_s + way_s / 2) + service_s
            heapq.heappush(under_way, (free_at_s + way_s / 2, at_s))
            sent += 1
        if sent > appends / 2:
            most, half_s = max(most, len(under_way)), half_s or at_s
        at_s, sent_s = heapq.heappop(under_way)
        window.acknowledged(sent_s, at_s)
        assert APPENDS_MIN <= window.appends <= APPENDS_MAX
    return most, appends / 2 * service_s / (at_s - half_s)


def test_appends_do_not_queue_before_a_follower_that_is_near() -> None:
    for service_s in (0.001, 0.01, 0.3):
        most, busy = most_on_the_way(service_s, way_s=0.0001)
        assert most <= 2 * APPENDS_MIN, "each one more would delay what else its disk and loop have to do"
        assert busy > 0.9


def test_a_long_way_is_filled() -> None:
    most, busy = most_on_the_way(0.005, way_s=0.06)
    assert most > 0.06 / 0.005
    assert busy > 0.9
    assert most_on_the_way(0.001, way_s=0.2)[0] == APPENDS_MAX, "as far as memory allows"


def test_a_disk_that_becomes_slow_narrows_the_window() -> None:
    window = CatchUpWindow()
    for at_s in range(APPENDS_MAX):
        window.acknowledged(at_s, at_s + 0.01)
    assert window.appends == APPENDS_MAX
    for at_s in range(APPENDS_MAX, 2 * APPENDS_MAX):
        window.acknowledged(at_s, at_s + 0.021)
    assert window.appends == APPENDS_MIN


def test_only_a_follower_that_is_far_behind_has_the_narrow_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "now", lambda: 1.0)
    progress = Progress(next_index=5)
    progress.sent(5, 1)
    progress.on_ack(5)
    for index in range(6, 6 + APPENDS_MIN):
        assert progress.may_send(catches_up=True)
        progress.sent(index, 1, catches_up=True)
    assert not progress.may_send(catches_up=True)
    for index in range(6 + APPENDS_MIN, 6 + WINDOW_MESSAGES):
        assert progress.may_send(), "what is sent as it is appended waits for nothing"
        progress.sent(index, 1)
    assert not progress.may_send()
    progress.on_ack(6 + WINDOW_MESSAGES)
    assert progress.may_send(catches_up=True)
