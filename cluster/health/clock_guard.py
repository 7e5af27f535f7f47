"""Alarms for wrong clocks.

The timestamps of a leader do not depend on its own wall clock (raft/health/clock.py). As a precaution, a leader with a
wrong clock hands leadership over all the same (cluster/health/leadership_guard.py).
"""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from cluster.core.core import Core
from cluster.health.alarms import Condition
from raft.health.clock_agreement import Agreement


class ClockGuard:
    """Raises alarms for clocks that differ from a majority. Use on the event loop only."""

    def __init__(self, core: Core) -> None:
        self._core = core
        core.metrics.add_gauges(self._gauges)

    def conditions(self) -> Iterator[Condition]:
        """Yield alarms for wrong clocks, for clocks in doubt, and for a time of the log that is ahead."""
        clocks, now = self._core.raft.clocks, self._core.raft.clocks.now
        for node_id, offset_ms in sorted(now.offsets_ms.items()):
            if node_id == clocks.node_id:
                yield from self._own(offset_ms)
            elif clocks.is_wrong(node_id):
                yield Condition(
                    "clock_skew",
                    "warning",
                    f"the wall clock of node {node_id} is {_apart(offset_ms)} the clocks of a majority: set the clock, "
                    "and see that NTP runs there",
                    str(node_id),
                )
        if not now.is_sure and (now.offsets_ms or self._core.raft.is_leader) and not self._core.is_alone():
            apart = ", ".join(f"node {node_id} {offset_ms / 1000:+.1f} s" for node_id, offset_ms in _sorted(now))
            yield Condition(
                "clock_in_doubt",
                "critical",
                f"no majority of the voters' wall clocks agree ({apart or 'too few are heard'}): nothing expires and "
                "no delayed message is delivered until they do. Set the clocks, start nodes that are down, and see "
                "that NTP runs",
            )
        lead_ms = self._core.raft.clock_ms.lead_ms()
        if now.is_sure and lead_ms is not None and lead_ms > clocks.max_skew_ms:
            yield Condition(
                "clock_ahead",
                "warning",
                f"the time of the log is {_apart(lead_ms)} the wall clocks, and never goes back: messages with a "
                "deliver_at_ms come earlier by this time. Give delays as delay_ms; if the difference is too large, "
                "move to a new cluster",
            )

    def _own(self, offset_ms: float) -> Iterator[Condition]:
        clocks = self._core.raft.clocks
        if self._core.is_alone() and not clocks.is_sure():
            yield Condition(
                "clock_skew",
                "critical",
                f"the wall clock of this node has leapt: it is {_apart(offset_ms)} its monotonic clock. Nothing "
                "expires and no delayed message is delivered. Set the clock back, or restart the node if it is right",
            )
        elif clocks.is_in_doubt:
            yield Condition(
                "clock_skew",
                "critical",
                f"the wall clock of this node is {_apart(offset_ms)} the clocks of a majority: it leads only if nobody "
                "else can. Set the clock, and see that NTP runs",
            )

    def _gauges(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(
            "keelmq_clock_offset_seconds",
            "How far the node's wall clock is ahead of the time that a majority of clocks has reached",
            labels=["node_id"],
        )
        for node_id, offset_ms in _sorted(self._core.raft.clocks.now):
            family.add_metric([str(node_id)], offset_ms / 1000)
        yield family


def _sorted(now: Agreement) -> list[tuple[int, float]]:
    return sorted(now.offsets_ms.items())


def _apart(offset_ms: float) -> str:
    """Return the offset in words, such as `3.0 days ahead of` or `12.5 s behind`."""
    seconds = abs(offset_ms) / 1000
    amount = f"{seconds / 86_400:.1f} days" if seconds >= 2 * 86_400 else f"{seconds:.1f} s"
    return f"{amount} {'ahead of' if offset_ms > 0 else 'behind'}"
