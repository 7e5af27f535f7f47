"""The commands `keelmqd log dump` and `keelmqd log verify`, which print and verify the log of a stopped node."""

import itertools
import sys
from pathlib import Path
from typing import Final

from cluster.process.exit_codes import ExitCode, StartupError
from raft.errors import ProtocolError
from raft.membership import decode_configuration
from store.commands.entry import decode_entry
from store.features import UnknownFeatureLevel
from store.log.disk import ReadOnlyDisk
from store.log.dump import dump_records, verify_log
from store.log.errors import DiskError, LogCorruption
from store.log.record import KIND_CONFIG, KIND_ENTRY, Header, UnsupportedRecord

LOG_ACTIONS: Final = ("dump", "verify")


def log_command(action: str, data_dir: str, from_index: int) -> int:
    """Print the records, or the findings of a verification, and return the exit code: LOG_CORRUPT for a damaged log.

    Raises StartupError when the log cannot be read.
    """
    directory = Path(data_dir) / "log"
    try:
        is_there = directory.is_dir()
    except OSError as error:
        raise StartupError(ExitCode.DATA_DIR_UNUSABLE, f"{directory}: {error.strerror}") from None
    if not is_there:
        raise StartupError(
            ExitCode.DATA_DIR_UNUSABLE, f"{directory}: does not exist; give a node's data directory with --data-dir"
        )
    try:
        return _dump(str(directory), from_index) if action == "dump" else _verify(str(directory))
    except BrokenPipeError:
        # `keelmqd log dump | head` is no error; nothing more can be written, not even by the interpreter's own flush.
        sys.stdout = None
        return ExitCode.STOPPED
    except DiskError as error:
        raise StartupError(ExitCode.DATA_DIR_UNUSABLE, f"{directory}: {error}") from None
    except (LogCorruption, UnsupportedRecord) as error:
        raise StartupError(ExitCode.LOG_CORRUPT, f"{directory}: {error}") from None


def _dump(directory: str, from_index: int) -> int:
    print(f"{'index':>12} {'term':>8} {'kind':<6} {'position':>16} {'bytes':>10} {'synced':>16} segment  commands")
    for line in dump_records(ReadOnlyDisk(), directory, from_index, describe=_described):
        print(
            f"{line.raft_index:>12} {line.term:>8} {line.kind:<6} {line.position:>16} {line.payload_length:>10} "
            f"{line.synced_position:>16} {line.segment}  {line.content}".rstrip()
        )
    return ExitCode.STOPPED


def _described(header: Header, payload: memoryview) -> str:
    """Return the names of the record's commands, each with the principal whose request it is, and how often it comes
    one after the other.
    """
    try:
        if header.kind == KIND_CONFIG:
            principal = decode_configuration(bytes(payload)).principal
            return f"by {principal}" if principal else ""
        if header.kind != KIND_ENTRY:
            return ""
        entry = decode_entry(bytes(payload))
    except (ValueError, ProtocolError, UnknownFeatureLevel) as error:
        return f"not known to this version: {error}"
    said = (
        type(command).__name__ + (f" by {entry.principals[ordinal]}" if ordinal in entry.principals else "")
        for ordinal, command in enumerate(entry.commands)
    )
    counted = ((name, sum(1 for _ in same)) for name, same in itertools.groupby(said))
    return ", ".join(name if count == 1 else f"{count} x {name}" for name, count in counted)


def _verify(directory: str) -> int:
    report = verify_log(ReadOnlyDisk(), directory)
    for finding in report.findings:
        index = "" if finding.raft_index is None else f", index {finding.raft_index}"
        weight = "harmless" if finding.harmless else "DAMAGE"
        print(f"{weight}: {finding.segment}, position {finding.position}{index}: {finding.detail}")
    if report.base.index:
        print(f"the log begins after index {report.base.index} of term {report.base.term}: earlier records are removed")
    print(
        f"{report.records} records in {report.segments} segments, index {report.first_index} to {report.last_index}, "
        f"end at position {report.end_position}, synced to {report.synced_position}: "
        f"{'intact' if report.intact else 'DAMAGED'}"
    )
    return ExitCode.STOPPED if report.intact else ExitCode.LOG_CORRUPT
