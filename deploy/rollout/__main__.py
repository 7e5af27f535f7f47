"""`deploy/keelmq-deploy`: deploys a cluster from an inventory and restarts it node by node. docs/deploy.md has it all.

Exit codes: 0 done, 1 failed, 2 wrong usage or inventory, 3 refused because it would cost the quorum or data.
"""

import argparse
import sys
from pathlib import Path
from typing import Final

from deploy.reporting.report import Report
from deploy.rollout.inventory import InventoryError, read_inventory
from deploy.rollout.rolling import Unsafe
from deploy.rollout.verbs import ERRORS, Verbs

VERBS: Final = ("preflight", "install", "bootstrap", "status", "restart", "upgrade", "logs", "destroy")
DONE, FAILED, USAGE, UNSAFE = range(4)


def main() -> int:
    options = parse_arguments()
    try:
        inventory = read_inventory(options.inventory)
    except InventoryError as error:
        return _end(USAGE, str(error))
    try:
        Verbs(inventory, options, Report()).run()
    except Unsafe as error:
        return _end(UNSAFE, f"refused: {error}")
    except ERRORS as error:
        return _end(FAILED, f"{error}\nWhat is done is kept: run the same command again once the cause is mended.")
    return DONE


def _end(code: int, message: str) -> int:
    print(f"keelmq-deploy: {message}", file=sys.stderr)
    return code


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="keelmq-deploy", description=__doc__, allow_abbrev=False)
    parser.add_argument("verb", choices=VERBS)
    parser.add_argument("--inventory", type=Path, default=Path("cluster.toml"), help="default: cluster.toml")
    parser.add_argument("--dry-run", action="store_true", help="Print the plan, and change nothing.")
    parser.add_argument("--bundle", type=Path, help="File that `make bundle` made, to install first.")
    parser.add_argument("--timeout-s", type=float, default=120.0, help="Longest wait for health, in seconds (120).")
    parser.add_argument("--lines", type=int, default=50, help="logs: lines of each node (50).")
    parser.add_argument("--yes", metavar="CLUSTER_ID", help="destroy: the id of the cluster whose data is removed.")
    parser.add_argument(
        "--accept-downtime", action="store_true", help="restart, upgrade: also where the others are no majority."
    )
    options = parser.parse_args()
    if not 0 < options.timeout_s < 86_400 or options.lines < 1:
        parser.error("--timeout-s and --lines have to be positive")
    return options


if __name__ == "__main__":
    sys.exit(main())
