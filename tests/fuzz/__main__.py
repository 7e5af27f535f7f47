"""Run `make fuzz MINUTES=m`: all tests with drawn examples, repeatedly with fresh seeds, until the time is up. The fuzz
tests have many more examples than in `make test`.

The last line is `RESULT {json}`. The exit status is 1 as soon as a test fails; Hypothesis has printed the smallest
input that fails and keeps it in .hypothesis, so that the next run begins with it.
"""

import argparse
import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from deploy.reporting.report import Report

ROOT: Final = Path(__file__).parents[2]
FOLDERS: Final = ("tests/fuzz", "tests/unit")
SCALE: Final = 10
_SEED_BITS: Final = 32
_PASSED: Final = re.compile(rb"(\d+) passed")


def main(arguments: list[str]) -> int:
    settings = _parse(arguments)
    report = Report()
    started_s = time.monotonic()
    result: dict[str, Any] = {"rounds": 0, "tests": 0, "failed": 0, "scale": settings.scale, "seeds": []}
    limit_s = settings.minutes * 60
    with report.live(
        lambda: f"{result['rounds']} rounds ended, {result['tests']} tests passed",
        share=None if settings.seed is not None else lambda: (time.monotonic() - started_s) / limit_s,
    ):
        while time.monotonic() - started_s < limit_s:
            seed = random.SystemRandom().getrandbits(_SEED_BITS) if settings.seed is None else settings.seed
            report.step(f"round {result['rounds'] + 1}, SEED={seed}")
            status, passed = _round(seed, settings, report)
            result["tests"] += passed
            result["seeds"].append(seed)
            if status != 0:
                result["failed"] = 1
                report.text(f"repeat with: make fuzz SEED={seed} FUZZ_ARGS='--scale {settings.scale:g}'", "problem")
            result["rounds"] += 1
            if status != 0 or settings.seed is not None:
                break
    result["minutes"] = round((time.monotonic() - started_s) / 60, 1)
    rows = [(name, str(result[name])) for name in ("rounds", "tests", "failed", "scale", "minutes")]
    report.table("fuzz", ("figure", "value"), rows)
    report.result(result)
    return int(result["failed"])


def _round(seed: int, settings: argparse.Namespace, report: Report) -> tuple[int, int]:
    """Return the exit status of pytest and how many tests passed; the output is shown when one did not."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        *FOLDERS,
        "-m",
        "hypothesis",
        "-x",
        "--show-capture=no",
        f"--hypothesis-seed={seed}",
    ]
    environment = {**os.environ, "FUZZ_SCALE": str(settings.scale)}
    ended = subprocess.run([*command, *settings.of_pytest], cwd=ROOT, env=environment, capture_output=True, check=False)
    if ended.returncode != 0:
        report.text((ended.stdout + ended.stderr).decode(errors="replace").rstrip())
    found = _PASSED.search(ended.stdout)
    return ended.returncode, int(found.group(1)) if found else 0


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz",
        description=__doc__,
        epilog="Further arguments, such as -k frames, are those of pytest.",
        allow_abbrev=False,
    )
    parser.add_argument("--minutes", type=float, default=10, help="minutes after which no round begins (default: 10)")
    parser.add_argument("--seed", type=int, help="seed of an earlier run, for one round")
    parser.add_argument("--scale", type=float, default=SCALE, help="multiple of the test run's examples")
    settings, further = parser.parse_known_args(arguments)
    settings.of_pytest = further
    return settings


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
