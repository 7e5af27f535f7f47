"""The commands of `keelmqd` on a stopped node, with their options."""

import argparse
import os
from collections.abc import Sequence
from typing import Final

from cluster.process import PRIVATE_UMASK
from cluster.process.addresses import ConfigError
from cluster.process.offline.log_command import LOG_ACTIONS, log_command
from cluster.process.offline.recover_command import recover_command
from cluster.process.offline.restore_command import restore_command
from cluster.process.quantities import quantity
from store.log.commit_log import SEGMENT_BYTES_DEFAULT


def size(text: str) -> int:
    """Return the bytes that a text such as 64M or 67108864 names, as the option of a node that runs."""
    try:
        found = quantity(text, "segment_bytes", "--segment-bytes")
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return int(text) if found is None else found


def log(given: Sequence[str]) -> int:
    parsed = log_parser().parse_args(given)
    return log_command(parsed.action, parsed.data_dir, parsed.from_index)


def log_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="keelmqd log", description="Print or verify the log of a stopped node.")
    parser.add_argument("action", choices=LOG_ACTIONS)
    parser.add_argument("--data-dir", required=True, help="the node's data directory")
    parser.add_argument("--from-index", type=int, default=1, help="index of the first record (default: 1)")
    return parser


def restore(given: Sequence[str]) -> int:
    os.umask(PRIVATE_UMASK)
    parser = argparse.ArgumentParser(
        prog="keelmqd restore",
        description="Make the empty data directory of one node of a new cluster from a backup. Run it for every node, "
        "with the same backup, --peer options and --restore-id.",
        allow_abbrev=False,
    )
    parser.add_argument("--backup", required=True, metavar="FILE", help="file of `keelmq backup create` or `fetch`")
    parser.add_argument("--data-dir", required=True, help="the node's data directory, which must be empty or missing")
    parser.add_argument("--node-id", required=True, type=int, help="id of the node")
    parser.add_argument(
        "--peer",
        dest="peers",
        action="append",
        required=True,
        metavar="ID=HOST:PORT=URL",
        help="every node of the new cluster, this one included",
    )
    parser.add_argument("--cluster-id", help="id of the new cluster (default: the id in the backup)")
    parser.add_argument(
        "--restore-id", metavar="ID", help="the same for all nodes; made and printed when it is missing"
    )
    parser.add_argument(
        "--segment-bytes", type=size, default=SEGMENT_BYTES_DEFAULT, help="the node's (default: %(default)s)"
    )
    parsed = parser.parse_args(given)
    return restore_command(
        parsed.backup,
        parsed.data_dir,
        parsed.node_id,
        parsed.peers,
        cluster_id=parsed.cluster_id,
        restore_id=parsed.restore_id,
        segment_bytes=parsed.segment_bytes,
    )


def recover(given: Sequence[str]) -> int:
    os.umask(PRIVATE_UMASK)
    parser = argparse.ArgumentParser(
        prog="keelmqd recover",
        description="When a majority of the voters is lost for good: make this stopped node the only voter of a new "
        "cluster with its data. Without the flag it prints what the node knows, and changes nothing.",
        allow_abbrev=False,
    )
    parser.add_argument("--data-dir", required=True, help="the node's data directory")
    parser.add_argument("--peer", metavar="ID=HOST:PORT=URL", help="addresses of this node, if its log has others")
    parser.add_argument(
        "--i-accept-the-loss-of-what-only-others-had",
        dest="accepted",
        action="store_true",
        help="change the data: acknowledged messages that this node's log lacks are lost",
    )
    parser.add_argument(
        "--segment-bytes", type=size, default=SEGMENT_BYTES_DEFAULT, help="the node's (default: %(default)s)"
    )
    parsed = parser.parse_args(given)
    return recover_command(parsed.data_dir, parsed.peer, accepted=parsed.accepted, segment_bytes=parsed.segment_bytes)


OFFLINE: Final = {"log": log, "restore": restore, "recover": recover}
"""Functions that carry out the commands, by name."""
