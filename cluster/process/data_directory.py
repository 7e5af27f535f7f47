"""The data directory: it is used by one process at a time, and belongs to one node of one cluster for ever.

    lock           flock()ed while a process uses the directory
    identity       {"cluster_id", "node_id", "incarnation", "cluster_uid"}: compared at every start
    feature_level  {"level", "version"}: of the newest configuration in the log, written before that; absent at level 1
    backup.json    when the last backup that was read from this node was stored; see cluster/health/last_backup.py
    unfinished     what `keelmqd restore` or `keelmqd recover` has begun here: no node runs on it meanwhile
    log/ hard_state index/ watermarks    see docs/log-format.md
    audit/         what this node was asked to change, and what it denied; see docs/security.md

The incarnation tells the other nodes whether this is still the disk that they knew: it changes when the directory holds
less than the node acknowledged.

A directory of another node is refused: with it a node would lack its own votes and its own log.
"""

import fcntl
import logging
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import IO, Final, Self

import msgspec

from cluster.process.exit_codes import ExitCode, StartupError, code_of_disk
from store.features import FEATURES, FIRST_LEVEL, LevelOf, UnknownFeatureLevel

logger = logging.getLogger(__name__)

FEATURE_LEVEL_FILE: Final = "feature_level"
LOCK_FILE: Final = "lock"
IDENTITY_FILE: Final = "identity"
REBUILD_FILE: Final = "rebuild"
REBUILT_FILE: Final = "rebuilt"
"""Name of the file after a rebuild. With it, or REBUILD_FILE, log and hard state may be missing by decision
(cluster/process/rebuild.py)."""

UNFINISHED_FILE: Final = "unfinished"
BACKUP_FILE: Final = "backup.json"

DIRECTORY_MODE: Final = 0o700
OTHERS_MODE: Final = 0o077
"""Permission bits that the directory must not have: only the node's user may read the messages of all clients."""


