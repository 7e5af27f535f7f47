"""Alarms: conditions of this node that need an operator's attention, each with its next step.

A module that detects such conditions registers a source. All sources are asked once a second: an alarm is logged once
when it begins and once when it is over, and `/v1/cluster`, `keelmq cluster status` and `keelmq_alarm` show the active
ones. An alarm describes the present state of this node; alarms are neither replicated nor kept on disk.
"""

import logging
from collections.abc import Callable, Iterator
from typing import Final, Literal, NamedTuple

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from cluster.core.core import Core
from cluster.http.responses import Response

logger = logging.getLogger(__name__)

INTERVAL_S: Final = 1.0

Severity = Literal["warning", "critical"]
LEVELS: Final[dict[Severity, int]] = {"warning": logging.WARNING, "critical": logging.ERROR}


class Condition(NamedTuple):
    """A condition that is wrong now. `code` and `subject` identify it; `detail` describes the condition and the next
    step in words, and may change while the condition lasts.
    """

    code: str
    severity: Severity
    detail: str
    subject: str = ""
    """The object concerned, such as a node's id; empty when there is only one."""


class AlarmView(Response, kw_only=True, frozen=True):
    """An active alarm. `critical` means that data or the service is in danger, or that this node serves nobody.
    `since_ms` is wall time."""

    code: str
    severity: Severity
    since_ms: int
    detail: str
    subject: str


Source = Callable[[], Iterator[Condition]]


class Alarms:
    """Owns the active alarms of one node. Use on the event loop only."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._sources: list[Source] = []
        self._active: dict[tuple[str, str], AlarmView] = {}
        self._task = core.background.task("alarms", "look for alarms", self._round)
        core.metrics.add_gauges(self._gauges)

    def add(self, source: Source) -> None:
        """Register a source that yields the present conditions. It is asked once a second and must be cheap."""
        self._sources.append(source)

    @property
    def active(self) -> list[AlarmView]:
        """Alarms that were active at the last look, up to a second ago; the critical ones come first."""
        return sorted(self._active.values(), key=lambda alarm: (alarm.severity != "critical", alarm.since_ms))

    def start(self) -> None:
        self._task.start()

    async def stop(self) -> None:
        await self._task.stop()

    async def _round(self) -> float:
        self.look()
        return INTERVAL_S

    def look(self) -> None:
        """Ask all sources now. An error of a source is raised after the others have been asked."""
        before, self._active = self._active, {}
        failed: Exception | None = None
        for source in self._sources:
            try:
                for condition in source():
                    self._note(condition, before)
            except Exception as error:
                failed = error
        for key, alarm in before.items():
            if key not in self._active:
                lasted_s = (self._core.wall_ms() - alarm.since_ms) / 1000
                logger.info("alarm %s%s is over, after %.0f s", *key, lasted_s)
        if failed is not None:
            raise failed

    def _note(self, condition: Condition, before: dict[tuple[str, str], AlarmView]) -> None:
        key = condition.code, f" ({condition.subject})" if condition.subject else ""
        known = before.get(key)
        if known is None:
            logger.log(LEVELS[condition.severity], "alarm %s%s: %s", *key, condition.detail)
        self._active[key] = AlarmView(
            code=condition.code,
            severity=condition.severity,
            since_ms=known.since_ms if known is not None else self._core.wall_ms(),
            detail=condition.detail,
            subject=condition.subject,
        )

    def _gauges(self) -> Iterator[Metric]:
        family = GaugeMetricFamily("keelmq_alarm", "1 while the alarm is active", labels=["code", "severity"])
        for code, severity in sorted({(alarm.code, alarm.severity) for alarm in self._active.values()}):
            family.add_metric([code, severity], 1)
        yield family
