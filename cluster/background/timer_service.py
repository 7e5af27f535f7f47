"""Delivers delayed messages that are due, and gives back popped messages whose lease ended without an acknowledgement.

Only the leader does so, by commands in the log, so the next leader goes on. The service sleeps until the next timer is
due by the replicated clock, and then proposes FireTimers or ExpirePopped. While the clocks do not agree on the time it
proposes only ExpirePopped, by which no message is lost. The service keeps no state that a failover could lose. Many due
timers are delivered in portions, each followed by a pause as long as the portion took: producers and consumers get
their share of the loop meanwhile.
"""

import asyncio
import logging
import math
from typing import Final

from cluster.core.core import Core
from cluster.limits import REQUEST_KEYS_MAX
from raft.proposals import Applied
from store.commands.messages import Fired, FireTimers
from store.commands.pops import ExpirePopped, PopsExpired

logger = logging.getLogger(__name__)

TIMERS_PER_COMMAND: Final = 256
"""Maximum number of timers that one command fires. Applying them takes about five milliseconds; other work of the loop
comes in between, and their rows are written at once."""

POPPED_PER_COMMAND: Final = 128
"""Maximum number of popped messages that one command gives back: each is read, and stored as a row."""

RECHECK_S: Final = 1.0
"""Maximum seconds between two looks at the clock, even when no timer is due for long: the clock may leap."""

PAUSE_S_MAX: Final = 0.1
LATE_MS: Final = 1_000
"""Milliseconds after its time from which on a delivery counts as late. Late deliveries are logged once, when no more
messages are overdue."""


class TimerService:
    """Runs the rounds of delivery. Use on the event loop only. Call `start` once the Raft node runs."""

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
        """Wake the service when a timer is due before its sleep ends, or this node has become the leader."""
        earliest_ms = self._core.state.next_due_ms()
        if earliest_ms is None or earliest_ms >= self._sleeps_until_ms or not self._core.is_leader():
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
        """Deliver a portion of the due messages. Return the pause before the next portion in seconds, or None when
        nothing more is due.
        """
        core = self._core
        due_ms = self._next_due_ms() if core.is_leader() else None
        if due_ms is None or due_ms > core.now_ms():
            self._late.report()
            return None
        begun_ms = core.steady_ms()
        if due_ms == core.state.leases_next_due_ms():
            self._note_expired((await core.propose(ExpirePopped(POPPED_PER_COMMAND))).result)
        else:
            within = core.state.timers_due_within(core.now_ms(), TIMERS_PER_COMMAND, REQUEST_KEYS_MAX)
            self._note(await core.propose(FireTimers(max(1, within))))
        return min((core.steady_ms() - begun_ms) / 1000, PAUSE_S_MAX)

    async def _sleep(self) -> None:
        """Sleep until the next timer is due, an earlier one is scheduled, or RECHECK_S have passed."""
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
    """Counts messages that were delivered late and are not logged yet."""

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
