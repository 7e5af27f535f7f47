"""Runs the demo itself, shortly: real nodes, real services, real kills."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.reporting.result import result_of
from tests.patience import RUN_PATIENCE_S

ROOT = Path(__file__).parents[2]
ORDERS = 250
RESULT_KEYS = [
    "orders",
    "debited",
    "points",
    "mismatch",
    "lost",
    "phantom",
    "leader_kills",
    "producer_kills",
    "checks_answered",
    "duplicates_applied",
]


def processes_naming(text: str) -> list[str]:
    lines = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes()
            except OSError:  # it ended meanwhile
                continue
            if os.fsencode(text) in line:
                lines.append(line.decode(errors="replace"))
    return lines


@pytest.mark.process
def test_the_shop_survives_its_kills_and_leaves_nothing_behind(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "examples.shop.demo", "--orders", str(ORDERS)]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=RUN_PATIENCE_S)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    figures = result_of(ended.stdout)
    assert list(figures) == RESULT_KEYS
    assert figures["orders"] == ORDERS
    assert 0 < figures["debited"] == figures["points"] < ORDERS * 100
    assert [figures[key] for key in ("mismatch", "lost", "phantom", "duplicates_applied")] == [0, 0, 0, 0]
    assert (figures["leader_kills"], figures["producer_kills"]) == (2, 2)
    assert figures["checks_answered"] >= 2
    assert list(tmp_path.iterdir()) == []
    assert processes_naming(str(tmp_path)) == []
