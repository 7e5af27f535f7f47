"""The command `keelmqd`: runs a node or supervises one, prints its log, restores or recovers its data.

The exit codes are in cluster/process/exit_codes.py.
"""

import argparse
import contextlib
import os
import signal
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from cluster import COMMIT, VERSION
from cluster.process.addresses import ConfigError
from cluster.process.config import options
from cluster.process.config_description import described
from cluster.process.config_loading import load, sources
from cluster.process.exit_codes import ExitCode, StartupError
from cluster.process.offline.log_command import LOG_ACTIONS, log_command
from cluster.process.offline.recover_command import COMMAND as RECOVER
from cluster.process.offline.recover_command import recover_command
from cluster.process.offline.restore_command import COMMAND as RESTORE
from cluster.process.offline.restore_command import restore_command
from cluster.process.quantities import quantity
from cluster.service_manager.rotated_file import OUTPUT_BYTES_DEFAULT, OUTPUT_FILES_DEFAULT, RotatedFile
from store.features import FEATURES
from store.log.commit_log import SEGMENT_BYTES_DEFAULT

SUPERVISE: Final = "supervise"
DISK_PAUSE_S: Final = 60.0
PRIVATE_UMASK: Final = 0o077
"""File mode mask: the files of a node hold the messages of all clients, so only the node's user may read them."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command `keelmqd` and return its exit code, with which the process ends even when standard output or
    error cannot be written: their file may be on the disk that is full.
    """
    code = command(arguments)
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        os._exit(code)  # the interpreter would end with a code of its own
    return code


