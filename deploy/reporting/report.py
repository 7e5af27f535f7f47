"""The output of a long command: steps and events, a live view, tables, and at the end one line `RESULT {json}`.

On a terminal the live view is drawn again and again below the events. Everywhere else the output is plain: each event
is one line, a line of progress comes every LINE_EVERY_S, and a row of a table is one line that is never cut.
"""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from deploy.reporting.result import result_line

LINE_EVERY_S: Final = 10.0
REFRESH_PER_SECOND: Final = 4
PIPE_COLUMNS: Final = 4_000
"""Width of the output without a terminal: no row of a table reaches it."""
BAR_COLUMNS: Final = 30
STYLES: Final = {"step": "bold", "fault": "bold red", "recovery": "green", "problem": "red"}

Cell = str | int | Text


class Report:
    """Prints the output of one command to `file`, by default standard output.

    Threads may call it at the same time. Lines of steps and events begin with the seconds since the report was made.
    """

    def __init__(self, file: TextIO | None = None, *, line_every_s: float = LINE_EVERY_S) -> None:
        stream = sys.stdout if file is None else file
        self._terminal = stream.isatty() and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")
        self._console = Console(
            file=stream, force_terminal=self._terminal, width=None if self._terminal else PIPE_COLUMNS, highlight=False
        )
        self._line_every_s = line_every_s
        self._begun_s = self._said_s = time.monotonic()
        self._step = ""

    def step(self, text: str) -> None:
        """Print the step that the command begins. The live view repeats it."""
        self._step = text
        self.event(text, "step")

    def event(self, text: str, kind: str = "") -> None:
        """Print something that has happened; `kind` is fault, recovery, problem or empty, and chooses the colour."""
        self.text(f"{self._elapsed_s():7.1f} s  {text}", kind)

    def text(self, text: str, kind: str = "") -> None:
        """Print text as it is, without the time."""
        self._said_s = time.monotonic()
        self._console.print(Text(text, style=STYLES.get(kind, "")), soft_wrap=True)

    @contextlib.contextmanager
    def live(
        self,
        state: Callable[[], str] = str,
        *,
        share: Callable[[], float] | None = None,
        panel: Callable[[], RenderableType] | None = None,
    ) -> Iterator[None]:
        """Show progress within the block: the present step, `state`, the `share` (0 to 1) that is done, and a `panel`.

        The functions are called from another thread, so they only read. The panel appears on terminals alone; its last
        picture stays.
        """

        def line() -> str:
            percent = f"{100 * min(share(), 1.0):.0f} %" if share is not None else ""
            return ", ".join(part for part in (self._step, state(), percent) if part)

        def view() -> RenderableType:
            grid = Table.grid(padding=(0, 2))
            bar = [ProgressBar(total=1.0, completed=min(share(), 1.0), width=BAR_COLUMNS)] if share is not None else []
            text = Text(f"{self._elapsed_s():7.1f} s  {line()}", no_wrap=True, overflow="ellipsis")
            grid.add_row(*bar, text)
            return grid if panel is None else Group(grid, panel())

        if self._terminal:
            with Live(
                console=self._console,
                get_renderable=view,
                refresh_per_second=REFRESH_PER_SECOND,
                transient=panel is None,
            ):
                yield
        else:
            with self.every(self._line_every_s, lambda: self.event(line())):
                yield
        if state is not str and (panel is None or not self._terminal):
            self.event(line())

    def table(self, title: str, headings: Sequence[str | Column], rows: Iterable[Sequence[Cell]]) -> None:
        """Print a table below its title. A column of integers is right-aligned; without headings no head is shown."""
        listed = [list(row) for row in rows]
        columns = []
        for position in range(len(headings) or len(listed[0])):
            numbers = bool(listed) and all(type(row[position]) is int for row in listed)
            heading = headings[position] if headings else ""
            if isinstance(heading, str):
                heading = Column(heading, justify="right" if numbers else "left", overflow="fold")
            columns.append(heading)
        table = Table(*columns, show_header=bool(headings))
        if not self._terminal:
            table.box, table.pad_edge, table.padding = None, False, (0, 2, 0, 0)
        for row in listed:
            table.add_row(*(cell if isinstance(cell, Text) else _shown(cell) for cell in row))
        self.text(title, "step")
        self._console.print(table)

    def silent_s(self) -> float:
        """Return the time since the last line."""
        return time.monotonic() - self._said_s

    def result(self, result: Mapping[str, Any]) -> None:
        """Print the last line: `RESULT` and the figures as JSON."""
        self._console.print(Text(result_line(result)), soft_wrap=True)

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._begun_s

    @contextlib.contextmanager
    def every(self, seconds: float, tick: Callable[[], None]) -> Iterator[None]:
        """Call `tick` every `seconds` from a thread within the block, also while the block computes or waits."""
        over = threading.Event()

        def run() -> None:
            while not over.wait(seconds):
                tick()

        thread = threading.Thread(target=run, name="report-lines", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def _shown(cell: str | int) -> Text:
    return Text(f"{cell:,}" if isinstance(cell, int) else cell)
