"""A leader whose disk is full hands over to a voter that could lead: else nothing is written although it could be."""

from .violation import Violation

HAND_OVER_US = 4_000_000
"""Limit of the time to hand over: the leader looks at its disk once a second, sees twice a second whether to hand over,
and tries that for up to three seconds.
"""


class FitLeader:
    """Check, by the world's clock, how long each leader takes to hand over."""

    def __init__(self) -> None:
        self._since_us: dict[int, tuple[int, int]] = {}  # leader -> its term, and since when it should hand over

    def on_lead(self, leader: int, term: int, *, should_hand_over: bool, now_us: int) -> None:
        """Record one step of `leader` and whether it should hand over."""
        if not should_hand_over:
            self._since_us.pop(leader, None)
            return
        since_term, since_us = self._since_us.setdefault(leader, (term, now_us))
        if since_term != term:
            self._since_us[leader] = term, now_us
        elif now_us - since_us > HAND_OVER_US:
            raise Violation(
                "fit_leader",
                f"node {leader} has led term {term} with a full disk for {(now_us - since_us) // 1000} ms, and another "
                "voter with room has caught up",
            )