def command(arguments: Sequence[str] | None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    verb = given.pop(0) if given and given[0] in ("run", "log", RESTORE, RECOVER, SUPERVISE) else "run"
    try:
        if verb == "log":
            parsed = log_parser().parse_args(given)
            return log_command(parsed.action, parsed.data_dir, parsed.from_index)
        if verb in (RESTORE, RECOVER):
            os.umask(PRIVATE_UMASK)
            return restore(given) if verb == RESTORE else recover(given)
        return supervise(given) if verb == SUPERVISE else run_command(given)
    except StartupError as error:
        with contextlib.suppress(OSError):
            print(f"keelmqd: {error}", file=sys.stderr, flush=True)
        if error.code == ExitCode.DISK_REFUSES and "NOTIFY_SOCKET" in os.environ:
            pause_before_restart()
        return error.code


def pause_before_restart() -> None:
    """Wait before the end, for the service manager starts the node again, at most ten times in ten minutes: a disk may
    stay full, or read-only, for hours.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    time.sleep(DISK_PAUSE_S)


def run_command(given: Sequence[str]) -> int:
    parsed = vars(run_parser().parse_args(given))
    file, check_only, show_only = (parsed.pop(name) for name in ("config", "check_config", "show_config"))
    try:
        config = load(file, os.environ, parsed)
    except ConfigError as error:
        raise StartupError(ExitCode.BAD_CONFIG, str(error)) from None
    if show_only:
        given_by = sources(file, os.environ, parsed)
        for name, value in described(config).items():
            print(f"{name} = {value}  # {given_by.get(name, 'default')}")
        return ExitCode.STOPPED
    # Late, since it takes thrice as long to import as all that other commands need; and for a check too, so that a
    # broker that cannot be imported here is found before a node is stopped for it.
    from cluster.serving import run_node

    if check_only:
        print(f"keelmqd: the configuration of node {config.node_id} of cluster {config.cluster_id!r} is valid")
        return ExitCode.STOPPED
    os.umask(PRIVATE_UMASK)
    return run_node(config, partial(load, file, os.environ, parsed))


def run_parser() -> argparse.ArgumentParser:
    """Return a parser with a flag for every configuration option. Its result has only the options that were given."""
    codes = ", ".join(f"{code.value} {code.name.lower().replace('_', ' ')}" for code in ExitCode)
    parser = argparse.ArgumentParser(
        prog="keelmqd",
        usage="keelmqd [run] [options]\n       keelmqd supervise [--output FILE] --config FILE\n"
        "       keelmqd log {dump,verify} --data-dir DIR\n"
        "       keelmqd restore --backup FILE --data-dir DIR --node-id ID --peer ID=HOST:PORT=URL ...\n"
        "       keelmqd recover --data-dir DIR [--i-accept-the-loss-of-what-only-others-had]",
        description="Run one node of a KeelMQ cluster. Options come from a TOML file, then from KEELMQ_<OPTION> in the "
        "environment, then from the command line; the last source wins.",
        epilog=f"exit codes: {codes}",
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    version = f"keelmqd {VERSION} (feature level {FEATURES.describe()})" + (f", commit {COMMIT}" if COMMIT else "")
    parser.add_argument("--version", action="version", version=version)
    parser.add_argument("--config", metavar="FILE", default=None, help="TOML file with the options")
    parser.add_argument("--check-config", action="store_true", default=False, help="validate the configuration and end")
    parser.add_argument(
        "--show-config",
        action="store_true",
        default=False,
        help="print every option with its value and where that comes from, and end",
    )
    for option in options():
        if option.is_switch:
            parser.add_argument(
                option.flag, dest=option.name, action="store_const", const="true", help=option.description
            )
            continue
        repeated = option.is_list
        default = "" if option.default in (None, ()) else f" (default: {option.default})"
        parser.add_argument(
            option.flag,
            dest=option.name,
            metavar="ID=HOST:PORT=URL" if option.name == "peers" else option.flag.rpartition("-")[2].upper(),
            action="append" if repeated else "store",
            help=(option.description + default).replace("%", "%%"),
        )
    return parser


def supervise(given: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="keelmqd supervise",
        description="Run the node, and start it anew when it ends by an error or its event loop stands: where there is "
        "no systemd. SIGTERM ends both; SIGHUP has the node read its certificates and log level again.",
        allow_abbrev=False,
    )
    parser.add_argument("--config", required=True, metavar="FILE", help="TOML file with the options of the node")
    parser.add_argument("--check-config", action="store_true", help="validate the configuration and end")
    parser.add_argument("--output", metavar="FILE", help="append what the node prints, and put full files aside")
    parser.add_argument(
        "--output-bytes",
        default=str(OUTPUT_BYTES_DEFAULT),
        metavar="SIZE",
        help="size of a full file, such as 64M (default: %(default)s)",
    )
    parser.add_argument(
        "--output-files", type=int, default=OUTPUT_FILES_DEFAULT, help="files that are kept (default: %(default)s)"
    )
    parsed = parser.parse_args(given)
    if parsed.check_config:
        return run_command(["--config", parsed.config, "--check-config"])
    os.umask(PRIVATE_UMASK)
    try:
        size = quantity(parsed.output_bytes, "output_bytes", "--output-bytes") or int(parsed.output_bytes)
        if size < 1 or parsed.output_files < 1:
            raise ValueError("--output-bytes and --output-files have to be positive")
        output = None if parsed.output is None else RotatedFile(Path(parsed.output), size, parsed.output_files)
    except (ConfigError, OSError, ValueError) as error:
        raise StartupError(ExitCode.BAD_CONFIG, str(error)) from None
    from cluster.service_manager.supervisor import Supervisor  # late: no other command needs it

    # Isolated: the directory of the command is no place for modules.
    return Supervisor([sys.executable, "-I", sys.argv[0], f"--config={parsed.config}"], output).run()


def restore(given: Sequence[str]) -> int:
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
    parser.add_argument("--cluster-id", help="id of the new cluster (default: that of the backup)")
    parser.add_argument(
        "--restore-id", metavar="ID", help="the same for all nodes; made and printed when it is missing"
    )
    parser.add_argument(
        "--segment-bytes", type=int, default=SEGMENT_BYTES_DEFAULT, help="the node's (default: %(default)s)"
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
    parser = argparse.ArgumentParser(
        prog="keelmqd recover",
        description="When a majority of the voters is lost for good: make this stopped node the only voter of a new "
        "cluster with its data. Without the flag it prints what the node knows, and changes nothing.",
        allow_abbrev=False,
    )
    parser.add_argument("--data-dir", required=True, help="the node's data directory")
    parser.add_argument(
        "--peer", metavar="ID=HOST:PORT=URL", help="this node's addresses, if they are not those that its log has"
    )
    parser.add_argument(
        "--i-accept-the-loss-of-what-only-others-had",
        dest="accepted",
        action="store_true",
        help="do it: what was acknowledged and is not in this node's log is lost",
    )
    parser.add_argument(
        "--segment-bytes", type=int, default=SEGMENT_BYTES_DEFAULT, help="the node's (default: %(default)s)"
    )
    parsed = parser.parse_args(given)
    return recover_command(parsed.data_dir, parsed.peer, accepted=parsed.accepted, segment_bytes=parsed.segment_bytes)


def log_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="keelmqd log", description="Print or verify the log of a stopped node.")
    parser.add_argument("action", choices=LOG_ACTIONS)
    parser.add_argument("--data-dir", required=True, help="the node's data directory")
    parser.add_argument("--from-index", type=int, default=1, help="index of the first record (default: 1)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
