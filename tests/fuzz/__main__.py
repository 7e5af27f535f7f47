"""Run `make fuzz MINUTES=m`: the fuzz tests repeatedly with fresh seeds and many more examples, until the time is up.

The last line is `RESULT {json}`. The exit status is 1 as soon as a test fails; Hypothesis has printed the smallest
input that fails and keeps it in .hypothesis, so that the next run of the test begins with it.
"""

import argparse
import json
import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from rich.console import Console

ROOT: Final = Path(__file__).parents[2]
SCALE: Final = 10
_SEED_BITS: Final = 32
_PASSED: Final = re.compile(rb"(\d+) passed")


def main(arguments: list[str]) -> int:
    settings = _parse(arguments)
    console = Console()
    started_s = time.monotonic()
    result: dict[str, Any] = {"rounds": 0, "tests": 0, "failed": 0, "scale": settings.scale, "seeds": []}
    while time.monotonic() - started_s < settings.minutes * 60:
        seed = random.SystemRandom().getrandbits(_SEED_BITS) if settings.seed is None else settings.seed
        minutes = (time.monotonic() - started_s) / 60
        console.print(
            f"{minutes:5.1f}/{settings.minutes:g} min, round {result['rounds'] + 1}, SEED={seed}", highlight=False
        )
        status, passed = _round(seed, settings)
        result["rounds"] += 1
        result["tests"] += passed
        result["seeds"].append(seed)
        if status != 0:
            result["failed"] = 1
            console.print(f"repeat with: make fuzz SEED={seed} FUZZ_ARGS='--scale {settings.scale:g}'", highlight=False)
            break
        if settings.seed is not None:
            break
    print("RESULT " + json.dumps({**result, "minutes": round((time.monotonic() - started_s) / 60, 1)}))
    return int(result["failed"])


def _round(seed: int, settings: argparse.Namespace) -> tuple[int, int]:
    """Return the exit status of pytest and how many tests passed; the output is shown when one did not."""
    command = [sys.executable, "-m", "pytest", "tests/fuzz", "-x", "--show-capture=no", f"--hypothesis-seed={seed}"]
    environment = {**os.environ, "FUZZ_SCALE": str(settings.scale)}
    ended = subprocess.run([*command, *settings.tests], cwd=ROOT, env=environment, capture_output=True, check=False)
    if ended.returncode != 0:
        sys.stdout.write(ended.stdout.decode(errors="replace"))
        sys.stdout.write(ended.stderr.decode(errors="replace"))
    found = _PASSED.search(ended.stdout)
    return ended.returncode, int(found.group(1)) if found else 0


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10, help="minutes after which no round begins (default: 10)")
    parser.add_argument("--seed", type=int, help="seed of an earlier run, for one round")
    parser.add_argument("--scale", type=float, default=SCALE, help="multiple of the test run's examples")
    parser.add_argument("tests", nargs="*", help="further arguments for pytest, such as -k frames")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
