"""The progress of the demo and its live view."""

from dataclasses import dataclass, field

from rich.console import Group
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text


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


class View:
    """Draws the progress of the run."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress

    def state(self) -> str:
        """Return the line of progress."""
        p = self.progress
        return f"{p.placed}/{p.orders} orders, {p.paid} paid, {p.refused} refused, {p.rewarded} with points"

    def share(self) -> float:
        """Return the share of the orders that are decided."""
        return (self.progress.paid + self.progress.refused) / self.progress.orders

    def panel(self) -> Panel:
        """Return the picture for a terminal."""
        return Panel(
            Group(self._orders(), Text(), self._processes()),
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
