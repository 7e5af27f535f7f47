"""Sums over many seeds: totals that take the same room for any number of seeds, tables, and one RESULT line."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from deploy.reporting.report import Report

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
    """Sum over all runs, the same in whatever order they ran."""

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


def conclude(report: Report, ours: Totals, stock: Totals, first_seed: int, *, judged: bool = True) -> int:
    """Print the tables and the result; return the exit status, which coverage changes only if `judged`."""
    print_totals(report, ours, stock)
    missing = coverage.not_met(ours.met) if ours.seeds else []
    if ours.seeds:
        _print_coverage(report, ours, missing)
    blind = bool(stock.seeds and not stock.violations)
    if blind:
        report.text("the stock handlers were not found guilty: this simulation proves nothing", "problem")
    report.result(_result(ours, stock, first_seed, missing))
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


def print_totals(report: Report, ours: Totals, stock: Totals) -> None:
    """Print the table of all runs, a row for our nodes and a row for the stock library."""
    both = (("our nodes", ours), ("stock PySyncObj 0.3.17", stock))
    rows: list[tuple[str | int, ...]] = [
        (title, totals.seeds, totals.violations, *(totals.counts[name] for name in _FIGURES))
        for title, totals in both
        if totals.seeds
    ]
    headings = ("nodes", "seeds", "violations", "acknowledged", "leaders", "steps")
    report.table("deterministic simulation", headings, rows)


_FIGURES = ("acknowledged", "terms", "steps")


def _print_coverage(report: Report, ours: Totals, missing: list[str]) -> None:
    rows = [
        (area, ", ".join(f"{name} {count:,}" for name, count in names.items()))
        for area, names in coverage.coverage_table(ours.met).items()
    ]
    report.table("coverage", ("area", "how often each part was met"), rows)
    if missing:
        report.text(f"never met in {ours.seeds:,} seeds: {'; '.join(missing)}")
