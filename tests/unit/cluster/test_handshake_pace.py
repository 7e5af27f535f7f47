"""Handshakes of one address are paced, whatever it does; those of others are not."""

import pytest

from cluster.budgets.handshake_pace import (
    ADDRESSES_LOOKED_OVER,
    HANDSHAKES_AT_ONCE_MAX,
    HANDSHAKES_PER_S_MAX,
    HandshakePace,
)
from cluster.limits import TLS_HANDSHAKE_TIMEOUT_S


class Clock:
    now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_burst_passes_and_what_follows_waits_its_turn(clock: Clock) -> None:
    pace = HandshakePace(clock)
    assert [pace.wait_s("a") for _ in range(HANDSHAKES_AT_ONCE_MAX)] == [0.0] * HANDSHAKES_AT_ONCE_MAX
    waits = [pace.wait_s("a") for _ in range(HANDSHAKES_PER_S_MAX)]
    assert waits == pytest.approx([(number + 1) / HANDSHAKES_PER_S_MAX for number in range(HANDSHAKES_PER_S_MAX)])
    assert pace.wait_s("b") == 0.0


def test_who_would_wait_too_long_is_closed_and_costs_nothing(clock: Clock) -> None:
    pace = HandshakePace(clock)
    begun = 0
    while pace.wait_s("a") is not None:
        begun += 1
    assert begun == HANDSHAKES_AT_ONCE_MAX + TLS_HANDSHAKE_TIMEOUT_S * HANDSHAKES_PER_S_MAX
    clock.now_s += 1.0
    again = 0
    while pace.wait_s("a") is not None:
        again += 1
    assert again == HANDSHAKES_PER_S_MAX


def test_a_steady_client_within_the_rate_never_waits(clock: Clock) -> None:
    pace = HandshakePace(clock)
    for _ in range(10 * HANDSHAKES_AT_ONCE_MAX):
        assert pace.wait_s("a") == 0.0
        clock.now_s += 1.01 / HANDSHAKES_PER_S_MAX


def test_addresses_that_need_not_wait_are_forgotten(clock: Clock) -> None:
    pace = HandshakePace(clock)
    for number in range(10 * ADDRESSES_LOOKED_OVER):
        pace.wait_s(str(number))
        clock.now_s += 0.001
    assert len(pace._free_at_s) <= ADDRESSES_LOOKED_OVER
