"""The counts and findings of a run, for the progress line, the table and the machine-readable result."""

import json
import statistics
import time
from collections import Counter
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from tests.powerloss.violation import Violation

_LINE_EVERY_S: Final = 10.0
_P99: Final = 0.99
_LOST_KINDS: Final = ("lost", "damage", "term")
_PHANTOM_KINDS: Final = ("phantom", "replicas")


class Tally:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.cycles = 0
        self.losses: Counter[str] = Counter()  # scope of a power loss -> how often
        self.nodes_without_power: Counter[str] = Counter()  # file system -> how often
        self.moments: Counter[str] = Counter()
        self.missed: Counter[str] = Counter()  # moments whose event did not come in time
        self.methods: Counter[str] = Counter()
        self.tears: Counter[str] = Counter()
        self.flips: Counter[str] = Counter()
        self.recoveries: Counter[str] = Counter()
        self.removals = 0  # how often nodes removed segments from the front of their log
        self.snapshots = 0  # how often nodes started with one
        self.heals: Counter[str] = Counter()
        self.acknowledged = 0
        self.messages_read = 0
        self.transactions = 0
        self.heal_s: list[float] = []
        self.slowest_heal = ""
        self.violations: list[Violation] = []
        self.started_s = time.monotonic()

    def result(self, **more: Any) -> dict[str, Any]:
        kinds = Counter(violation.kind for violation in self.violations)
        return {
            "seed": self.seed,
            "cycles": self.cycles,
            "power_losses": dict(self.losses),
            "nodes_without_power": dict(self.nodes_without_power),
            "acked": self.acknowledged,
            "transactions": self.transactions,
            "lost": sum(kinds[kind] for kind in _LOST_KINDS),
            "phantom": sum(kinds[kind] for kind in _PHANTOM_KINDS),
            "other_violations": len(self.violations) - sum(kinds[kind] for kind in _LOST_KINDS + _PHANTOM_KINDS),
            "torn_tails": dict(self.tears),
            "bit_flips_detected": dict(self.flips),
            "healed_by": dict(self.heals),
            "recovery_cases": dict(self.recoveries),
            "segments_removed": self.removals,
            "snapshots_taken": self.snapshots,
            "moments": dict(self.moments),
            "moments_missed": dict(self.missed),
            "methods": dict(self.methods),
            "heal_s": self.heal_times(),
            "slowest_heal": self.slowest_heal,
            "seconds_per_cycle": round((time.monotonic() - self.started_s) / max(self.cycles, 1), 2),
            **more,
        }

    def note_heal(self, seconds: float, after: str) -> None:
        if seconds > max(self.heal_s, default=0):
            self.slowest_heal = f"cycle {self.cycles + 1}, {after}"
        self.heal_s.append(seconds)

    def heal_times(self) -> dict[str, float]:
        """Return quantiles of the seconds from the power's return to the next acknowledged write."""
        ordered = sorted(self.heal_s)
        if not ordered:
            return {}
        return {
            "p50": round(statistics.median(ordered), 2),
            "p99": round(ordered[int(len(ordered) * _P99)], 2),
            "max": round(ordered[-1], 2),
        }

    def table(self) -> Table:
        table = Table(title="KeelMQ without power", title_justify="left")
        table.add_column("what")
        table.add_column("how often", justify="right")
        groups: tuple[tuple[str, Counter[str]], ...] = (
            ("power lost by nodes: ", self.losses),
            ("on ", self.nodes_without_power),
            ("at: ", self.moments),
            ("event did not come in time: ", self.missed),
            ("how: ", self.methods),
            ("tail torn: ", self.tears),
            ("bit flipped and noticed by ", self.flips),
            ("healed by ", self.heals),
            ("recovery said ", self.recoveries),
        )
        for prefix, counter in groups:
            for name, count in sorted(counter.items(), key=lambda item: -item[1]):
                table.add_row(prefix + name, f"{count:,}")
            table.add_section()
        table.add_row("segments removed from the front of a log", f"{self.removals:,}")
        table.add_row("snapshots taken", f"{self.snapshots:,}")
        table.add_row("messages acknowledged", f"{self.acknowledged:,}")
        table.add_row("transactions begun", f"{self.transactions:,}")
        table.add_row("violations", f"{len(self.violations):,}", style="red" if self.violations else "green")
        return table

    def result_line(self, **more: Any) -> str:
        return "RESULT " + json.dumps(self.result(**more))


class ProgressLine:
    """Shows a bar on a terminal; elsewhere it prints a line every _LINE_EVERY_S."""

    def __init__(self, console: Console, tally: Tally, cycles: int) -> None:
        self._console = console
        self._tally = tally
        self._cycles = cycles
        self._last_line_s = time.monotonic()

    def show(self, doing: str) -> None:
        tally = self._tally
        text = f"cycle {tally.cycles}/{self._cycles}, {tally.acknowledged:,} acknowledged: {doing}"
        if self._console.is_terminal:
            width = 30 * tally.cycles // max(self._cycles, 1)
            bar = f"[{'█' * width}{'·' * (30 - width)}] {text}"
            self._console.print(
                f"\r{bar[: self._console.width - 1]:<{self._console.width - 1}}", end="", markup=False, highlight=False
            )
        elif time.monotonic() - self._last_line_s > _LINE_EVERY_S:
            self._last_line_s = time.monotonic()
            self._console.print(text, highlight=False, soft_wrap=True)

    def end(self) -> None:
        if self._console.is_terminal:
            self._console.print()
