"""The background work of a node: each task does one round after the other, whatever error a round raises.

A task that ends with an exception ends in silence: nobody awaits it, and members never expire again, or a full disk is
never seen. So no task has a loop of its own. An error of a round is logged and counted, repeated errors raise an alarm,
and the next round comes all the same.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric

from cluster.problems import Problem
from raft.errors import RaftError
from store.errors import Refused
from store.log.errors import LogError

logger = logging.getLogger(__name__)

COMMAND_ERRORS: Final = (RaftError, Refused, LogError, Problem)
"""Errors that a proposal may raise at any time, as after a change of leader. Another round is the remedy."""
RETRY_S: Final = 0.5
FAILING_ROUNDS: Final = 3
"""Number of rounds in a row with an unexpected error that raises an alarm."""
REPORT_INTERVAL_S: Final = 60.0
"""Seconds between two log entries with the trace of errors of one type of a task."""

Round = Callable[[], Awaitable[float | None]]
"""Does one round of a task's work. Returns the pause after it in seconds, or None when all work is done."""


class BackgroundTask:
    """Runs the rounds of one task. Use on the event loop only.

    `work` describes the work in words that may follow "cannot" in a log message.
    """

    def __init__(self, name: str, work: str, do_round: Round, retry_s: float) -> None:
        self.name = name
        self.work = work
        self.failures = {"expected": 0, "unexpected": 0}
        """Number of failed rounds since the start: `expected` ones with one of COMMAND_ERRORS, others `unexpected`."""
        self.failing_rounds = 0
        """Number of unexpected failures in a row, up to now."""
        self.last_error = ""
        self._do_round = do_round
        self._retry_s = retry_s
        self._is_late = False
        self._reported_s = float("-inf")
        self._reported_type: type[Exception] | None = None
        self._running: asyncio.Task[None] | None = None
        self._spawned: set[asyncio.Task[None]] = set()

    def start(self, pause_s: float = 0.0) -> None:
        """Start the rounds. The first one begins after `pause_s`."""
        self._running = asyncio.create_task(self._run(pause_s), name=self.name)

    async def stop(self) -> None:
        """Cancel the round that is under way and the spawned work, and wait until both have ended."""
        tasks = [*self._spawned, *([] if self._running is None else [self._running])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def spawn(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run `work()` beside the rounds, unless the task is stopped before it begins. An error of `work` counts like
        an error of a round.
        """
        task = asyncio.create_task(self._guarded(work), name=self.name)
        self._spawned.add(task)
        task.add_done_callback(self._spawned.discard)

    async def _run(self, first_pause_s: float) -> None:
        pause_s: float | None = first_pause_s
        while pause_s is not None:
            await asyncio.sleep(pause_s)
            try:
                pause_s = await self._do_round()
            except COMMAND_ERRORS as error:
                self._note_expected(error)
                pause_s = self._retry_s
            except Exception as error:
                self._note_unexpected(error)
                pause_s = self._retry_s
            else:
                self._is_late = False
                self.failing_rounds = 0

    async def _guarded(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await work()
        except COMMAND_ERRORS as error:
            self._note_expected(error)
        except Exception as error:
            self._note_unexpected(error)

    def _note_expected(self, error: Exception) -> None:
        self.failures["expected"] += 1
        if not self._is_late:
            logger.warning("cannot %s yet: %s", self.work, error)
        self._is_late = True

    def _note_unexpected(self, error: Exception) -> None:
        self.failures["unexpected"] += 1
        self.failing_rounds += 1
        self.last_error = f"{type(error).__name__}: {error}"
        now_s = asyncio.get_running_loop().time()
        if type(error) is not self._reported_type or now_s - self._reported_s >= REPORT_INTERVAL_S:
            self._reported_s, self._reported_type = now_s, type(error)
            logger.error("cannot %s, %d rounds in a row", self.work, self.failing_rounds, exc_info=error)


class Background:
    """Owns the background tasks of one node."""

    def __init__(self) -> None:
        self._tasks: list[BackgroundTask] = []

    def task(self, name: str, work: str, do_round: Round, retry_s: float = RETRY_S) -> BackgroundTask:
        """Create a task without starting it. `retry_s` is the pause in seconds after a round that failed."""
        task = BackgroundTask(name, work, do_round, retry_s)
        self._tasks.append(task)
        return task

    def failing(self) -> Iterator[BackgroundTask]:
        """Return the tasks whose last FAILING_ROUNDS rounds have all failed unexpectedly."""
        return (task for task in self._tasks if task.failing_rounds >= FAILING_ROUNDS)

    def counters(self) -> Iterator[Metric]:
        failures = CounterMetricFamily(
            "keelmq_background_failures",
            "Rounds of background work that failed: expected are refusals and changes of leader",
            labels=["task", "kind"],
        )
        for task in self._tasks:
            for kind, count in task.failures.items():
                failures.add_metric([task.name, kind], count)
        yield failures
