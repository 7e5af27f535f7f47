"""A leader that a majority does not answer steps down: else its clients would wait for what it cannot commit."""

from .violation import Violation

STEP_DOWN_TIMEOUTS = 4
"""A leader gives up after two election timeouts; twice that, since its steps are not evenly spaced."""
PAUSE_US = 100_000
"""A leader that took no step for so long was frozen; it has to be given time anew."""


class _Leadership:
    def __init__(self, term: int, now_us: int) -> None:
        self.term = term
        self.since_us = self.step_us = now_us  # it began, or went on after a pause; its last step
        self.peers: frozenset[int] = frozenset()
        self.answered_us: dict[int, int] = {}  # peer -> when it answered last


class CheckQuorum:
    """Check, by the world's clock, that a leader without a majority steps down. A node's own clock may only be ahead of
    it.
    """

    def __init__(self, election_timeout_us: int) -> None:
        self._limit_us = STEP_DOWN_TIMEOUTS * election_timeout_us
        self._led: dict[int, _Leadership] = {}

    def on_lead(self, leader: int, term: int, peers: frozenset[int], answered_by: int | None, now_us: int) -> None:
        """Record one step of `leader`, whose other voters are `peers`. In this step it has handled an answer of
        `answered_by`; None if there was none.
        """
        led = self._led.get(leader)
        if led is None or led.term != term:
            led = self._led[leader] = _Leadership(term, now_us)
        if now_us - led.step_us > PAUSE_US or led.peers != peers:
            led.since_us = now_us
        led.peers = peers
        led.step_us = now_us
        if answered_by is not None:
            led.answered_us[answered_by] = now_us
        if now_us - led.since_us > self._limit_us:
            answered = led.answered_us
            lately = [peer for peer in peers if peer in answered and now_us - answered[peer] <= self._limit_us]
            if len(lately) + 1 <= (len(peers) + 1) // 2:
                raise Violation("check_quorum", f"node {leader} leads term {term} on, where only {lately} answer it")
