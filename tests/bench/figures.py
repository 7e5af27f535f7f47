"""The benchmark's figures: collected as they are measured, shown as a table, and the content of the result."""

from typing import Any, Final, Literal, NamedTuple

from rich.table import Column
from rich.text import Text

from deploy.reporting.report import Report

UNITS_WITHOUT_DECIMALS: Final = ("msg/s", "tx/s")


class Figure(NamedTuple):
    """One measured value. `goal` is its bound: the value should be at most (`<=`) or at least (`>=`) the goal."""

    key: str  # in the JSON
    what: str  # in the table
    value: float
    unit: str
    goal: float | None = None
    sense: Literal["<=", ">="] = "<="

    @property
    def ratio(self) -> float | None:
        """Value over goal; None without a goal."""
        return self.value / self.goal if self.goal else None

    @property
    def met(self) -> bool | None:
        if self.goal is None:
            return None
        return self.value <= self.goal if self.sense == "<=" else self.value >= self.goal


class Figures:
    """Collects figures and shows each one, and the steps of the benchmark, through `report`."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._figures: list[Figure] = []

    def step(self, text: str) -> None:
        """Show what is measured, or prepared, from now on."""
        self._report.step(text)

    def add(self, *figures: Figure) -> None:
        for figure in figures:
            self._figures.append(figure)
            self._report.event(f"  {figure.what}: {shown(figure.value, figure.unit)}")

    def conclude(self, **context: Any) -> None:
        """Print the table of all figures, then the result: the context and the figures by key."""
        rows = []
        for figure in self._figures:
            goal = "" if figure.goal is None else f"{figure.sense} {shown(figure.goal, figure.unit)}"
            ratio = "" if figure.ratio is None else f"{figure.ratio:.2f}"
            style = {True: "green", False: "red", None: ""}[figure.met]
            verdict = {True: "", False: " missed", None: ""}[figure.met]
            measured = shown(figure.value, figure.unit)
            cells = (figure.what, measured, goal, f"{ratio}{verdict}")
            rows.append([Text(cell, style=style) for cell in cells])
        headings: list[str | Column] = ["figure"]
        headings += [Column(name, justify="right") for name in ("measured", "goal", "ratio to goal")]
        self._report.table("KeelMQ benchmark", headings, rows)
        self._report.result({**context, "figures": self._by_key()})

    def _by_key(self) -> dict[str, dict[str, Any]]:
        return {
            figure.key: {
                "value": round(figure.value, 4),
                "unit": figure.unit,
                "goal": figure.goal if figure.goal is None else round(figure.goal, 4),
                "sense": figure.sense if figure.goal is not None else None,
                "ratio": None if figure.ratio is None else round(figure.ratio, 3),
                "met": figure.met,
            }
            for figure in self._figures
        }


def shown(value: float, unit: str) -> str:
    if unit in UNITS_WITHOUT_DECIMALS:
        return f"{value:,.0f} {unit}"
    return f"{value:,.3f} {unit}" if unit == "ms" else f"{value:,.1f} {unit}"
