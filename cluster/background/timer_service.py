"""Delivers messages whose time has come, and gives back what pop consumers did not acknowledge in theirs.

Only the leader does; what it does is in the log, so the next one goes on. It sleeps until the next timer is due by the
replicated clock, and proposes FireTimers or ExpirePopped; while clocks do not agree on the time only the latter, which
nothing is lost by. Nothing is kept here that a failover could lose. When many
are due at once they are delivered in portions, with a pause after each that is as long as it took: producers and
consumers get their share of the loop meanwhile.
"""

import asyncio
import logging
import math
from typing import Final

from cluster.core.core import Core
from raft.proposals import Applied
from store.commands.messages import Fired, FireTimers
from store.commands.pops import ExpirePopped, PopsExpired

logger = logging.getLogger(__name__)

TIMERS_PER_COMMAND: Final = 256
"""Applying so many takes about five milliseconds, in which the loop does nothing else."""

POPPED_PER_COMMAND: Final = 128
"""Popped messages that come again by one command: each is read, and stored as a row."""

RECHECK_S: Final = 1.0
"""The clock is looked at so often even when nothing is due for long: it may leap."""

PAUSE_S_MAX: Final = 0.1
LATE_MS: Final = 1_000
"""What is delivered later than this after its time is reported: once, when no more is overdue."""


class TimerService:
    """Loop-only. `start` once the Raft node runs."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._task = core.background.task("timers", "deliver messages that are due", self._round)
        self._woken = asyncio.Event()
        self._sleeps_until_ms: float = -math.inf
        self._late = _Late()
        core.raft.on_applied(self._applied)

    def start(self) -> None:
        self._task.start()

    async def stop(self) -> None:
        await self._task.stop()

    def _applied(self) -> None:
        """Wakes the service when a timer is due earlier than it sleeps, or this node has become the leader."""
        if self._sleeps_until_ms == -math.inf or not self._core.is_leader():
            return
        due_ms = self._next_due_ms()
        if due_ms is not None and due_ms < self._sleeps_until_ms:
            self._woken.set()

    def _next_due_ms(self) -> int | None:
        state = self._core.state
        return state.next_due_ms() if self._core.clock_is_sure() else state.leases_next_due_ms()

    async def _round(self) -> float:
        pause_s = await self._deliver_due()
        if pause_s is None:
            await self._sleep()
        return pause_s or 0.0

    async def _deliver_due(self) -> float | None:
        """Deliver a portion of what is due; how long to pause before the next one, None when nothing more is due."""
        core = self._core
        due_ms = self._next_due_ms() if core.is_leader() else None
        if due_ms is None or due_ms > core.now_ms():
            self._late.report()
            return None
        begun_ms = core.steady_ms()
        if due_ms == core.state.leases_next_due_ms():
            self._note_expired((await core.propose(ExpirePopped(POPPED_PER_COMMAND))).result)
        else:
            self._note(await core.propose(FireTimers(TIMERS_PER_COMMAND)))
        return min((core.steady_ms() - begun_ms) / 1000, PAUSE_S_MAX)

    async def _sleep(self) -> None:
        """Until the next timer is due, one is scheduled that is due earlier, or RECHECK_S have passed."""
        core = self._core
        self._woken.clear()
        due_ms = self._next_due_ms() if core.is_leader() else None
        self._sleeps_until_ms = math.inf if due_ms is None else due_ms
        left_s = (self._sleeps_until_ms - core.now_ms()) / 1000
        try:
            async with asyncio.timeout(max(0.0, min(left_s, RECHECK_S))):
                await self._woken.wait()
        except TimeoutError:
            pass
        finally:
            self._sleeps_until_ms = -math.inf

    def _note_expired(self, expired: PopsExpired) -> None:
        metrics = self._core.metrics
        metrics.given_back["scheduled"].inc(expired.scheduled)
        metrics.given_back["dead_lettered"].inc(expired.dead_lettered)

    def _note(self, applied: Applied) -> None:
        fired: Fired = applied.result
        metrics = self._core.metrics
        metrics.timers_fired.inc(len(fired.positions))
        for position in fired.positions:
            assert position.deliver_at_ms is not None
            late_ms = max(0, applied.timestamp_ms - position.deliver_at_ms)
            metrics.timer_lateness_seconds.observe(late_ms / 1000)
            if late_ms > LATE_MS:
                self._late.add(position.count, late_ms)
        if fired.dropped:
            logger.info("%d delayed messages were dropped: their topics were deleted", fired.dropped)


class _Late:
    """Messages that were delivered late and are not reported yet."""

    def __init__(self) -> None:
        self._messages = 0
        self._worst_ms = 0

    def add(self, messages: int, late_ms: int) -> None:
        self._messages += messages
        self._worst_ms = max(self._worst_ms, late_ms)

    def report(self) -> None:
        if self._messages:
            logger.warning(
                "%d delayed messages were delivered late, the latest %d ms after its time: there was no leader to"
                " deliver them, or too many were due at once",
                self._messages,
                self._worst_ms,
            )
            self._messages = self._worst_ms = 0
