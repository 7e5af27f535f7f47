"""The figures of an epoch, their sum over a run for the RESULT line, and a table of it for people."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from rich.text import Text

from deploy.reporting.report import Report
from tests.chaos.checkers.group_offsets import GroupOffsets
from tests.chaos.ledger import Book, Outcome
from tests.chaos.observer import Observer
from tests.chaos.progress import GroupProgress
from tests.chaos.schedule import Heal, Scheduler
from tests.chaos.violations import Kind, Violations

SLOWEST_SHOWN: Final = 5
VIOLATION: Final = "VIOLATION "


def quantile(values: Sequence[float], share: float) -> float | None:
    """Return the element at the position `share` of the sorted values, rounded to 0.1; None without values."""
    if not values:
        return None
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 1)


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one epoch. Counts are messages unless the name says otherwise."""

    acked: int
    half_messages: int
    unknown: int
    refused: int
    consumed: int
    redelivered: int
    taken_back: int
    dead_letters: int
    expired: int
    handler_calls: int
    """Number of handler calls of the recorded group; `commits` counts its acknowledged offsets."""
    commits: int
    transactions: dict[str, int]
    nemeses: dict[str, int]
    heals: list[Heal]
    longest_silence_s: float
    leaders: int
    load_s: float
    judge_s: float
    disk_bytes: int

    @classmethod
    def of(
        cls,
        scheduler: Scheduler,
        book: Book,
        observer: Observer,
        progress: GroupProgress,
        transactions: dict[str, str],
        *,
        dead_letters: int,
        expired: int,
        recorded: GroupOffsets,
        load_s: float,
        judge_s: float,
        disk_bytes: int,
    ) -> "Figures":
        return cls(
            acked=book.total(Outcome.ACKED),
            half_messages=sum(each.counts[Outcome.ACKED] for each in book.workers if each.transactional),
            unknown=book.total(Outcome.UNKNOWN),
            refused=book.total(Outcome.FAILED),
            consumed=progress.processed,
            redelivered=progress.redelivered,
            taken_back=book.total(Outcome.TAKEN_BACK),
            dead_letters=dead_letters,
            expired=expired,
            handler_calls=recorded.calls,
            commits=recorded.commits,
            transactions=Counter(transactions.values()),
            nemeses=scheduler.fired,
            heals=scheduler.heals,
            longest_silence_s=book.longest_silence_s,
            leaders=len(observer.leaders),
            load_s=load_s,
            judge_s=judge_s,
            disk_bytes=disk_bytes,
        )


def result_of(epochs: Sequence[Figures], violations: Violations, memory_bytes: int) -> dict[str, Any]:
    """Return the content of the RESULT line for all epochs. Times are milliseconds unless the name says otherwise.

    `acked` includes `half_messages`, of which those of committed transactions are delivered. `memory_mib` is the peak
    memory of this program, `disk_mib` the data that the largest epoch left on the disks of all its nodes.
    """
    heals = sorted(heal for epoch in epochs for heal in epoch.heals)
    heal_ms = [heal.ms for heal in heals]
    load_s = sum(epoch.load_s for epoch in epochs)
    acked = sum(epoch.acked for epoch in epochs)
    return {
        "epochs": len(epochs),
        "acked": acked,
        "acked_per_s": round(acked / load_s) if load_s else 0,
        "half_messages": sum(epoch.half_messages for epoch in epochs),
        "unknown": sum(epoch.unknown for epoch in epochs),
        "refused": sum(epoch.refused for epoch in epochs),
        "lost": violations.counts[Kind.LOST],
        "phantom": violations.counts[Kind.PHANTOM],
        "duplicated": violations.counts[Kind.DUPLICATED],
        "violations": {kind.value: count for kind, count in sorted(violations.counts.items())},
        "consumed": sum(epoch.consumed for epoch in epochs),
        "redelivered": sum(epoch.redelivered for epoch in epochs),
        "taken_back": sum(epoch.taken_back for epoch in epochs),
        "dead_letters": sum(epoch.dead_letters for epoch in epochs),
        "expired": sum(epoch.expired for epoch in epochs),
        "handler_calls": sum(epoch.handler_calls for epoch in epochs),
        "commits": sum(epoch.commits for epoch in epochs),
        "transactions": _summed(epoch.transactions for epoch in epochs),
        "rounds": len(heals),
        "nemeses": _summed(epoch.nemeses for epoch in epochs),
        "heal_ms": {
            "p50": quantile(heal_ms, 0.5),
            "p99": quantile(heal_ms, 0.99),
            "max": max(heal_ms, default=None),
        },
        "slowest_heals_ms": [[heal.faults, heal.ms] for heal in reversed(heals[-SLOWEST_SHOWN:])],
        "longest_silence_ms": round(max((epoch.longest_silence_s for epoch in epochs), default=0) * 1000, 1),
        "leaders": sum(epoch.leaders for epoch in epochs),
        "load_s": round(load_s),
        "judge_s": round(sum(epoch.judge_s for epoch in epochs)),
        "disk_mib": max((epoch.disk_bytes for epoch in epochs), default=0) >> 20,
        "memory_mib": memory_bytes >> 20,
    }


def show(report: Report, result: dict[str, Any], violations: Violations) -> None:
    """Print a row per figure, then every violation that was kept."""
    rows = []
    for name, value in result.items():
        text = ", ".join(f"{key} {each}" for key, each in value.items()) if isinstance(value, dict) else str(value)
        bad = name in ("lost", "phantom", "duplicated", "violations") and value
        rows.append((name, Text(text or "-", style="bold red" if bad else "")))
    report.table("chaos", ("figure", "value"), rows)
    for violation in violations.kept:
        report.text(f"{VIOLATION}{violation.kind}: {violation.detail}", "problem")


def _summed(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return dict(sorted(total.items()))
