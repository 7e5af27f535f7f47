"""The counts and findings of a run, for the progress line, the table and the machine-readable result."""

import statistics
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from tests.powerloss.violation import Violation

_P99: Final = 0.99
ALWAYS_MISSED_MIN: Final = 5
"""Number of times that a moment has to be waited for in vain before it counts as one that never comes."""
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
            "moments_never_reached": self.never_reached(),
            "methods": dict(self.methods),
            "heal_s": self.heal_times(),
            "slowest_heal": self.slowest_heal,
            "seconds_per_cycle": round((time.monotonic() - self.started_s) / max(self.cycles, 1), 2),
            **more,
        }

    def never_reached(self) -> list[str]:
        """Return the moments that were waited for at least ALWAYS_MISSED_MIN times, and whose event never came: the
        power was cut at another moment, and the run proves nothing about this one.
        """
        return sorted(
            moment
            for moment, missed in self.missed.items()
            if missed >= max(ALWAYS_MISSED_MIN, self.moments[moment])  # a cycle that is broken off counts no moment
        )

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

    def state(self) -> str:
        """Return the line of progress."""
        return f"cycle {self.cycles}, {self.acknowledged:,} acknowledged"

    def rows(self) -> Iterator[tuple[str, int]]:
        """Yield the rows of the table: a count with its name."""
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
                yield prefix + name, count
        yield "segments removed from the front of a log", self.removals
        yield "snapshots taken", self.snapshots
        yield "messages acknowledged", self.acknowledged
        yield "transactions begun", self.transactions
        yield "violations", len(self.violations)
