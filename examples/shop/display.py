"""The demo's live view; without a terminal, it prints a line per event instead."""

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

EVENTS_SHOWN: Final = 12
REFRESH_PER_SECOND: Final = 5
LINE_EVERY_S: Final = 10.0
STYLES: Final = {"fault": "bold red", "recovery": "green", "step": "bold"}


@dataclass
class NodeView:
    node_id: int
    state: str = "starting"  # leader, follower, candidate, down, starting
    term: int = 0
    applied_index: int = 0


@dataclass
class Progress:
    """Progress of the run, written only by the supervisor and read by the view."""

    orders: int
    placed: int = 0
    paid: int = 0
    refused: int = 0
    rewarded: int = 0
    nodes: list[NodeView] = field(default_factory=list)
    account_service: str = "starting"
    points_service: str = "starting"


class Display:
    """Live view of the run: `with Display(progress) as display: display.event("fault", "…")`."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.console = Console()
        self._events: deque[tuple[float, str, str]] = deque(maxlen=EVENTS_SHOWN)
        self._started = time.monotonic()
        self._last_line = self._started
        self._live = Live(self, console=self.console, refresh_per_second=REFRESH_PER_SECOND, transient=False)

    def __enter__(self) -> "Display":
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._live.stop()

    def event(self, kind: str, text: str) -> None:
        self._events.append((time.monotonic() - self._started, kind, text))
        if not self.console.is_terminal:
            self.console.print(f"{self._events[-1][0]:5.1f} s  {text}", highlight=False, soft_wrap=True)

    def tick(self) -> None:
        """Without a terminal, print a line of figures now and then, so that a log shows progress."""
        now = time.monotonic()
        if not self.console.is_terminal and now - self._last_line > LINE_EVERY_S:
            self._last_line = now
            p = self.progress
            line = f"{p.placed}/{p.orders} orders, {p.paid} paid, {p.refused} refused, {p.rewarded} with points"
            self.console.print(f"{now - self._started:5.1f} s  {line}", highlight=False, soft_wrap=True)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Panel(
            Group(self._orders(), Text(), self._processes(), Text(), self._history()),
            title="KeelMQ shop: 100 yuan taken, 100 points added",
            title_align="left",
        )

    def _orders(self) -> Table:
        p = self.progress
        grid = Table.grid(padding=(0, 2))
        for label, value, total in (
            ("orders placed", p.placed, p.orders),
            ("paid or refused", p.paid + p.refused, p.orders),
            ("points added", p.rewarded, max(p.paid, 1)),
        ):
            grid.add_row(label, ProgressBar(total=total, completed=value, width=40), f"{value}/{total}")
        return grid

    def _processes(self) -> Table:
        table = Table(box=None, padding=(0, 2), pad_edge=False)
        for heading in ("process", "state", "term", "applied index"):
            table.add_column(heading, style="dim" if heading == "process" else "")
        for node in self.progress.nodes:
            style = {"leader": "bold cyan", "down": "bold red"}.get(node.state, "")
            figures = ("", "") if node.state == "down" else (str(node.term), str(node.applied_index))
            table.add_row(f"node {node.node_id}", Text(node.state, style=style), *figures)
        for name, state in (
            ("account service", self.progress.account_service),
            ("points service", self.progress.points_service),
        ):
            table.add_row(name, Text(state, style="bold red" if state == "down" else ""), "", "")
        return table

    def _history(self) -> Table:
        grid = Table.grid(padding=(0, 2))
        for at_s, kind, text in self._events:
            grid.add_row(Text(f"{at_s:5.1f} s", style="dim"), Text(text, style=STYLES.get(kind, "")))
        return grid
