"""Tells the service manager, from the event loop, that the node is ready, what it is doing, and that its loop moves.

Signs of life come from the loop and nowhere else, so a loop that stands ends them, and the manager starts the node
anew.
"""

from typing import Final

from cluster.core.core import Core
from cluster.health.readiness import Readiness
from cluster.service_manager.notify_socket import NotifySocket

ROUND_S: Final = 0.5
PAUSE_S_MIN: Final = 0.01
SIGNS_PER_WATCHDOG: Final = 3
"""Signs of life within the time in which the manager expects one."""
START_EXTENSION_US: Final = 60_000_000
"""Time until the node is ready that is asked for again in each round: a node that waits for others is no failed start,
one whose loop stands is."""
REOPENING_US: Final = 600_000_000
"""Time without a sign of life while the node opens its files again, as with a received snapshot."""


class ServiceReporter:
    """Owns the rounds. Use on the event loop only, `start` once the node serves, `stop` before it leaves."""

    def __init__(self, core: Core, readiness: Readiness, manager: NotifySocket) -> None:
        self._core = core
        self._readiness = readiness
        self._manager = manager
        self._runs = self._is_ready = False
        self._status = ""
        watchdog_s = manager.watchdog_us / 1_000_000
        self._pause_s = max(PAUSE_S_MIN, min(ROUND_S, watchdog_s / SIGNS_PER_WATCHDOG)) if watchdog_s else ROUND_S
        self._task = core.background.task("service-manager", "report to the service manager", self._round)
        core.raft.on_applied(self._look)
        core.raft.on_leader(self._look)

    def start(self) -> None:
        self._runs = True
        self._manager.end_silence()
        self._task.start()

    async def stop(self, *, opens_again: bool) -> None:
        """Stop the rounds. With `opens_again` the node is back soon, otherwise it ends."""
        self._runs = False
        await self._task.stop()
        if opens_again:
            self._manager.expect_silence(REOPENING_US)
            self._manager.status("opening its files again")
        else:
            self._manager.stopping()

    async def _round(self) -> float:
        self._manager.alive()  # first: whatever else fails here is no reason to end the node
        reason = self._readiness.reason()
        if reason is None:
            self._say_ready()
        if not self._is_ready:
            self._manager.extend_start(START_EXTENSION_US)
        status = self._state() if reason is None else f"not ready: {reason}"
        if status != self._status:
            self._status = status
            self._manager.status(status)
        return self._pause_s

    def _look(self) -> None:
        """Say that the node is ready when that comes about, half a second before a round may see it: whoever restarts
        nodes one after the other waits for it.
        """
        if self._runs and not self._is_ready and self._readiness.reason() is None:
            self._say_ready()

    def _say_ready(self) -> None:
        if not self._is_ready:
            self._is_ready = True
            self._manager.ready()

    def _state(self) -> str:
        """Return role and term in words."""
        raft = self._core.raft
        if raft.leader_id == raft.node_id:
            return f"leader of term {raft.term}"
        return f"{raft.role} of term {raft.term}, node {raft.leader_id} leads"
