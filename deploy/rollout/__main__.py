"""`deploy/keelmq-deploy`: deploys a cluster from an inventory and restarts it node by node. docs/deploy.md has it all.

Exit codes: 0 done, 1 failed, 2 wrong usage or inventory, 3 refused because it would cost the quorum or data.
"""

import argparse
import sys
from pathlib import Path
from typing import Final

from deploy.reporting.report import Report
from deploy.rollout.agent_calls import AGENT_CALLS
from deploy.rollout.awaited import AWAITED
from deploy.rollout.inventory import InventoryError, read_inventory
from deploy.rollout.rolling import Unsafe
from deploy.rollout.side_by_side import AT_ONCE
from deploy.rollout.usage import ACCEPTS_DOWNTIME, UsageError, check_usage
from deploy.rollout.verbs import ERRORS, Verbs
from deploy.rollout.ways_back import ACCEPT, WaysBack

NODE_VERBS: Final = ("transfer", "drain", "undrain", "add", "remove", "replace", "recover", "spare", "leads")
"""Verbs that are about one node, whose id follows."""
MAY_NAME_NODE: Final = ("backup",)
"""Verbs that may be given the id of a node."""
VERBS: Final = (
    *("preflight", "install", "bootstrap", "status", "restart", "upgrade", "rollback", *NODE_VERBS),
    *("backup", "restore", "certs", "logs", "bundle", "destroy", "render", "wait"),
)
TARGETS: Final = ("compose", "kubernetes", "ansible")
"""Platforms for which `render` makes files."""
DONE, FAILED, USAGE, UNSAFE = range(4)


def main() -> int:
    options = parse_arguments()
    try:
        inventory = read_inventory(options.inventory)
        check_usage(inventory, options)
    except (InventoryError, UsageError) as error:
        return _end(USAGE, str(error))
    report = Report()
    try:
        verbs = verbs_of(options.verb)(inventory, options, report)
    except OSError as error:  # a file that the inventory names
        return _end(USAGE, str(error))
    code, reason = DONE, ""
    try:
        with AWAITED.told(report), AGENT_CALLS.kept():
            verbs.run()
    except Unsafe as error:
        code, reason = UNSAFE, f"refused: {error}"
    except ERRORS as error:
        code, reason = FAILED, f"{error}\nWhat is done is kept: run the same command again once the cause is mended."
    if code != DONE:
        _end(code, reason)
    report.result(
        {
            "verb": options.verb,
            "cluster_id": inventory.cluster.id,
            "node_id": options.node,
            "dry_run": options.dry_run,
            "exit_code": code,
            "steps": verbs.steps,
            "steps_done": verbs.steps_done,
            "nodes_skipped": verbs.skipped,
            "file": None if verbs.file is None else str(verbs.file),
            "reason": reason or None,
        }
    )
    return code


def verbs_of(verb: str) -> type[Verbs]:
    if verb != "render":
        return WaysBack
    from deploy.rollout.render_verb import RenderVerb  # late: other verbs need nothing of it

    return RenderVerb


def _end(code: int, message: str) -> int:
    print(f"keelmq-deploy: {message}", file=sys.stderr)
    return code


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="keelmq-deploy", description=__doc__, allow_abbrev=False)
    parser.add_argument("verb", choices=VERBS)
    parser.add_argument(
        "subject",
        nargs="?",
        metavar="NODE|TARGET",
        help=f"Id of the node: {', '.join((*NODE_VERBS, *MAY_NAME_NODE))}. Render for: {', '.join(TARGETS)}.",
    )
    parser.add_argument("-i", "--inventory", type=Path, default=Path("cluster.toml"), help="default: cluster.toml")
    parser.add_argument("--dry-run", action="store_true", help="Print the plan, and change nothing.")
    parser.add_argument("--bundle", type=Path, help="File that `make bundle` made, to install first.")
    parser.add_argument("--timeout-s", type=float, default=120.0, help="Longest wait for health, in seconds (120).")
    parser.add_argument(
        "--parallel",
        type=int,
        default=AT_ONCE,
        metavar="HOSTS",
        help=f"Hosts that are worked on at the same time while their nodes do not run ({AT_ONCE}).",
    )
    parser.add_argument("--lines", type=int, default=50, help="logs: lines of each node (50).")
    parser.add_argument(
        "--yes",
        metavar="CLUSTER_ID",
        help="The id of the cluster whose data is removed (destroy) or set aside (restore, add).",
    )
    parser.add_argument(
        "--backup", metavar="FILE|S3_URL", help="restore: file of a backup, or s3://BUCKET/KEY, which is fetched first."
    )
    parser.add_argument(
        "--endpoint-url",
        metavar="URL",
        help="backup, restore: address of the object store for s3://… that is not Amazon's.",
    )
    parser.add_argument(
        ACCEPT,
        dest="accepted",
        action="store_true",
        help="recover: messages that only other nodes had are lost for good.",
    )
    parser.add_argument(
        "--accept-downtime",
        action="store_true",
        help=f"{', '.join(ACCEPTS_DOWNTIME)}: also where the others are no majority.",
    )
    parser.add_argument("--renew", action="store_true", help="certs, render: replace the certificates; the keys stay.")
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE|DIR/|S3_URL",
        help="The file to write: bundle (INVENTORY.support.tar.gz), backup (a new one in INVENTORY.backups/, or in "
        "s3://BUCKET/PREFIX/). render: the directory, which is replaced.",
    )
    options = parser.parse_intermixed_args()
    options.node = None
    if options.verb == "render":
        if options.subject not in TARGETS or options.output is None:
            parser.error(f"render needs one of {', '.join(TARGETS)}, and --output DIRECTORY")
    elif options.verb not in MAY_NAME_NODE and (options.verb in NODE_VERBS) != (options.subject is not None):
        parser.error(f"{options.verb} {'needs the id of a node' if options.subject is None else 'is about all nodes'}")
    elif options.subject is not None:
        if not options.subject.isdecimal():
            parser.error(f"{options.subject} is no id of a node")
        options.node = int(options.subject)
    if not 0 < options.timeout_s < 86_400 or options.lines < 1 or options.parallel < 1:
        parser.error("--timeout-s, --lines and --parallel have to be positive")
    return options


if __name__ == "__main__":
    sys.exit(main())
