"""The arithmetic of the comparison with peers: latencies, processor time, syncs, ratios and the order of rows."""

import asyncio
import json
import math
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.bench.peers.client import LoadResult
from tests.bench.peers.comparison import HEADINGS, Comparison, Turn
from tests.bench.peers.histogram import bucket_of, distribution, merged, quantile_ms
from tests.bench.peers.keelmq_load import Meter
from tests.bench.peers.peer import Slice, Variant
from tests.bench.peers.plots import draw
from tests.bench.peers.rows import Row, rows, saturating
from tests.bench.peers.syncs import Syncs, calls_of
from tests.bench.peers.usage import MachineTime, Usage, per_message_us

ONE, MANY = Row("one", 1024, 1), Row("senders", 1024, 64)
KEELMQ, FAST, SLOW = Variant("keelmq", "KeelMQ"), Variant("fast", "Fast & loose"), Variant("slow", "Slow")
STRACE = """% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 98.10    0.512345         512      1000         3 fdatasync
  1.90    0.009900          33       300           fsync
------ ----------- ----------- --------- --------- ----------------
100.00    0.522245         401      1300         3 total
"""


def buckets_of(latencies_ms: list[float]) -> dict[int, int]:
    return merged({bucket_of(latency): 1} for latency in latencies_ms)


def turn(number: int, per_second: float) -> Turn:
    return Turn(number, per_second, 40.0, 10.0, 3.0, buckets_of([1.0, 2.0, 4.0]))


def compared() -> Comparison:
    """Return two rounds: Fast is ahead of KeelMQ in the row ONE, and nobody in the row MANY."""
    comparison = Comparison([MANY, ONE], [KEELMQ, FAST, SLOW])
    for row, rates in ((ONE, (500.0, 1_000.0)), (MANY, (20_000.0, 10_000.0))):
        for number in (1, 2):
            comparison.cells[row, "keelmq"].turns.append(turn(number, rates[0]))
            comparison.cells[row, "fast"].turns.append(turn(number, rates[1]))
    comparison.give_up("slow", "not to be had")
    comparison.syncs = {"keelmq": Syncs([1.0, 1.0, 1.0]), "fast": Syncs([0.0, 0.0, 0.0])}
    return comparison


def test_a_quantile_is_right_to_one_percent() -> None:
    buckets = buckets_of([number / 10 for number in range(1, 1_001)])  # 0.1 to 100 ms
    assert quantile_ms(buckets, 0.5) == pytest.approx(50, rel=0.01)
    assert quantile_ms(buckets, 0.99) == pytest.approx(99, rel=0.01)
    assert math.isnan(quantile_ms({}, 0.5))


def test_a_distribution_rises_to_one() -> None:
    points = distribution(buckets_of([1.0, 1.0, 10.0, 100.0]))
    assert [share for _, share in points] == [0.5, 0.75, 1.0]
    assert [ms for ms, _ in points] == pytest.approx([1.0, 10.0, 100.0], rel=0.011)


def test_time_of_strangers_is_what_nobody_of_us_used() -> None:
    before = Usage(10.0, 5.0, 1.0, 0.5, MachineTime(100.0, 2.0, 400.0))
    after = Usage(14.0, 8.0, 2.0, 0.6, MachineTime(105.0, 2.4, 408.0))
    used = after.since(before)
    assert used.at_s == 4.0
    assert used.strangers_percent == pytest.approx(100 * (5.0 - 3.0 - 1.0 - 0.1 + 0.4) / 8.0)
    assert Usage(1.0, 2.0, 0.0, 0.0, MachineTime(1.5, 0.0, 2.0)).strangers_percent == 0.0  # ticks are rounded


def test_the_machine_s_time_counts_guests_once_and_waiting_for_disks_as_idle() -> None:
    time = MachineTime.parse("cpu  100 20 30 400 50 6 4 10 90 9")
    assert time.total_s - time.stolen_s - time.busy_s == pytest.approx(4.5)
    assert time.busy_s == pytest.approx(1.6)
    assert time.stolen_s == pytest.approx(0.1)


