"""The measurements, by row and variant: turns, what is missing and why, and how KeelMQ compares."""

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from tests.bench.peers.histogram import distribution, merged, quantile_ms
from tests.bench.peers.keelmq_cluster import KEELMQ
from tests.bench.peers.peer import Slice, Variant
from tests.bench.peers.rows import Row
from tests.bench.peers.syncs import Syncs
from tests.bench.peers.usage import per_message_us

AHEAD_RATIO: Final = 1.0
MIB: Final = 1 << 20


class Turn(NamedTuple):
    """The figures of one slice of one round."""

    round: int
    per_second: float
    server_us: float
    """Processor time of the three nodes per message, in us; `client_us` is the load generator's."""
    client_us: float
    strangers_percent: float
    buckets: dict[int, int]

    @classmethod
    def of(cls, number: int, measured: Slice) -> "Turn":
        result, usage = measured
        # The client's clock and the samples of /proc begin and end some ms apart: each rate has its own duration.
        rate = result.messages / result.seconds
        messages = round(rate * usage.at_s)
        servers, client = per_message_us(usage.servers_s, messages), per_message_us(usage.client_s, messages)
        return cls(number, rate, servers, client, usage.strangers_percent, result.buckets)


class Cell:
    """One variant in one row: its turns, or why there are none."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self.missing = ""
        """Why there will be no turns."""
        self.disturbed = ""
        """Why the last slice that did not count was dropped; a later round may have better luck."""
        self.dropped = 0
        """Slices that did not count, since strangers used too much of the machine or sends failed."""

    @property
    def reason(self) -> str:
        """Why there are no turns."""
        return self.missing or self.disturbed or "not measured"

    @property
    def per_second(self) -> float:
        return self._median(lambda turn: turn.per_second)

    @property
    def server_us(self) -> float:
        return self._median(lambda turn: turn.server_us)

    @property
    def client_us(self) -> float:
        return self._median(lambda turn: turn.client_us)

    @property
    def strangers_percent(self) -> float:
        return max((turn.strangers_percent for turn in self.turns), default=math.nan)

    def latency_ms(self, share: float) -> float:
        """Return the median of the rounds' quantiles."""
        return self._median(lambda turn: quantile_ms(turn.buckets, share))

    def distribution(self) -> list[tuple[float, float]]:
        return distribution(merged(turn.buckets for turn in self.turns))

    def _median(self, of: Callable[[Turn], float]) -> float:
        return statistics.median(map(of, self.turns)) if self.turns else math.nan


