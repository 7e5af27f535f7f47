"""A checker of the leaders' timestamps against the true time, while a minority of wall clocks is wrong by any amount.

Retention, timers, checks and leases are held to the replicated clock by their own models. Together with this checker,
none of them is over before its true time.
"""

import math
from collections.abc import Callable

from store.commands.entry import decode_entry

from .violation import Violation

SLACK_MS = 50
"""Stamps are whole milliseconds, and a node looks at its own wall clock four times an interval."""


class TrueTime:
    """Compare timestamps with the true time. `is_minority(nodes)` returns whether these nodes may be wrong at once. As
    soon as more nodes are wrong, nothing is checked any more.
    """

    def __init__(self, now_us: Callable[[], int], max_skew_ms: int, counts_for_us: int) -> None:
        """Make the checker. A reading of a clock may count for `counts_for_us`."""
        self.is_minority: Callable[[set[int]], bool] = lambda nodes: True
        self._now_us = now_us
        self._max_skew_ms = max_skew_ms
        self._counts_for_us = counts_for_us
        self._wrong_until_us: dict[int, float] = {}
        self._leapt_ms = 0.0
        self._asks = True

    def set_wrong(self, node_id: int) -> None:
        """Record that the node's wall clock shows a wrong time from now on."""
        self._wrong_until_us[node_id] = math.inf

    def set_right(self, node_id: int) -> None:
        self._wrong_until_us[node_id] = self._now_us() + self._counts_for_us

    def on_leap(self, leap_ms: float) -> None:
        """Record that a monotonic clock, and maybe the replicated clock with it, was carried ahead by `leap_ms`."""
        self._leapt_ms += leap_ms

    def wrong(self) -> set[int]:
        """Return the nodes whose wall clocks are wrong, or were so lately that others may still count their
        readings.
        """
        now_us = self._now_us()
        return {node_id for node_id, until_us in self._wrong_until_us.items() if until_us > now_us}

    def on_stamped(self, node_id: int, index: int, payload: bytes, true_ms: int) -> None:
        """Check the time that a leader stamps on an entry. An entry that is stamped in doubt may be behind."""
        self._asks = self._asks and self.is_minority(self.wrong())
        if not self._asks:
            return
        entry = decode_entry(payload)
        ahead_ms = entry.timestamp_ms - true_ms
        ahead_ms_max = self._leapt_ms + SLACK_MS
        behind_ms_max = math.inf if entry.in_doubt else 1.5 * self._max_skew_ms + SLACK_MS
        if not -behind_ms_max <= ahead_ms <= ahead_ms_max:
            doubt = "in doubt" if entry.in_doubt else "without doubt"
            raise Violation("true_time", f"node {node_id} stamps entry {index} {ahead_ms:+.0f} ms off, {doubt}")