def test_processor_time_is_of_the_time_between_the_samples() -> None:
    usage = Usage(2.0, 0.8, 0.2, 0.0, MachineTime(1.0, 0.0, 4.0))
    measured = Slice(LoadResult(4_000, 4.0, 5_000, 0, "", {bucket_of(1.0): 4_000}), usage)
    figures = Turn.of(1, measured)
    assert figures.per_second == 1_000
    assert figures.server_us == pytest.approx(400)  # 0.8 s for the 2,000 messages of those 2 s
    assert figures.client_us == pytest.approx(100)
    assert per_message_us(1.0, 0) == 0.0


@pytest.mark.parametrize(("kind", "counted"), [("one", 0), ("end-to-end", 3)])
def test_messages_consumed_after_the_end_count_with_their_latencies(kind: str, counted: int) -> None:
    async def load() -> dict[str, Any]:
        meter = Meter({"kind": kind, "warm_up_s": 0.0, "seconds": 0.0})
        meter.add(meter.begin_s, 3)
        found: dict[str, Any] = json.loads(meter.result())
        return found

    found = asyncio.run(load())
    assert (found["messages"], sum(found["buckets"].values()), found["all_messages"]) == (counted, counted, 3)


def test_the_calls_in_a_summary_of_strace_are_added_up() -> None:
    assert calls_of(STRACE) == 1_300
    assert calls_of("") == 0


@pytest.mark.parametrize(
    ("shares", "meaning", "replicated"),
    [
        ([1.67, 1.66, 1.66], "fsync on all", True),
        ([1.0, 0.95, 0.0], "fsync on a majority", True),
        ([1.0, 0.4, 0.0], "fsync on one node", False),
        ([0.1, 0.0, 0.0], "page cache", False),
    ],
)
def test_what_an_acknowledgement_means_follows_from_the_syncs(
    shares: list[float], meaning: str, replicated: bool
) -> None:
    assert (Syncs(shares).meaning, Syncs(shares).replicated) == (meaning, replicated)


def test_rows_have_as_much_on_their_way_as_their_sizes_allow() -> None:
    made = rows(["one", "batches", "transactions"], [100, 16_384])
    assert [row.name for row in made] == [
        *("one 100", "one 16384", "batches 100", "batches 16384", "transactions-64 1024", "transactions-256 1024")
    ]
    assert [row.batch for row in made[2:4]] == [1_000, 16]
    assert (saturating(100), saturating(16_384)) == (4_096, 512)


def test_ratios_are_of_the_same_round() -> None:
    comparison = Comparison([ONE], [KEELMQ, FAST])
    comparison.cells[ONE, "keelmq"].turns += [turn(1, 100.0), turn(3, 900.0)]
    comparison.cells[ONE, "fast"].turns += [turn(1, 200.0), turn(2, 1.0), turn(3, 300.0)]
    assert comparison.ratios(ONE, "fast") == [0.5, 3.0]
    assert comparison.ahead(ONE) == []


def test_rows_in_which_a_peer_is_ahead_come_first_and_what_is_missing_is_told() -> None:
    comparison = compared()
    assert comparison.sorted_rows() == [ONE, MANY]
    lines = comparison.table_rows()
    assert [line[:2] for line in lines[:3]] == [
        ["one 1024", "Fast & loose"],
        ["one 1024", "KeelMQ"],
        ["one 1024", "Slow"],
    ]
    assert lines[2][3] == "missing: not to be had"
    assert {len(line) for line in lines} == {len(HEADINGS)}
    found = json.loads(json.dumps(comparison.as_json(distributions=True), allow_nan=False))
    assert found["peers_ahead"] == {"one 1024": ["fast"]}
    assert found["rows"]["one 1024"]["fast"]["keelmq_ratio"] == 0.5
    assert found["rows"]["one 1024"]["slow"] == {"missing": "not to be had", "dropped": 0}
    assert found["variants"]["fast"]["ack"] == "page cache"
    assert found["variants"]["slow"]["ack"] == "not counted: not counted"


def test_plots_are_drawn_of_what_was_measured(tmp_path: Path) -> None:
    files = draw(compared(), tmp_path)
    assert [file.name for file in files] == ["throughput-1024.svg", "latency-senders-1024.svg", "latency-one-1024.svg"]
    for file in files:
        root = ElementTree.parse(file).getroot()
        lines = root.findall("{http://www.w3.org/2000/svg}polyline")
        assert len(lines) == 2  # the third has no figures
        assert "nan" not in file.read_text()


def test_plots_without_any_figure_are_not_drawn(tmp_path: Path) -> None:
    assert draw(Comparison([ONE], [KEELMQ]), tmp_path) == []