class Comparison:
    def __init__(self, rows: Sequence[Row], variants: Sequence[Variant]) -> None:
        self.rows = list(rows)
        self.variants = list(variants)
        self.cells = {(row, variant.name): Cell() for row in rows for variant in variants}
        self.syncs: dict[str, Syncs | str] = {}
        """By variant: what was counted, or why nothing was."""

    def give_up(self, name: str, why: str, row: Row | None = None) -> None:
        """Note why the variant has no figures: in the row, or in all rows that have none yet."""
        for each in self.rows if row is None else [row]:
            cell = self.cells[each, name]
            if not cell.turns and not cell.missing:
                cell.missing = why

    def ratios(self, row: Row, name: str) -> list[float]:
        """Return KeelMQ's rate over that variant's, of each round in which both were measured."""
        ours = {turn.round: turn.per_second for turn in self.cells.get((row, KEELMQ), Cell()).turns}
        theirs = self.cells[row, name].turns
        return [ours[turn.round] / turn.per_second for turn in theirs if turn.round in ours and turn.per_second]

    def ratio(self, row: Row, name: str) -> float:
        """Return the median of the rounds' ratios; above 1, KeelMQ is ahead. NaN where one of both is missing."""
        ratios = self.ratios(row, name)
        return statistics.median(ratios) if ratios else math.nan

    def ahead(self, row: Row) -> list[str]:
        """Return the variants that are ahead of KeelMQ in the row, the fastest first."""
        others = [variant.name for variant in self.variants if variant.name != KEELMQ]
        found = [(self.ratio(row, name), name) for name in others if self.ratio(row, name) < AHEAD_RATIO]
        return [name for _, name in sorted(found)]

    def replicated(self, name: str) -> bool | None:
        """Tell whether an acknowledged message is synced on a majority; None where that was not counted."""
        counted = self.syncs.get(name)
        return counted.replicated if isinstance(counted, Syncs) else None

    def meaning(self, name: str) -> str:
        counted = self.syncs.get(name, "not counted")
        return counted.meaning if isinstance(counted, Syncs) else f"not counted: {counted}"

    def sorted_rows(self) -> list[Row]:
        """Return the rows, first those in which a peer with the same guarantee is ahead, then those with any ahead."""

        def rank(row: Row) -> int:
            ahead = self.ahead(row)
            if any(self.replicated(name) for name in ahead):
                return 0
            return 1 if ahead else 2

        return sorted(self.rows, key=rank)

    def table_rows(self) -> list[list[str]]:
        """Return one line for each row and variant, the fastest first."""
        lines = []
        for row in self.sorted_rows():
            named = [(self.cells[row, variant.name], variant) for variant in self.variants]
            named.sort(key=lambda each: -each[0].per_second if each[0].turns else 0.0)
            lines += [self._line(row, cell, variant) for cell, variant in named]
        return lines

    def _line(self, row: Row, cell: Cell, variant: Variant) -> list[str]:
        begin = [row.name, variant.title, self.meaning(variant.name)]
        if not cell.turns:
            return [*begin, f"missing: {cell.reason}", *[""] * 7]
        ratios = self.ratios(row, variant.name)
        ratio = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})" if ratios else ""
        return [
            *begin,
            f"{cell.per_second:,.0f}",
            f"{cell.per_second * row.bytes / MIB:,.1f}",
            f"{cell.latency_ms(0.5):.2f}",
            f"{cell.latency_ms(0.99):.2f}",
            f"{cell.server_us:,.0f}",
            f"{cell.client_us:,.0f}",
            "" if variant.name == KEELMQ else ratio,
            f"{len(cell.turns)} (-{cell.dropped}), {cell.strangers_percent:.0f} %",
        ]

    def as_json(self, *, distributions: bool) -> dict[str, Any]:
        """Return everything that was measured; `distributions` adds the points of the latencies' distributions."""
        variants = {}
        for variant in self.variants:
            counted = self.syncs.get(variant.name, "not counted")
            shares = [round(share, 2) for share in counted.per_message] if isinstance(counted, Syncs) else None
            meaning = self.meaning(variant.name)
            variants[variant.name] = {"title": variant.title, "ack": meaning, "syncs_per_message": shares}
        rows = {
            row.name: {
                variant.name: self._cell_json(row, variant.name, distributions=distributions)
                for variant in self.variants
            }
            for row in self.rows
        }
        ahead = {row.name: self.ahead(row) for row in self.rows if self.ahead(row)}
        return {"variants": variants, "peers_ahead": ahead, "rows": rows}

    def _cell_json(self, row: Row, name: str, *, distributions: bool) -> dict[str, Any]:
        cell = self.cells[row, name]
        if not cell.turns:
            return {"missing": cell.reason, "dropped": cell.dropped}
        made: dict[str, Any] = {
            "per_second": round(cell.per_second, 1),
            "rounds": [round(turn.per_second, 1) for turn in cell.turns],
            "p50_ms": round(cell.latency_ms(0.5), 3),
            "p99_ms": round(cell.latency_ms(0.99), 3),
            "server_us": round(cell.server_us, 1),
            "client_us": round(cell.client_us, 1),
            "strangers_percent": round(cell.strangers_percent, 1),
            "dropped": cell.dropped,
        }
        if name != KEELMQ and self.ratios(row, name):
            made["keelmq_ratio"] = round(self.ratio(row, name), 3)
        if distributions:
            made["latency_ms"] = [[round(ms, 4), round(share, 5)] for ms, share in cell.distribution()]
        return made


HEADINGS: Final = (
    "load, bytes",
    "peer",
    "an ack means",
    "msg/s",
    "MiB/s",
    "p50 ms",
    "p99 ms",
    "servers us/msg",
    "client us/msg",
    "KeelMQ over it",
    "rounds (dropped), strangers",
)
