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
"""Number of rounds in a row, or of pieces of spawned work, with an unexpected error that raises an alarm."""
SPAWNED_COUNTS_FOR_S: Final = 300.0
"""Seconds after which failures of spawned work raise no alarm any more, unless there are new ones."""
REPORT_INTERVAL_S: Final = 60.0
"""Seconds between two log entries with the trace of errors of one type of a task."""

Round = Callable[[], Awaitable[float | None]]
"""Does one round of a task's work. Returns the pause after it in seconds, or None when all work is done."""


class FailuresInARow:
    """Counts and logs the failures since the last success, of the rounds of a task or of one kind of work that it
    spawns. Each has its own: what succeeds says nothing about what is done beside it.
    """

    def __init__(self, work: str) -> None:
        self.unexpected = 0
        self.last_error = ""
        self.failed_s = float("-inf")
        """Time of the event loop at the last of them."""
        self._work = work
        self._is_late = False
        self._reported_s = float("-inf")
        self._reported_type: type[Exception] | None = None

    def end(self) -> None:
        """Note a success."""
        self._is_late = False
        self.unexpected = 0

    def note_expected(self, error: Exception) -> None:
        if not self._is_late:
            logger.warning("cannot %s yet: %s", self._work, error)
        self._is_late = True

    def note_unexpected(self, error: Exception) -> None:
        self.unexpected += 1
        self.last_error = f"{type(error).__name__}: {error}"
        now_s = self.failed_s = asyncio.get_running_loop().time()
        if type(error) is not self._reported_type or now_s - self._reported_s >= REPORT_INTERVAL_S:
            self._reported_s, self._reported_type = now_s, type(error)
            logger.error("cannot %s, %d times in a row", self._work, self.unexpected, exc_info=error)


class BackgroundTask:
    """Runs the rounds of one task. Use on the event loop only.

    `work` describes the work in words that may follow "cannot" in a log message.
    """

    def __init__(self, name: str, work: str, do_round: Round, retry_s: float) -> None:
        self.name = name
        self.work = work
        self.failures = {"expected": 0, "unexpected": 0}
        """Number of failures since the start: `expected` ones with one of COMMAND_ERRORS, others `unexpected`."""
        self._of_rounds = FailuresInARow(work)
        self._of_spawned: dict[str, FailuresInARow] = {}
        self._do_round = do_round
        self._retry_s = retry_s
        self._running: asyncio.Task[None] | None = None
        self._spawned: set[asyncio.Task[None]] = set()

    @property
    def in_a_row(self) -> FailuresInARow:
        """The failures of the rounds or of a kind of spawned work, whichever has failed more often since its last
        success. Work that is spawned no more, as on a node that leads no more, is forgotten after SPAWNED_COUNTS_FOR_S.
        """
        now_s = asyncio.get_running_loop().time()
        spawned = [each for each in self._of_spawned.values() if now_s - each.failed_s < SPAWNED_COUNTS_FOR_S]
        return max([self._of_rounds, *spawned], key=lambda failures: failures.unexpected)

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
        an error of a round, in a row with those of the same coroutine function.
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
            except Exception as error:
                self._note(error, self._of_rounds)
                pause_s = self._retry_s
            else:
                self._of_rounds.end()

    async def _guarded(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        coroutine = work()
        in_a_row = self._of_spawned.setdefault(getattr(coroutine, "__qualname__", self.name), FailuresInARow(self.work))
        try:
            await coroutine
        except Exception as error:
            self._note(error, in_a_row)
        else:
            in_a_row.end()

    def _note(self, error: Exception, in_a_row: FailuresInARow) -> None:
        if isinstance(error, COMMAND_ERRORS):
            self.failures["expected"] += 1
            in_a_row.note_expected(error)
        else:
            self.failures["unexpected"] += 1
            in_a_row.note_unexpected(error)


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
        """Return the tasks with FAILING_ROUNDS unexpected failures in a row, of rounds or of a kind of spawned work."""
        return (task for task in self._tasks if task.in_a_row.unexpected >= FAILING_ROUNDS)

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
