"""Runs `--broken all`: every defect of tests/chaos/broken.py has to be found, each by a run of its own."""

import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from deploy.reporting.report import Report
from deploy.reporting.result import result_of
from tests.chaos.broken import DEFECTS
from tests.chaos.node import REPOSITORY
from tests.chaos.report import VIOLATION

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
    report = Report()
    found: list[dict[str, Any]] = []
    with report.live(lambda: f"{len(found)} of {len(DEFECTS)} defects", share=lambda: len(found) / len(DEFECTS)):
        for name in DEFECTS:
            report.step(f"broken on purpose: {name}")
            found.append(_run(name, arguments, report))
            report.event(_verdict_text(found[-1]))
    rows = [
        (each["broken"], DEFECTS[each["broken"]].what, _caught_by(each), f"{each['caught_after_s']} s")
        for each in found
    ]
    report.table("chaos against broken nodes", ("defect", "what is broken", "caught by", "after"), rows)
    innocent = [each["broken"] for each in found if not each["guilty"]]
    report.result({"defects": len(found), "not_caught": innocent, "runs": found})
    return 1 if innocent else 0


def _caught_by(verdict: dict[str, Any]) -> str:
    return ", ".join(verdict["caught_by"]) if verdict["guilty"] else "NOT CAUGHT"


def _verdict_text(verdict: dict[str, Any]) -> str:
    return f"{verdict['broken']}: {_caught_by(verdict)} after {verdict['caught_after_s']} s, seed {verdict['seed']}"


def _run(name: str, arguments: Sequence[str], report: Report) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.chaos", *arguments, "--broken", name]
    done = subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    for line in [line for line in done.stdout.splitlines() if line.startswith(VIOLATION)][:DETAILS_SHOWN]:
        report.text(line, "problem")
    try:
        result = result_of(done.stdout)
    except ValueError as error:
        raise RuntimeError(f"the run with {name} ended with {done.returncode}: {error}") from None
    return {"seed": result["seed"]} | verdict_on_defect(result, name)