class Identity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The cluster and the node whose data a directory holds."""

    cluster_id: str
    node_id: int


class StoredIdentity(Identity, frozen=True, forbid_unknown_fields=True):
    """The identity in the file. `incarnation` distinguishes this directory from others of the same node, `cluster_uid`
    its cluster from others of the same name; it is empty until the first leader has named the cluster.
    """

    incarnation: str
    cluster_uid: str = ""


class StoredFeatureLevel(msgspec.Struct, frozen=True):
    """The feature level in the file. The format never changes, because every build must be able to read it."""

    level: int
    version: str


class Unfinished(msgspec.Struct, frozen=True):
    """The work of an offline command that is under way in a directory, or was interrupted: `command` has to be run
    again with `cluster_uid`, the name of the cluster that it makes.
    """

    command: str
    cluster_uid: str


def note_unfinished(path: Path, work: Unfinished) -> None:
    """Note that no node may start here before `DataDirectory.finish`; durable on return. Raises StartupError."""
    write_durably(path / UNFINISHED_FILE, msgspec.json.encode(work))


def read_unfinished(path: Path) -> Unfinished | None:
    """Return the unfinished work in a directory; None without any. Raises StartupError when it cannot be read."""
    file = path / UNFINISHED_FILE
    try:
        return msgspec.json.decode(file.read_bytes(), type=Unfinished)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise _unreadable(path, file, error, "") from None


class DataDirectory:
    """A locked data directory with a checked identity. Owns the lock. Close it last, after all files in it."""

    def __init__(self, path: Path, lock: IO[bytes], stored: StoredIdentity, feature_level: int) -> None:
        self.path = path
        self._stored = stored
        self._lock = lock
        self._feature_level = feature_level

    @property
    def incarnation(self) -> str:
        return self._stored.incarnation

    def note_feature_level(self, found: LevelOf) -> None:
        """Note the feature level of the log from now on, durable on return: a build that does not know the level
        refuses to open the directory. Raises StartupError when the level cannot be written.
        """
        if found.level != self._feature_level:
            noted = StoredFeatureLevel(found.level, found.version)
            write_durably(self.path / FEATURE_LEVEL_FILE, msgspec.json.encode(noted))
            self._feature_level = found.level

    @property
    def cluster_uid(self) -> str:
        return self._stored.cluster_uid

    def renew(self) -> None:
        """Take a new incarnation, durable on return. Raises StartupError when it cannot be written."""
        self._stored = _write_identity(self.path, self._stored, self.cluster_uid)

    def belong_to(self, cluster_uid: str) -> None:
        """Note the cluster of the log in this directory, durable on return. Raises StartupError when another cluster is
        noted already, or the uid cannot be written.
        """
        if not cluster_uid or cluster_uid == self.cluster_uid:
            return
        if self.cluster_uid:
            raise StartupError(
                ExitCode.DATA_DIR_UNUSABLE,
                f"data_dir {self.path}: its log is of cluster {cluster_uid}, and the directory of {self.cluster_uid}, "
                f"both named {self._stored.cluster_id!r}: files of two clusters were mixed; restore all files from "
                "one backup, or give an empty directory and let the cluster fill it",
            )
        named = msgspec.structs.replace(self._stored, cluster_uid=cluster_uid)
        write_durably(self.path / IDENTITY_FILE, msgspec.json.encode(named))
        self._stored = named

    def rename_cluster(self, cluster_uid: str) -> None:
        """Have the directory belong to another cluster; durable on return. Raises StartupError."""
        self._stored = msgspec.structs.replace(self._stored, cluster_uid=cluster_uid)
        write_durably(self.path / IDENTITY_FILE, msgspec.json.encode(self._stored))

    def finish(self) -> None:
        """Note that the work is done: from now on a node may run here. Durable on return. Raises StartupError."""
        try:
            (self.path / UNFINISHED_FILE).unlink()
            sync_directory(self.path)
        except OSError as error:
            raise StartupError(code_of_disk(error.errno), f"data_dir {self.path}: {error.strerror}") from error

    @classmethod
    def open(
        cls,
        path: Path,
        identity: Identity,
        *,
        command: str = "",
        prepare: Callable[[Path], None] = lambda _: None,
    ) -> Self:
        """Create the directory if it is missing, lock it, and claim or check its identity; durable on return.

        An offline `command` may take up its own unfinished work; `prepare(path)` is called in the locked directory
        before anything is written. Raises StartupError when another process uses the directory, when it belongs to
        another node or a newer version, when other work in it is unfinished, or when it cannot be used.
        """
        try:
            path.mkdir(parents=True, exist_ok=True)
            if path.stat().st_mode & OTHERS_MODE:  # an earlier version made it
                path.chmod(DIRECTORY_MODE)
            lock = open(path / LOCK_FILE, "wb")  # noqa: SIM115 - held as long as the process lives
        except OSError as error:
            code = code_of_disk(error.errno)
            step = "; give a directory this user may write" if code == ExitCode.DATA_DIR_UNUSABLE else ""
            raise StartupError(code, f"data_dir {path}: {error.strerror}{step}") from None
        try:
            _take_lock(lock, path)
            _require_finished(path, command)
            prepare(path)
            level = _require_known_level(path)
            return cls(path, lock, _claim(path, identity), level)
        except BaseException:
            lock.close()
            raise

    def close(self) -> None:
        self._lock.close()


def _take_lock(lock: IO[bytes], path: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise StartupError(
            ExitCode.DATA_DIR_UNUSABLE,
            f"data_dir {path}: in use by another process; stop it, or give this node a directory of its own",
        ) from None


def _require_finished(path: Path, command: str) -> None:
    work = read_unfinished(path)
    if work is not None and work.command != command:
        raise StartupError(
            ExitCode.DATA_DIR_UNUSABLE,
            f"data_dir {path}: `keelmqd {work.command}` was interrupted here and its work is half done; run it again "
            "with the same options",
        )


def _claim(path: Path, identity: Identity) -> StoredIdentity:
    file = path / IDENTITY_FILE
    try:
        stored = msgspec.json.decode(file.read_bytes(), type=StoredIdentity)
    except FileNotFoundError:
        if (path / "log").exists():
            raise StartupError(
                ExitCode.DATA_DIR_UNUSABLE,
                f"data_dir {path}: holds a log but no identity file; restore {file} from a backup, "
                "or give an empty directory and let the cluster fill it",
            ) from None
        return _write_identity(path, identity)
    except (OSError, ValueError, RecursionError) as error:
        raise _unreadable(path, file, error) from None
    if (stored.cluster_id, stored.node_id) != (identity.cluster_id, identity.node_id):
        raise StartupError(
            ExitCode.DATA_DIR_UNUSABLE,
            f"data_dir {path}: belongs to node {stored.node_id} of cluster {stored.cluster_id!r}, not to node "
            f"{identity.node_id} of cluster {identity.cluster_id!r}; correct node_id, cluster_id or data_dir",
        )
    if not (path / "log").exists() and not (path / "hard_state").exists() and read_unfinished(path) is None:
        logger.warning("data_dir %s holds an identity and no log: it counts as a new disk, which others fill", path)
        by_decision = (path / REBUILD_FILE).exists() or (path / REBUILT_FILE).exists()
        return _write_identity(path, identity, stored.cluster_uid if by_decision else "")
    return stored


def _unreadable(path: Path, file: Path, error: Exception, step: str = "; restore it from a backup") -> StartupError:
    code = code_of_disk(error.errno if isinstance(error, OSError) else None)
    step = "" if code == ExitCode.DISK_REFUSES else step
    return StartupError(code, f"data_dir {path}: {file} cannot be read ({error}){step}")


def _require_known_level(path: Path) -> int:
    """Return the noted feature level. Raises StartupError when this build does not know it or it cannot be read."""
    file = path / FEATURE_LEVEL_FILE
    try:
        stored = msgspec.json.decode(file.read_bytes(), type=StoredFeatureLevel)
        FEATURES.require_known(LevelOf(stored.level, stored.version), "this log")
    except FileNotFoundError:
        return FIRST_LEVEL
    except UnknownFeatureLevel as error:
        raise StartupError(ExitCode.WRONG_VERSION, f"data_dir {path}: {error}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise _unreadable(path, file, error) from None
    return stored.level


def read_identity(path: Path) -> StoredIdentity:
    """Return the identity of a directory that a node has used. Raises StartupError when there is none."""
    file = path / IDENTITY_FILE
    try:
        return msgspec.json.decode(file.read_bytes(), type=StoredIdentity)
    except FileNotFoundError:
        raise StartupError(
            ExitCode.DATA_DIR_UNUSABLE, f"data_dir {path}: no node has used it; give a node's data directory"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise _unreadable(path, file, error, "") from None


def _write_identity(path: Path, identity: Identity, cluster_uid: str = "") -> StoredIdentity:
    """Write the identity with a new incarnation and return it; durable on return. Raises StartupError."""
    new = StoredIdentity(identity.cluster_id, identity.node_id, uuid.uuid4().hex, cluster_uid)
    write_durably(path / IDENTITY_FILE, msgspec.json.encode(new))
    return new


def temporary_of(file: Path) -> Path:
    """Return where `write_durably` writes what is to replace the file; a writer that failed or was killed leaves it."""
    return file.with_suffix(".new")


def write_durably(file: Path, data: bytes) -> None:
    """Replace the file with `data` atomically; durable on return. Raises StartupError when it cannot be written."""
    temporary = temporary_of(file)
    try:
        with open(temporary, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.rename(file)
        sync_directory(file.parent)
    except OSError as error:
        raise StartupError(code_of_disk(error.errno), f"{file}: cannot be written: {error.strerror}") from error


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
