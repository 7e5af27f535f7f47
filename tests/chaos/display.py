"""The live view of a run; without a terminal, it prints a line per event and regularly a line of figures."""

import time
from collections import deque
from collections.abc import Callable
from typing import Final

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tests.chaos.ledger import Book, Outcome
from tests.chaos.observer import Observer
from tests.chaos.schedule import Scheduler
from tests.chaos.violations import Violations

EVENTS_SHOWN: Final = 12
REFRESH_PER_SECOND: Final = 4
LINE_EVERY_S: Final = 10.0
STYLES: Final = {"fault": "bold red", "recovery": "green", "step": "bold"}
STATE_STYLES: Final = {"leader": "bold cyan", "down": "bold red", "paused": "yellow", "unreachable": "red"}


class Display:
    """Reads the run's state and writes nothing but the screen. Use it as a context manager."""

    def __init__(self, title: str, seconds: float) -> None:
        self.console = Console()
        self.phase = "starting"
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
        self._last_line_s = self._started_s
        self._events: deque[tuple[float, str, str]] = deque(maxlen=EVENTS_SHOWN)
        self._live = Live(self, console=self.console, refresh_per_second=REFRESH_PER_SECOND)

    def __enter__(self) -> "Display":
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._live.stop()

    def event(self, kind: str, text: str) -> None:
        """Show an event; `kind` is fault, recovery or step."""
        at_s = time.monotonic() - self._started_s
        self._events.append((at_s, kind, text))
        if kind == "step":
            self.phase = text
        if not self.console.is_terminal:
            self.console.print(f"{at_s:6.1f} s  {text}", highlight=False, soft_wrap=True, markup=False)

    def tick(self) -> None:
        """Print a line of figures every LINE_EVERY_S without a terminal, so that a log shows progress."""
        now_s = time.monotonic()
        if not self.console.is_terminal and now_s - self._last_line_s > LINE_EVERY_S:
            self._last_line_s = now_s
            text = f"{now_s - self._started_s:6.1f} s  {self._figures()}"
            self.console.print(text, highlight=False, soft_wrap=True, markup=False)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        elapsed_s = time.monotonic() - self._started_s
        head = Table.grid(padding=(0, 2))
        bar = ProgressBar(total=self._seconds, completed=min(elapsed_s, self._seconds), width=40)
        head.add_row(bar, f"{elapsed_s:.0f} of {self._seconds:.0f} s", Text(self.phase, style="bold"))
        active = ", ".join(self.scheduler.active) if self.scheduler is not None else ""
        faults = Text(active or "no fault", style="bold red" if active else "green")
        tables: list[RenderableType] = [self._nodes(), self._workers(), self._history()]
        yield Panel(Group(head, Text(self._figures()), faults, *tables), title=self._title, title_align="left")

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

    def _history(self) -> Table:
        grid = Table.grid(padding=(0, 2))
        for at_s, kind, text in list(self._events):
            grid.add_row(Text(f"{at_s:6.1f} s", style="dim"), Text(text, style=STYLES.get(kind, "")))
        return grid
