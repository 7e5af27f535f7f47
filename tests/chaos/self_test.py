"""Runs `--broken all`: every defect of tests/chaos/broken.py has to be found, each by a run of its own."""

import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from tests.chaos.broken import DEFECTS
from tests.chaos.node import REPOSITORY
from tests.chaos.report import VIOLATION
from tests.chaos.verdict import RESULT, as_line

ALL = "all"
DETAILS_SHOWN = 3


def verdict_on_defect(result: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the verdict of a run with a defect; `caught_after_s` is the time of load and verdicts until the defect was
    found.
    """
    guilty = bool(result["violations"])
    after_s = result["load_s"] + result["judge_s"]
    return {"broken": name, "guilty": guilty, "caught_by": list(result["violations"]), "caught_after_s": after_s}


def find_all_guilty(arguments: Sequence[str]) -> int:
    """Run each defect once with these other arguments; return 0 when all were found."""
    found: list[dict[str, Any]] = []
    for name in DEFECTS:
        print(f"chaos: broken on purpose: {name}", flush=True)
        found.append(_run(name, arguments))
        print(as_line(found[-1]), flush=True)
    table = Table(box=None, padding=(0, 2), title="chaos against broken nodes", title_justify="left")
    for heading in ("defect", "", "caught by", "after"):
        table.add_column(heading)
    for each in found:
        by = ", ".join(each["caught_by"]) if each["guilty"] else "NOT CAUGHT"
        table.add_row(each["broken"], DEFECTS[each["broken"]].what, by, f"{each['caught_after_s']} s")
    Console().print(table)
    innocent = [each["broken"] for each in found if not each["guilty"]]
    print(as_line({"defects": len(found), "not_caught": innocent}), flush=True)
    return 1 if innocent else 0


def _run(name: str, arguments: Sequence[str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.chaos", *arguments, "--broken", name]
    done = subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith(RESULT)]
    for line in [line for line in done.stdout.splitlines() if line.startswith(VIOLATION)][:DETAILS_SHOWN]:
        print(line, flush=True)
    if not lines:
        print(done.stdout, file=sys.stderr)
        raise RuntimeError(f"the run with {name} ended with {done.returncode} and without a result")
    result: dict[str, Any] = msgspec.json.decode(lines[-1].removeprefix(RESULT))
    return {"seed": result["seed"]} | verdict_on_defect(result, name)
