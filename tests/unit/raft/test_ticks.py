"""Ticks: as few as a node needs to do at its time what goes by time alone."""

from collections.abc import Callable
from itertools import pairwise

import pytest

from raft.handlers import TICKS_PER_HEARTBEAT, TIMER_SLACK_S
from raft.library import FOLLOWER, LEADER, now
from tests.unit.raft.test_commit import leader_of_three
from tests.unit.raft.test_joining import Started, advance

__all__ = ["advance"]

HEARTBEATS = 40
HEARTBEAT_S = 0.1  # of a configuration that does not name it
TICK_S = HEARTBEAT_S / TICKS_PER_HEARTBEAT


def test_heartbeats_are_sent_when_they_are_due(
    advance: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, sent_at_s, elapsed_s, steps = leader_of_three(advance), [], 0.0, 0
    send_heartbeats = one.node.send_heartbeats

    def noted() -> None:
        sent_at_s.append(elapsed_s)
        send_heartbeats()

    monkeypatch.setattr(one.node, "send_heartbeats", noted)
    while len(sent_at_s) < HEARTBEATS:
        pause_s, steps = one.node.pause_s(), steps + 1
        elapsed_s += pause_s
        advance(pause_s)
        for peer in (2, 3):
            one.node.state.library.heard_from(peer)
        one.node.step()
    assert one.node.state.role == LEADER
    between = [later - earlier for earlier, later in pairwise(sent_at_s)]
    assert max(between) <= HEARTBEAT_S + 2 * TIMER_SLACK_S
    assert steps <= (TICKS_PER_HEARTBEAT + 1) * HEARTBEATS


@pytest.mark.parametrize(
    ("due_in_s", "pause_s"), [(0.02, 0.02 + TIMER_SLACK_S), (10.0, TICK_S), (-1.0, TICK_S)], ids=["soon", "far", "over"]
)
def test_an_election_is_looked_at_when_it_is_due(
    advance: Callable[[float], None], due_in_s: float, pause_s: float
) -> None:
    """One that is overdue waits for a connection, and must not be looked at all the time."""
    one = Started(1, joins=True)
    assert one.node.state.role == FOLLOWER
    one.node.state.library.election_deadline = now() + due_in_s
    assert one.node.pause_s() == pytest.approx(pause_s)
