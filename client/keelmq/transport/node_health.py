"""Latency-fault tolerance: nodes that were slow or failed are left alone for a while, where another one will do.

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
"""(latency, for how long its node is avoided): the last row that the latency reaches holds."""
FAILURE_COUNTS_AS_MS: Final = 10_000
"""A refused or lost connection, or an answer that did not come in time, is taken for an answer after so long."""


def avoidance_ms(latency_ms: float) -> int:
    """For how long a node is avoided that took `latency_ms` to answer."""
    duration_ms = 0
    for reached_ms, avoided_ms in AVOIDANCE_MS:
        if latency_ms >= reached_ms:
            duration_ms = avoided_ms
    return duration_ms


class NodeHealth:
    """What a connection knows of its nodes. Not `enabled`, it knows nothing and avoids nobody."""

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
        """Avoided because it failed, and not just because it was slow."""
        return self._clock() < self._failed_until_s.get(node, 0.0)

    def candidates(self, nodes: Sequence[Origin]) -> list[Origin]:
        """Those of `nodes` that are not avoided; if all are, all of them, the one whose avoidance ends first first."""
        ready = [node for node in nodes if not self.is_avoided(node)]
        return ready or sorted(nodes, key=lambda node: self._avoided_until_s.get(node, 0.0))

    def _avoid(self, until_s: dict[Origin, float], node: Origin, duration_ms: int) -> None:
        until_s[node] = max(until_s.get(node, 0.0), self._clock() + duration_ms / 1000)
