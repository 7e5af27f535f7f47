"""The command `keelmqd restore`: makes the data directory of one node of a new cluster from a backup.

The file is read twice: first all of it is verified, and only then is anything written. From the first write to the last
the directory holds the file `unfinished`, with which no node starts; the command run again begins anew then.
"""

import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from cluster.process.addresses import ConfigError, Peer, check_peers, parse_peer
from cluster.process.data_directory import (
    LOCK_FILE,
    UNFINISHED_FILE,
    DataDirectory,
    Identity,
    Unfinished,
    note_unfinished,
    read_unfinished,
    temporary_of,
)
from cluster.process.exit_codes import ExitCode, StartupError
from cluster.process.offline.command_output import say
from cluster.process.offline.new_cluster import (
    SECOND_RECORD,
    append_configuration,
    apply_up_to,
    delete_join_tokens,
    members_of,
    present_configuration,
    rename_state,
    uid_of,
)
from cluster.process.rebuild import remove_copy
from store.errors import IndexDamaged, IndexUnreadable
from store.features import FEATURES, LevelOf, UnknownFeatureLevel
from store.index.index import FORMAT as INDEX_FORMAT
from store.index.index import Index
from store.log.base import LogBase, StoredBase, write_base
from store.log.commit_log import CommitLog
from store.log.disk import Disk, PosixDisk
from store.log.errors import LogError
from store.log.hard_state import HardState
from store.log.record import KIND_ENTRY, Header
from store.snapshots.backup_frames import LOG, STATE, BackupDamaged, BackupReader, Begin, End, Frame, records_of
from store.snapshots.snapshot import SnapshotRefused, SnapshotWriter
from store.state.machine import StateMachine

COMMAND: Final = "restore"
STORE: Final = "s3://"
"""Beginning of the name of a backup in an object store."""
BEGUN: Final = temporary_of(Path(UNFINISHED_FILE)).name
"""The file that a restore leaves which was interrupted in its first write."""
CACHE_BYTES: Final = 1 << 20
RESTORE_ID_BYTES: Final = 8


class Wanted(NamedTuple):
    """Restore that the command line asks for."""

    backup: Path
    data_dir: Path
    node_id: int
    peers: tuple[Peer, ...]
    cluster_id: str | None
    restore_id: str
    segment_bytes: int


class Verified(NamedTuple):
    begin: Begin
    end: End
    base: LogBase
    """The base of the log that is restored."""


def restore_command(
    backup: str,
    data_dir: str,
    node_id: int,
    peers: Sequence[str],
    *,
    cluster_id: str | None,
    restore_id: str | None,
    segment_bytes: int,
) -> int:
    """Restore one node and return the exit code. Raises StartupError, which says what to do, and whether anything was
    changed.
    """
    if backup.startswith(STORE):
        raise StartupError(
            ExitCode.BAD_CONFIG,
            "backup: keelmqd restores from files alone; bring it into one first: keelmq backup fetch S3_URL FILE",
        )
    try:
        parsed = tuple(parse_peer(peer) for peer in peers)
        check_peers(parsed)
    except ConfigError as error:
        raise StartupError(ExitCode.BAD_CONFIG, str(error)) from None
    if node_id not in {peer.node_id for peer in parsed}:
        raise StartupError(
            ExitCode.BAD_CONFIG, f"peers: give --peer for every node of the new cluster, node {node_id} included"
        )
    wanted = Wanted(
        Path(backup),
        Path(data_dir),
        node_id,
        parsed,
        cluster_id,
        restore_id or secrets.token_hex(RESTORE_ID_BYTES),
        segment_bytes,
    )
    _require_empty(wanted.data_dir)
    with _opened(wanted.backup) as file:
        try:
            verified = verify(file)
        except OSError as error:
            raise StartupError(ExitCode.BAD_CONFIG, f"backup {backup}: {error.strerror}") from error
        except BackupDamaged as error:
            raise StartupError(ExitCode.LOG_CORRUPT, f"backup {backup}: {error}; nothing was changed") from None
        cluster_uid = _restore(wanted, verified, file)
    _tell(wanted, verified, cluster_uid)
    return ExitCode.STOPPED


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise StartupError(ExitCode.BAD_CONFIG, f"backup {path}: {error.strerror}") from error


def verify(file: BinaryIO) -> Verified:
    """Read the whole backup. Raises BackupDamaged unless it is whole and this version can restore it."""
    reader = BackupReader(file)
    begin = reader.begin
    if begin.state_format != INDEX_FORMAT.decode():
        raise BackupDamaged(
            f"its state has the format {begin.state_format!r}, this version reads {INDEX_FORMAT.decode()!r}"
        )
    try:
        FEATURES.require_supported(LevelOf(begin.feature_level, begin.feature_version), "this backup")
    except UnknownFeatureLevel as error:
        raise BackupDamaged(str(error)) from None
    base, index = begin.base, begin.base_index
    for frame in reader.frames():
        if frame.kind != LOG:
            continue
        for header, _ in records_of(frame):
            if header.index != index + 1:
                raise BackupDamaged(f"{frame}: entry {header.index} follows entry {index}")
            index = header.index
            if index <= SECOND_RECORD:
                base = _behind(header, frame)
    if index != begin.index:
        raise BackupDamaged(f"its log ends with entry {index}, its state with entry {begin.index}")
    assert reader.end is not None
    return Verified(begin, reader.end, base)


