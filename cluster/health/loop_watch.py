"""Notices an event loop that stands still, and logs where it stands, which the loop itself cannot do then.

The loop beats four times a second. A separate thread watches the beat, and logs the stack of the loop's thread while
the loop stands: after 1 s, 5 s and 30 s, then every 5 minutes. A stall that is over is counted, and stays an alarm for
a while. When the thread itself was late, the loop is not to blame: the process was frozen, or had no processor.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client import Counter, Histogram
from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric

from cluster.core.core import Core
from cluster.health.alarms import Condition
from cluster.metrics import gauge
from cluster.process.loop_steps import StepMeter, running_meter, stack_of

logger = logging.getLogger(__name__)

BEAT_S: Final = 0.25
STALL_S: Final = 1.0
"""Seconds of delay from which on the loop counts as standing still."""
SHOWN_AFTER_S: Final = (STALL_S, 5.0, 30.0)
SHOWN_EVERY_S: Final = 300.0
ALARM_S: Final = 300.0
"""Seconds for which a stall stays an alarm after its end."""
STALLS_KEPT: Final = 100
DELAY_BUCKETS_S: Final = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    300.0,
)


class LoopWatch:
    """Owns the watching thread. Call `start`, `stop` and `conditions` on the event loop. `steady_s` is a clock that
    does not leap.
    """

    def __init__(self, core: Core, steady_s: Callable[[], float] = time.monotonic) -> None:
        self._core = core
        self._steady_s = steady_s
        registry = core.metrics.registry
        self._stalls = Counter(
            "keelmq_loop_stalls", f"How often the event loop stood for {STALL_S:.0f} s or longer", registry=registry
        )
        self._delay_seconds = Histogram(
            "keelmq_loop_delay_seconds",
            "How late the event loop came to what was due, four times a second",
            buckets=DELAY_BUCKETS_S,
            registry=registry,
        )
        core.metrics.add_gauges(self._steps)
        self._meter: StepMeter | None = None
        self._recent: deque[tuple[float, float]] = deque(maxlen=STALLS_KEPT)  # end and length of each stall, in seconds
        self._due_s = 0.0
        self._looked_s = 0.0
        self._shown = 0  # how often the present stall was logged
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._loop_thread = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._loop_thread = threading.get_ident()
        self._meter = running_meter()
        self._due_s = self._looked_s = self._steady_s()
        self.beat()
        self._thread = threading.Thread(target=self._run, name="loop-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        if self._timer is not None:
            self._timer.cancel()
        if self._thread is not None:
            self._thread.join()

    def beat(self) -> None:
        """Note a beat of the loop. Runs on the loop and schedules the next beat."""
        # first, because an error of the rest, which the loop only logs, must not be the end of the beats
        self._timer = asyncio.get_running_loop().call_later(BEAT_S, self.beat)
        now_s = self._steady_s()
        delay_s = max(0.0, now_s - self._due_s)
        self._delay_seconds.observe(delay_s)
        self._core.loop_delay_s = delay_s
        if delay_s >= STALL_S:
            self._stalls.inc()
            self._recent.append((now_s, delay_s))
            logger.warning("the event loop stood for %.1f s: this node did nothing meanwhile", delay_s)
        self._due_s = now_s + BEAT_S

    def look(self) -> None:
        """Log the stack of the loop's thread if the loop stands. Runs in the watching thread."""
        now_s = self._steady_s()
        was_late = now_s - self._looked_s >= BEAT_S + STALL_S
        self._looked_s = now_s
        stood_s = now_s - self._due_s
        if stood_s < STALL_S:
            self._shown = 0
        elif not was_late and stood_s >= self._next_s():
            self._shown += 1
            logger.error("the event loop has stood for %.1f s, here:\n%s", stood_s, stack_of(self._loop_thread))

    def conditions(self) -> Iterator[Condition]:
        """Yield an alarm when the loop stood within the last ALARM_S seconds."""
        since_s = self._steady_s() - ALARM_S
        while self._recent and self._recent[0][0] < since_s:
            self._recent.popleft()
        if self._recent:
            yield Condition(
                "loop_stalled",
                "warning",
                f"in the last {ALARM_S / 60:.0f} minutes the event loop stood {len(self._recent)} times, up to "
                f"{max(stood_s for _, stood_s in self._recent):.1f} s, and this node answered nobody. The log shows "
                "where it stood; without a stack there the machine is short of processors or memory, or was frozen",
            )

    def _steps(self) -> Iterator[Metric]:
        meter = self._meter
        long_steps = CounterMetricFamily(
            "keelmq_loop_long_steps", "Steps of the event loop that took more than `loop_step_ms_max` of processor time"
        )
        long_steps.add_metric([], meter.long_steps if meter is not None else 0)
        yield long_steps
        yield gauge(
            "keelmq_loop_longest_step_seconds",
            "The longest of all its steps, in processor time; 0 if they are not measured",
            meter.longest_ms / 1000 if meter is not None else 0.0,
        )
        yield gauge(
            "keelmq_loop_longest_collection_seconds",
            "The longest garbage collection on the loop, in processor time; 0 if steps are not measured",
            meter.longest_collection_ms / 1000 if meter is not None else 0.0,
        )

    def _next_s(self) -> float:
        """Return the length of the present stall, in seconds, at which its stack is logged next."""
        if self._shown < len(SHOWN_AFTER_S):
            return SHOWN_AFTER_S[self._shown]
        return SHOWN_EVERY_S * (self._shown - len(SHOWN_AFTER_S) + 1)

    def _run(self) -> None:
        while not self._ended.wait(BEAT_S):
            self.look()
