"""Rules of the comparison: the slices that count, the ones repeated, and the end of brokers that fail."""

import io
from collections.abc import Callable
from pathlib import Path

from deploy.reporting.report import Report
from tests.bench.peers.client import LoadError, LoadResult, Missing
from tests.bench.peers.comparison import Comparison
from tests.bench.peers.fetch import Cache, FetchError
from tests.bench.peers.peer import Cluster, Slice, Variant
from tests.bench.peers.processes import Guard
from tests.bench.peers.rounds import Limits, Rounds
from tests.bench.peers.rows import Row
from tests.bench.peers.usage import MachineTime, Usage

ONE, TRANSACTIONS = Row("one", 1024, 1), Row("transactions", 1024, 64)
LIMITS = Limits(2, 1.0, 0.0, 15.0, 2, 0.0, 0.0)


def measured(
    messages: int = 1_000,
    *,
    strangers_percent: float = 0.0,
    errors: int = 0,
    at_s: float = 1.0,
    servers_s: float = 0.75,
) -> Slice:
    used = MachineTime(1.0 + 2.0 * strangers_percent / 100, 0.0, 2.0)
    usage = Usage(at_s, servers_s, 0.25, 0.0, used)
    return Slice(LoadResult(messages, 1.0, messages, errors, "lost" if errors else "", {100: messages}), usage)


class ScriptedCluster(Cluster):
    """A broker that answers each load with the next of `answers`; what was done with it is in `history`."""

    variants = (Variant("scripted", "Scripted"),)
    spent_after = "transactions"

    def __init__(self, directory: Path, guard: Guard, answers: list[Slice | Exception]) -> None:
        super().__init__(directory, guard, Cache(directory, lambda line: None))
        self.answers = answers
        self.history: list[str] = []
        self.slices_s: list[float] = []
        self.fetch_error: str | None = None

    def fetch(self) -> None:
        if self.fetch_error:
            raise FetchError(self.fetch_error)

    def start(self) -> None:
        self.history.append("start")

    def pause(self) -> None:
        self.history.append("pause")

    def resume(self, flavour: str) -> None:
        self.history.append("resume")

    def end(self) -> None:
        self.history.append("end")

    def measure(self, row: Row, flavour: str, warm_up_s: float, seconds: float) -> Slice:
        if row.kind in ("saturating", "senders"):  # it is warmed up
            return measured()
        self.history.append(row.kind)
        self.slices_s.append(seconds)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def run(
    tmp_path: Path,
    rows: list[Row],
    answers: list[Slice | Exception],
    limits: Limits = LIMITS,
    change: Callable[[ScriptedCluster], None] = lambda cluster: None,
) -> tuple[Comparison, ScriptedCluster]:
    comparison = Comparison(rows, ScriptedCluster.variants)
    with Guard() as guard:
        cluster = ScriptedCluster(tmp_path / "scripted", guard, answers)
        change(cluster)
        Rounds([cluster], comparison, limits, Report(io.StringIO())).run()
    return comparison, cluster


def test_a_slice_that_strangers_disturbed_is_repeated(tmp_path: Path) -> None:
    answers: list[Slice | Exception] = [measured(strangers_percent=16), measured(900), measured(1_100)]
    comparison, cluster = run(tmp_path, [ONE], answers)
    cell = comparison.cells[ONE, "scripted"]
    assert [turn.per_second for turn in cell.turns] == [900, 1_100]
    assert (cell.dropped, cell.missing) == (1, "")
    assert cluster.history == ["start", "pause", "resume", "one", "one", "pause", "resume", "one", "pause"]


def test_a_row_that_is_always_disturbed_is_missing_and_says_so(tmp_path: Path) -> None:
    comparison, _ = run(tmp_path, [ONE], [measured(strangers_percent=40) for _ in range(6)])
    cell = comparison.cells[ONE, "scripted"]
    assert (cell.turns, cell.dropped, cell.reason) == ([], 6, "strangers used 40 % of the machine")


def test_a_round_that_was_disturbed_does_not_spoil_the_next_one(tmp_path: Path) -> None:
    answers: list[Slice | Exception] = [*(measured(strangers_percent=40) for _ in range(3)), measured(700)]
    comparison, _ = run(tmp_path, [ONE], answers)
    assert [turn.per_second for turn in comparison.cells[ONE, "scripted"].turns] == [700]