def _behind(header: Header, frame: Frame) -> LogBase:
    """Return the base of a log that begins behind this record."""
    if header.kind == KIND_ENTRY:
        raise BackupDamaged(f"{frame}: entry {header.index} has commands, where a leader begins")
    return LogBase(header.end_position, header.index, header.term)


def _require_empty(path: Path) -> None:
    """Raise StartupError unless the directory is missing, empty, or of an interrupted restore."""
    try:
        found = sorted(set(os.listdir(path)) - {LOCK_FILE, BEGUN})
    except FileNotFoundError:
        return
    except OSError as error:
        raise StartupError(ExitCode.DATA_DIR_UNUSABLE, f"data_dir {path}: {error.strerror}") from None
    work = read_unfinished(path)
    if found and (work is None or work.command != COMMAND):
        raise StartupError(
            ExitCode.DATA_DIR_UNUSABLE,
            f"data_dir {path}: is not empty ({', '.join(found[:3])}); a backup is restored into an empty directory "
            "only. Nothing was changed",
        )


def _restore(wanted: Wanted, verified: Verified, file: BinaryIO) -> str:
    """Write the directory and return the name of the new cluster."""
    cluster_id = wanted.cluster_id or verified.begin.cluster_id
    members = members_of(wanted.peers)
    places = [f"{each.node_id}={each.host}:{each.port}={each.url}" for each in members]
    cluster_uid = uid_of(wanted.restore_id, verified.end.digest, cluster_id, *places)

    def begin(path: Path) -> None:
        _require_empty(path)  # once more, now that the directory is locked
        note_unfinished(path, Unfinished(COMMAND, cluster_uid))

    directory = DataDirectory.open(
        wanted.data_dir,
        Identity(cluster_id, wanted.node_id),
        command=COMMAND,
        prepare=begin,
    )
    try:
        remove_copy(directory.path)
        directory.note_feature_level(LevelOf(verified.begin.feature_level, verified.begin.feature_version))
        _write(wanted, verified, file, directory.path, cluster_uid)
        directory.rename_cluster(cluster_uid)
        directory.finish()
    except (LogError, IndexDamaged, IndexUnreadable, SnapshotRefused, BackupDamaged, OSError) as error:
        raise StartupError(
            ExitCode.DATA_DIR_UNUSABLE,
            f"data_dir {wanted.data_dir}: {error}. The directory is half restored, and no node starts on it: run the "
            "command again",
        ) from error
    finally:
        directory.close()
    return cluster_uid


def _write(wanted: Wanted, verified: Verified, file: BinaryIO, path: Path, cluster_uid: str) -> None:
    """Write index, log and hard state; durable on return. Raises BackupDamaged when the file is not the verified one
    any more, and as index and log do.
    """
    begin, disk = verified.begin, PosixDisk()
    file.seek(0)
    index = Index.open(str(path / "index"))
    try:
        log = _new_log(disk, path, verified.base, wanted.segment_bytes)
        try:
            _fill(BackupReader(file), verified, index, log)
            state = StateMachine(index)
            term = begin.term + 1
            append_configuration(log, term, present_configuration(state), members_of(wanted.peers), cluster_uid)
            apply_up_to(log.last_index, state, log)
            delete_join_tokens(log, term, state, COMMAND)
        finally:
            log.close()
        rename_state(index, cluster_uid)
    finally:
        index.close()
    hard_state = HardState(disk, str(path / "hard_state"))
    hard_state.set(term, None)
    hard_state.become_voter()


def _new_log(disk: Disk, path: Path, base: LogBase, segment_bytes: int) -> CommitLog:
    directory = str(path / "log")
    disk.make_directory(directory)
    write_base(disk, directory, StoredBase(base, restarting=True))
    return CommitLog.open(disk, directory, segment_bytes=segment_bytes, cache_bytes=CACHE_BYTES)


def _fill(reader: BackupReader, verified: Verified, index: Index, log: CommitLog) -> None:
    writer = SnapshotWriter(index)
    for frame in reader.frames():
        if frame.kind == STATE:
            writer.add(frame.payload)
            index.commit()
            continue
        for header, payload in records_of(frame):
            if header.index <= verified.base.index:
                continue
            if log.append(header.index, header.term, header.kind, payload) != header.position:
                raise BackupDamaged(f"{frame}: entry {header.index} is not at its position")
    begin, end = verified.begin, reader.end
    if end != verified.end:
        raise BackupDamaged("the file was changed meanwhile")
    log.sync()
    writer.check(verified.end.pairs, bytes.fromhex(verified.end.state_checksum), begin.index, begin.state_hash)
    index.flush()


def _tell(wanted: Wanted, verified: Verified, cluster_uid: str) -> None:
    begin = verified.begin
    say(
        f"node {wanted.node_id} of the new cluster {cluster_uid} holds the state after entry {begin.index} "
        f"(state hash {begin.state_hash}) in {wanted.data_dir}"
    )
    others = sorted({peer.node_id for peer in wanted.peers} - {wanted.node_id})
    if others:
        say(
            f"restore the other nodes ({', '.join(map(str, others))}) from the same file with the same --peer "
            f"options and --restore-id {wanted.restore_id}, then start all of them",
        )
