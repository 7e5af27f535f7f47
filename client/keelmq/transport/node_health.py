"""Latency-fault tolerance: slow or failed nodes are avoided for a while where another node can answer.

The table is RocketMQ's. Nothing shortens an avoidance that has begun, neither a quick answer nor a request that only
this node could take; a later slow answer or failure may lengthen it.
"""

import time
from collections.abc import Sequence
from typing import Final

from keelmq.transport.http1 import Origin
from keelmq.transport.retry import Clock

AVOIDANCE_MS: Final = (
    (50, 0),
    (100, 0),
    (550, 2_000),
    (1_800, 5_000),
    (3_000, 6_000),
    (5_000, 10_000),
    (15_000, 30_000),
)
"""(latency, duration of the avoidance) in ms: the last row whose latency is reached applies."""
FAILURE_COUNTS_AS_MS: Final = 10_000
"""A refused or lost connection, or an answer that did not come in time, counts as an answer with this latency."""


def avoidance_ms(latency_ms: float) -> int:
    """Return how long a node is avoided after an answer that took `latency_ms`."""
    duration_ms = 0
    for reached_ms, avoided_ms in AVOIDANCE_MS:
        if latency_ms >= reached_ms:
            duration_ms = avoided_ms
    return duration_ms


class NodeHealth:
    """Records which nodes a connection avoids, and until when. If not `enabled`, it avoids no node."""

    def __init__(self, *, enabled: bool = True, clock: Clock = time.monotonic) -> None:
        self._enabled = enabled
        self._clock = clock
        self._avoided_until_s: dict[Origin, float] = {}
        self._failed_until_s: dict[Origin, float] = {}

    def answered(self, node: Origin, latency_ms: float) -> None:
        duration_ms = avoidance_ms(latency_ms)
        if self._enabled and duration_ms:
            self._avoid(self._avoided_until_s, node, duration_ms)

    def failed(self, node: Origin) -> None:
        if self._enabled:
            duration_ms = avoidance_ms(FAILURE_COUNTS_AS_MS)
            self._avoid(self._avoided_until_s, node, duration_ms)
            self._avoid(self._failed_until_s, node, duration_ms)

    def is_avoided(self, node: Origin) -> bool:
        return self._clock() < self._avoided_until_s.get(node, 0.0)

    def is_failed(self, node: Origin) -> bool:
        """Return whether the node is avoided because it failed, and not only because it was slow."""
        return self._clock() < self._failed_until_s.get(node, 0.0)

    def candidates(self, nodes: Sequence[Origin]) -> list[Origin]:
        """Return the nodes that are not avoided; if all are, return all, the earliest end of an avoidance first."""
        ready = [node for node in nodes if not self.is_avoided(node)]
        return ready or sorted(nodes, key=lambda node: self._avoided_until_s.get(node, 0.0))

    def _avoid(self, until_s: dict[Origin, float], node: Origin, duration_ms: int) -> None:
        until_s[node] = max(until_s.get(node, 0.0), self._clock() + duration_ms / 1000)
