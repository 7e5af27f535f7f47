"""Tests how many appends are on the way to a follower that is behind."""

import heapq
from collections.abc import Callable

import pytest

from raft.messages import AppendReply
from raft.replication import progress as progress_module
from raft.replication import replication as replication_module
from raft.replication.catching_up import (
    APPENDS_MAX,
    APPENDS_MIN,
    BEHIND_BYTES,
    CATCH_UP_BYTES,
    GAIN_PERIOD_S,
    CatchUpWindow,
)
from raft.replication.progress import WINDOW_MESSAGES, Progress
from raft.replication.replication import APPEND_BYTES
from tests.unit.raft.test_commit import leader_of_three
from tests.unit.raft.test_joining import advance

__all__ = ["advance"]


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
        assert most <= 2 * APPENDS_MIN + 1, "each one more would delay what else its disk and loop have to do"
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
        window.acknowledged(at_s, at_s + 0.026)
    assert window.appends == APPENDS_MIN


def test_one_that_the_others_need_for_a_majority_is_sent_what_there_is(
    advance: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is committed before it is back, so nobody is spared by sending it little at a time."""
    monkeypatch.setattr(replication_module, "BEHIND_BYTES", 1_000)
    monkeypatch.setattr(replication_module, "CATCH_UP_BYTES", 500)
    one = leader_of_three(advance)

    def append_after_absence(*, acknowledged: bool) -> int:
        """Return the number of entries in the first append to node 3 behind the place where the logs meet. Node 2, if
        connected, answers heartbeats for three election timeouts, and has acknowledged what was appended, or has not.
        """
        one.disconnect(3)
        held = one.log.last_index
        for _ in range(20):
            one.node.proposing.propose(bytes(200), lambda *_: None)
            one.settle()
        answer = AppendReply(
            one.node.state.term, True, one.log.last_index if acknowledged else held, votes=True, heartbeat=True
        )
        for _ in range(30 if one.node.state.connected(2) else 0):
            advance(one.node.state.config.election_timeout_ms / 10_000)
            one.hear(2, answer)
        one.connect(3)
        one.transport.sent.clear()
        one.node.on_message(3, AppendReply(one.node.state.term, True, held, counts=True, votes=True))
        one.node.advance()
        sent = [getattr(message, "entries", ()) for peer, message in one.transport.sent if peer == 3]
        return max(map(len, sent))

    assert 0 < append_after_absence(acknowledged=True) < 5
    assert append_after_absence(acknowledged=False) >= 20, "its loop answers, its disk does not"
    one.disconnect(2)
    assert append_after_absence(acknowledged=False) >= 20


@pytest.mark.parametrize(
    ("sync_s", "written_mb_per_s"),
    [(0.005, 60), (0.01, 40), (0.015, 30), (0.03, 20), (0.05, 20), (0.1, 8), (0.3, 8)],
)
def test_a_follower_whose_syncs_take_long_comes_back_under_load(sync_s: float, written_mb_per_s: int) -> None:
    """An append that arrives during a sync waits for the next one, which takes no longer for several appends."""
    window, at_s, gap, sent, end = CatchUpWindow(), 0.0, 200_000_000, 0, 200_000_000
    soonest_s = sync_s / 100
    window.acknowledged(0.0, soonest_s)  # the worst that it can go by: one that nobody had to wait for
    while gap > BEHIND_BYTES:
        paced = window.gains(sent, end, at_s)
        bytes_of_one, appends = (CATCH_UP_BYTES, window.appends) if paced else (APPEND_BYTES, WINDOW_MESSAGES // 2)
        begun_s, at_s = at_s, at_s + 2 * sync_s
        sent += bytes_of_one * appends
        end += int(2 * sync_s * written_mb_per_s * 1_000_000)
        gap = end - sent
        if paced:
            window.acknowledged(begun_s, at_s)
        assert at_s < 60, f"{gap} bytes are left"


def test_one_that_is_sent_less_than_twice_what_is_written_is_not_kept_back() -> None:
    window = CatchUpWindow()
    assert window.gains(0, 1_000, 0.0), "not known yet"
    assert window.gains(10, 1_005, GAIN_PERIOD_S)
    assert not window.gains(19, 1_010, 2 * GAIN_PERIOD_S)
    assert not window.gains(500, 1_010, 2.5 * GAIN_PERIOD_S), "within the period nothing changes"
    assert window.gains(500, 1_010, 3 * GAIN_PERIOD_S)
    assert not window.gains(500, 1_010, 4 * GAIN_PERIOD_S), "nothing was sent at all"


def test_one_that_was_near_for_long_is_judged_by_the_time_since_it_fell_behind() -> None:
    window = CatchUpWindow()
    assert window.gains(0, 1_000, 0.0)
    window.is_near()
    assert window.gains(500_000, 600_000, 3_600 * GAIN_PERIOD_S), "it was sent all that was appended, and no more"
    assert not window.gains(500_010, 600_010, 3_601 * GAIN_PERIOD_S)


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
