"""Says which clocks are wrong, and hands leadership over while this node's own is.

What a leader stamps does not depend on its own wall clock (raft/clock.py), so a hand-over is a precaution: it is tried
only when a voter is there whose clock is right, and not again soon when nobody took over.
"""

import asyncio
import logging
import math
from collections.abc import Iterator
from typing import Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from cluster.alarms import Condition
from cluster.core import Core
from raft.clock_agreement import Agreement

logger = logging.getLogger(__name__)

INTERVAL_S: Final = 1.0
LOOKS_BEFORE_HAND_OVER: Final = 2
"""A machine that was suspended finds its clock wrong until it hears the others again."""
RETRY_INTERVAL_S: Final = 60.0
"""While a hand-over is tried nothing is written, for up to three seconds."""


class ClockGuard:
    """Loop-only. `start` once the Raft node runs."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._task: asyncio.Task[None] | None = None
        self._looks_in_doubt = 0
        self._next_try_s = -math.inf
        core.metrics.add_gauges(self._gauges)

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="clock-guard")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_S)
            try:
                await self.look()
            except Exception:
                logger.exception("the comparison of clocks failed")

    async def look(self) -> None:
        """Hand over if this node leads and its clock has been wrong for two looks."""
        raft, now_s = self._core.raft, self._core.steady_ms() / 1000
        self._looks_in_doubt = self._looks_in_doubt + 1 if raft.clocks.is_in_doubt else 0
        if self._looks_in_doubt < LOOKS_BEFORE_HAND_OVER or not raft.is_leader or now_s < self._next_try_s:
            return
        if all(raft.clocks.is_wrong(peer) for peer in raft.answering_voters()):
            return
        self._next_try_s = now_s + RETRY_INTERVAL_S
        logger.warning("handing leadership over: this node's wall clock is wrong")
        await raft.hand_over()

    def conditions(self) -> Iterator[Condition]:
        """For the alarms of the node."""
        clocks, now = self._core.raft.clocks, self._core.raft.clocks.now
        for node_id, offset_ms in sorted(now.offsets_ms.items()):
            if node_id == clocks.node_id:
                yield from self._own(offset_ms)
            elif clocks.is_wrong(node_id):
                yield Condition(
                    "clock_skew",
                    "warning",
                    f"the wall clock of node {node_id} is {_apart(offset_ms)} the clocks of a majority: set it, and "
                    "see that NTP runs there",
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
                "deliver_at_ms come earlier by as much. Give delays as delay_ms; if that is too much, move to a new "
                "cluster",
            )

    def _own(self, offset_ms: float) -> Iterator[Condition]:
        clocks = self._core.raft.clocks
        if self._core.is_alone() and not clocks.is_sure():
            yield Condition(
                "clock_skew",
                "critical",
                f"the wall clock of this node has leapt: it is {_apart(offset_ms)} its monotonic clock. Nothing "
                "expires and no delayed message is delivered. Set the clock back, or restart this node if it is right",
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
    """`3.0 days ahead of`, `12.5 s behind`."""
    seconds = abs(offset_ms) / 1000
    amount = f"{seconds / 86_400:.1f} days" if seconds >= 2 * 86_400 else f"{seconds:.1f} s"
    return f"{amount} {'ahead of' if offset_ms > 0 else 'behind'}"
