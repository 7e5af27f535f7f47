"""What many seeds came to: totals that take the same room for any number of seeds, tables, and one RESULT line."""

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from . import coverage
from .outcome import Outcome

FAILURES_KEPT_MAX = 100
EXIT_VIOLATION, EXIT_BLIND, EXIT_COVERAGE = 1, 2, 3
_TRACE_BITS = 128


@dataclass
class Totals:
    seeds: int = 0
    violations: int = 0
    failures: list[Outcome] = field(default_factory=list)
    """The first ones."""
    counts: Counter[str] = field(default_factory=Counter)
    met: Counter[str] = field(default_factory=Counter)
    trace: int = 0
    """Of all runs, the same in whatever order they ran."""

    def add(self, outcome: Outcome) -> None:
        self.seeds += 1
        if outcome.violation:
            self.violations += 1
            if len(self.failures) < FAILURES_KEPT_MAX:
                self.failures.append(outcome)
        for name in ("acknowledged", "duplicates", "refused", "unknown", "terms", "steps"):
            self.counts[name] += getattr(outcome, name)
        self.met.update(outcome.met)
        self.trace = (self.trace + int(outcome.trace or "0", 16)) % (1 << _TRACE_BITS)


def report(console: Console, ours: Totals, stock: Totals, first_seed: int, *, judged: bool = True) -> int:
    """Prints the tables and the RESULT line; returns the exit status. Not `judged`: a broken node's coverage is not."""
    _print_totals(console, ours, stock)
    missing = coverage.not_met(ours.met) if ours.seeds else []
    if ours.seeds:
        _print_coverage(console, ours, missing)
    blind = bool(stock.seeds and not stock.violations)
    if blind:
        console.print("the stock handlers were not found guilty: this simulation proves nothing")
    print(f"RESULT {json.dumps(_result(ours, stock, first_seed, missing))}", flush=True)
    if ours.violations:
        return EXIT_VIOLATION
    if blind:
        return EXIT_BLIND
    return EXIT_COVERAGE if judged and coverage.overdue(missing, ours.seeds) else 0


def _result(ours: Totals, stock: Totals, first_seed: int, missing: list[str]) -> dict[str, Any]:
    counts = ours.counts
    return {
        "seeds": ours.seeds,
        "first_seed": first_seed,
        "violations": ours.violations,
        "failed_seeds": sorted(outcome.seed for outcome in ours.failures),
        "stock_seeds": stock.seeds,
        "stock_violations": stock.violations,
        "acked": counts["acknowledged"],
        "duplicates": counts["duplicates"],
        "refused": counts["refused"],
        "unknown": counts["unknown"],
        "leaders": counts["terms"],
        "steps": counts["steps"],
        "coverage": coverage.coverage_table(ours.met) if ours.seeds else {},
        "not_met": missing,
        "trace": f"{(ours if ours.seeds else stock).trace:032x}",
    }


def _print_totals(console: Console, ours: Totals, stock: Totals) -> None:
    table = Table(title="deterministic simulation")
    for column in ("", "seeds", "violations", "acknowledged", "leaders", "steps"):
        table.add_column(column, justify="left" if not column else "right")
    for title, totals in (("our nodes", ours), ("stock PySyncObj 0.3.17", stock)):
        if totals.seeds:
            figures = (totals.seeds, totals.violations, *(totals.counts[name] for name in _FIGURES))
            table.add_row(title, *(f"{figure:,}" for figure in figures))
    console.print(table)


_FIGURES = ("acknowledged", "terms", "steps")


def _print_coverage(console: Console, ours: Totals, missing: list[str]) -> None:
    table = Table(title="what was met, and how often", show_lines=True)
    table.add_column("")
    table.add_column("")
    for area, names in coverage.coverage_table(ours.met).items():
        table.add_row(area, ", ".join(f"{name} {count:,}" for name, count in names.items()))
    console.print(table)
    if missing:
        console.print(f"never met in {ours.seeds:,} seeds: {'; '.join(missing)}", markup=False)
