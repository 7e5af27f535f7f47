"""Run `make strangers`: strangers with credentials at every port of a closed cluster, which must not even notice.

The last line is `RESULT {json}`. The exit status is 1 when an attempt succeeded, anything changed, a node ended or the
leader was lost.
"""

import argparse
import asyncio
import logging
import sys
import tempfile
from pathlib import Path

from deploy.reporting.report import Report
from tests.strangers.attack import attack, fortress


def main() -> int:
    parser = argparse.ArgumentParser(prog="make strangers", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--attempts", type=int, default=10_000, metavar="N", help="number of attempts (10000)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="seed of the attempts (1)")
    options = parser.parse_args()
    # Nodes hang up on strangers, as they should: asyncio would warn of each one that writes on.
    logging.getLogger("asyncio").setLevel(logging.ERROR)

    report = Report()
    made = 0

    def progress(number: int) -> None:
        nonlocal made
        made = number

    report.step("starting a closed cluster")
    with tempfile.TemporaryDirectory(prefix="keelmq-strangers-") as directory, fortress(Path(directory)) as attacked:
        report.step(f"attempts with seed {options.seed}")
        with report.live(lambda: f"{made:,} of {options.attempts:,}", share=lambda: made / max(options.attempts, 1)):
            found = asyncio.run(attack(attacked, options.attempts, options.seed, progress))
    for each in found.violations:
        report.event(each, "problem")
    report.result({"seed": options.seed, **found._asdict()})
    return 1 if found.violations else 0


if __name__ == "__main__":
    sys.exit(main())
