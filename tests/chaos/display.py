"""The live view of a run."""

import contextlib
import time
from collections.abc import Callable
from typing import Final

from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from deploy.reporting.report import Report
from tests.chaos.ledger import Book, Outcome
from tests.chaos.observer import Observer
from tests.chaos.schedule import Scheduler
from tests.chaos.violations import Violations

STATE_STYLES: Final = {"leader": "bold cyan", "down": "bold red", "paused": "yellow", "unreachable": "red"}


class Display:
    """Reads the run's state and writes nothing but the output."""

    def __init__(self, title: str, seconds: float, report: Report) -> None:
        self.report = report
        self.observer: Observer | None = None
        self.scheduler: Scheduler | None = None
        self.book: Book | None = None
        self.violations: Violations | None = None
        self.more: Callable[[], str] = str
        self.acked_before = 0
        """Number of messages acknowledged in epochs that are over."""
        self._title = title
        self._seconds = seconds
        self._started_s = time.monotonic()

    def live(self) -> contextlib.AbstractContextManager[None]:
        """Show the run within the block. The bar is the time of faults; the verdict follows it."""
        return self.report.live(self._figures, share=self._share, panel=self._panel)

    def event(self, kind: str, text: str) -> None:
        """Show an event; `kind` is fault, recovery or step."""
        if kind == "step":
            self.report.step(text)
        else:
            self.report.event(text, kind)

    def _share(self) -> float:
        return (time.monotonic() - self._started_s) / self._seconds

    def _panel(self) -> Panel:
        active = ", ".join(self.scheduler.active) if self.scheduler is not None else ""
        faults = Text(active or "no fault", style="bold red" if active else "green")
        return Panel(Group(faults, self._nodes(), self._workers()), title=self._title, title_align="left")

    def _figures(self) -> str:
        if self.book is None or self.violations is None:
            return ""
        acked = self.acked_before + self.book.total(Outcome.ACKED)
        parts = [f"{acked:,} acknowledged", f"{self.book.total(Outcome.UNKNOWN):,} unknown"]
        parts += [f"{self.book.total(Outcome.FAILED):,} refused", self.more(), f"{self.violations.total} violations"]
        return ", ".join(part for part in parts if part)

    def _nodes(self) -> Table:
        table = Table(box=None, padding=(0, 2), pad_edge=False)
        for heading in ("node", "state", "term", "applied", "committed", "starts"):
            table.add_column(heading, justify="left" if heading in ("node", "state") else "right")
        for node_id, view in self.observer.views.items() if self.observer is not None else ():
            state = Text(view.state, style=STATE_STYLES.get(view.state, ""))
            figures = (view.term, view.applied_index, view.commit_index, view.starts)
            table.add_row(f"node {node_id}", state, *map(str, figures))
        return table

    def _workers(self) -> Table:
        table = Table(box=None, padding=(0, 2), pad_edge=False)
        for heading in ("worker", "acknowledged", "unknown", "refused"):
            table.add_column(heading, justify="left" if heading == "worker" else "right")
        for ledger in self.book.workers if self.book is not None else ():
            counts = (ledger.counts[each] for each in (Outcome.ACKED, Outcome.UNKNOWN, Outcome.FAILED))
            table.add_row(ledger.name, *(f"{count:,}" for count in counts))
        return table