def test_a_slice_in_which_a_send_failed_does_not_count(tmp_path: Path) -> None:
    comparison, _ = run(tmp_path, [ONE], [measured(errors=2) for _ in range(6)])
    assert comparison.cells[ONE, "scripted"].reason == "2 sends failed, the last one with lost"


def test_a_slice_in_which_nothing_was_acknowledged_is_repeated_in_twice_the_time(tmp_path: Path) -> None:
    answers: list[Slice | Exception] = [measured(0), measured(0), measured(700), measured(0), measured(900)]
    comparison, cluster = run(tmp_path, [ONE], answers)
    cell = comparison.cells[ONE, "scripted"]
    assert [turn.per_second for turn in cell.turns] == [700, 900]
    assert cluster.slices_s == [1.0, 2.0, 4.0, 1.0, 2.0]
    assert cell.disturbed == "nothing was acknowledged within 1 s"


def test_a_slice_whose_processor_time_was_not_seen_is_repeated_in_twice_the_time(tmp_path: Path) -> None:
    """The driver was held up: it read the beginning and the end of the slice at once, or nearly so."""
    answers: list[Slice | Exception] = [measured(servers_s=0.0), measured(at_s=0.4), measured(700), measured(900)]
    comparison, cluster = run(tmp_path, [ONE], answers)
    cell = comparison.cells[ONE, "scripted"]
    assert [turn.per_second for turn in cell.turns] == [700, 900]
    assert cluster.slices_s == [1.0, 2.0, 4.0, 1.0]
    assert cell.disturbed == "the processor time of only 0.4 s of 1 s was seen"


def test_slices_that_are_too_short_are_no_retries_and_end_at_a_minute(tmp_path: Path) -> None:
    answers: list[Slice | Exception] = [measured(0) for _ in range(14)]
    comparison, cluster = run(tmp_path, [ONE], answers)
    cell = comparison.cells[ONE, "scripted"]
    assert (cell.turns, cell.dropped) == ([], 14)
    assert cluster.slices_s == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0] * 2
    assert cell.reason == "nothing was acknowledged within 60 s"


def test_a_load_that_a_broker_does_not_have_is_asked_for_once(tmp_path: Path) -> None:
    comparison, cluster = run(tmp_path, [ONE], [Missing("has none")])
    assert comparison.cells[ONE, "scripted"].missing == "has none"
    assert cluster.history.count("one") == 1


def test_a_broker_that_failed_starts_anew(tmp_path: Path) -> None:
    other = Row("one", 100, 1)
    comparison, cluster = run(tmp_path, [ONE, other], [LoadError("no answer"), measured(), measured(), measured()])
    assert [turn.round for turn in comparison.cells[ONE, "scripted"].turns] == [2]
    assert len(comparison.cells[other, "scripted"].turns) == 2
    assert cluster.history[:6] == ["start", "pause", "resume", "one", "end", "start"]


def test_a_broker_is_replaced_after_the_load_that_spends_it(tmp_path: Path) -> None:
    _, cluster = run(tmp_path, [TRANSACTIONS, ONE], [measured() for _ in range(4)])
    kinds = [word for word in cluster.history if word not in ("pause", "resume", "end")]
    assert kinds == ["start", "transactions", "start", "one", "transactions", "start", "one"]


def test_a_broker_that_cannot_be_had_is_missing_in_all_rows(tmp_path: Path) -> None:
    def refuse(cluster: ScriptedCluster) -> None:
        cluster.fetch_error = "go is not installed"

    comparison, cluster = run(tmp_path, [ONE, TRANSACTIONS], [], change=refuse)
    assert {cell.missing for cell in comparison.cells.values()} == {"go is not installed"}
    assert cluster.history == ["end"]


def test_no_turn_begins_after_the_limit(tmp_path: Path) -> None:
    comparison, _ = run(tmp_path, [ONE], [], LIMITS._replace(limit_s=1e-9))
    assert comparison.cells[ONE, "scripted"].turns == []
