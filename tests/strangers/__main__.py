"""Run `make strangers`: strangers with credentials at every port of a closed cluster, which must not even notice.

The last line is `RESULT {json}`. The exit status is 1 when an attempt succeeded, anything changed, a node ended or the
leader was lost.
"""

import argparse
import asyncio
import json
import logging
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.strangers.attack import attack, fortress

SHOWN_EVERY: Final = 1_000


def main() -> int:
    parser = argparse.ArgumentParser(prog="make strangers", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--attempts", type=int, default=10_000, metavar="N", help="number of attempts (10000)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="seed of the attempts (1)")
    options = parser.parse_args()
    # Nodes hang up on strangers, as they should: asyncio would warn of each one that writes on.
    logging.getLogger("asyncio").setLevel(logging.ERROR)

    def progress(made: int) -> None:
        if made % SHOWN_EVERY == 0:
            print(f"strangers: {made} attempts", flush=True)

    with tempfile.TemporaryDirectory(prefix="keelmq-strangers-") as directory, fortress(Path(directory)) as attacked:
        found = asyncio.run(attack(attacked, options.attempts, options.seed, progress))
    for each in found.violations:
        print(f"strangers: {each}", file=sys.stderr)
    print("RESULT", json.dumps({"seed": options.seed, **found._asdict()}), flush=True)
    return 1 if found.violations else 0


if __name__ == "__main__":
    sys.exit(main())
