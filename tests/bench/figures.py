"""The benchmark's figures: collected as they are measured, shown as a table, written as JSON."""

import json
from typing import Any, Final, Literal, NamedTuple

from rich.console import Console
from rich.table import Table

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
    def __init__(self, console: Console) -> None:
        self._console = console
        self._figures: list[Figure] = []

    def add(self, *figures: Figure) -> None:
        for figure in figures:
            self._figures.append(figure)
            self._console.print(f"  {figure.what}: {shown(figure.value, figure.unit)}", highlight=False)

    def table(self) -> Table:
        table = Table(title="KeelMQ benchmark", title_justify="left")
        for heading in ("figure", "measured", "goal", "ratio to goal"):
            table.add_column(heading, justify="left" if heading == "figure" else "right")
        for figure in self._figures:
            goal = "" if figure.goal is None else f"{figure.sense} {shown(figure.goal, figure.unit)}"
            ratio = "" if figure.ratio is None else f"{figure.ratio:.2f}"
            style = {True: "green", False: "red", None: ""}[figure.met]
            verdict = {True: "", False: " missed", None: ""}[figure.met]
            measured = shown(figure.value, figure.unit)
            table.add_row(figure.what, measured, goal, f"{ratio}{verdict}", style=style)
        return table

    def as_json(self, **context: Any) -> str:
        rows = {
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
        return json.dumps({**context, "figures": rows})


def shown(value: float, unit: str) -> str:
    if unit in UNITS_WITHOUT_DECIMALS:
        return f"{value:,.0f} {unit}"
    return f"{value:,.3f} {unit}" if unit == "ms" else f"{value:,.1f} {unit}"
