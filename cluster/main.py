"""The command `keelmqd`: runs a node or supervises one, prints its log, restores or recovers its data.

Each verb imports what it needs, and late: a supervisor is there in a fifth of the time that the import of a broker
takes, and the node starts after it. The exit codes are in cluster/process/exit_codes.py.
"""

import argparse
import contextlib
import gc
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from cluster.process import PRIVATE_UMASK
from cluster.process.addresses import ConfigError
from cluster.process.exit_codes import ExitCode, StartupError
from cluster.process.quantities import quantity
from cluster.service_manager.rotated_file import OUTPUT_BYTES_DEFAULT, OUTPUT_FILES_DEFAULT, RotatedFile

RUN: Final = "run"
SUPERVISE: Final = "supervise"
VERBS: Final = (RUN, SUPERVISE, "log", "restore", "recover")
DISK_PAUSE_S: Final = 60.0


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
    verb = given.pop(0) if given and given[0] in VERBS else RUN
    try:
        if verb == SUPERVISE:
            return supervise(given)
        return run(given) if verb == RUN else offline(verb, given)
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


def run(given: Sequence[str]) -> int:
    # What is imported stays: each collection meanwhile looks at all of it, in vain, for an eighth of the time.
    gc.disable()
    try:
        from cluster.run_command import run_command

        return run_command(given, before_run=gc.enable)
    finally:
        gc.enable()


def offline(verb: str, given: Sequence[str]) -> int:
    from cluster.process.offline.command_line import OFFLINE

    return OFFLINE[verb](given)


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
        return run(["--config", parsed.config, "--check-config"])
    os.umask(PRIVATE_UMASK)
    try:
        size = quantity(parsed.output_bytes, "output_bytes", "--output-bytes") or int(parsed.output_bytes)
        if size < 1 or parsed.output_files < 1:
            raise ValueError("--output-bytes and --output-files have to be positive")
        output = None if parsed.output is None else RotatedFile(Path(parsed.output), size, parsed.output_files)
    except (ConfigError, OSError, ValueError) as error:
        raise StartupError(ExitCode.BAD_CONFIG, str(error)) from None
    from cluster.service_manager.supervisor import Supervisor

    # Isolated: the directory of the command is no place for modules.
    return Supervisor([sys.executable, "-I", sys.argv[0], f"--config={parsed.config}"], output).run()


if __name__ == "__main__":
    sys.exit(main())
