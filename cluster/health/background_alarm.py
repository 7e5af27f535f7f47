"""The alarm for background work that fails again and again (cluster/core/background.py)."""

from collections.abc import Iterator

from cluster.core.core import Core
from cluster.health.alarms import Condition


class BackgroundAlarm:
    def __init__(self, core: Core) -> None:
        self._background = core.background

    def conditions(self) -> Iterator[Condition]:
        """Yield one alarm per background task that keeps failing."""
        for task in self._background.failing():
            failures = task.in_a_row
            yield Condition(
                "background_task_failing",
                "critical",
                f"this node cannot {task.work}: {failures.unexpected} times in a row, last with {failures.last_error}. "
                "This is a bug of the broker, and its log has the trace: restart the node, and report the bug",
                task.name,
            )
