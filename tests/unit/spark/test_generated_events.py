"""The events that the benchmark of the lineage tables generates are a log as brokers tell it."""

from pathlib import Path

import pytest

from deploy.reporting.report import Report
from tests.bench.figures import Figures
from tests.bench.lineage_tables import Generator, fall_behind, grow, look_up
from tests.unit.spark.folded import Folded


def test_entries_are_the_same_in_every_run_and_make_whole_stories() -> None:
    whole = Generator().entries(1, 401)
    assert Generator().entries(133, 134).to_pylist() == [row for row in whole.to_pylist() if row["raft_index"] == 133]
    rows = whole.to_pylist()
    assert len({row["event_id"] for row in rows}) == len(rows)
    for queue in range(8):
        offsets = [row["offset"] for row in rows if row["type"] == "PUBLISH" and row["queue"] == queue]
        assert offsets == list(range(len(offsets)))
    folded = Folded(whole)
    assert {folded.nodes[node]["state"] for node in folded.nodes if node.startswith("message:")} == {"published"}
    ends = {(row["queue"], row["group"]): row["offset_end"] for row in rows if row["type"] == "ACK"}
    assert len(folded.of_kind("CONSUMED_BY")) == sum(ends.values()) > 1_000


def test_tables_grow_from_run_to_run_and_are_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = Report()
    figures = Figures(report)
    for _ in range(2):
        grow(tmp_path, 400, 200, report, figures)
    look_up(tmp_path, 3, figures)
    fall_behind(tmp_path, 2, figures)
    figures.conclude()
    assert '"bytes"' in capsys.readouterr().out.splitlines()[-1]
