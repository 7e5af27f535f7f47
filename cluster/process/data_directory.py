"""The data directory: one process at a time, one node of one cluster for ever.

    lock           flock()ed while a process uses the directory
    identity       {"cluster_id", "node_id", "incarnation", "cluster_uid"}: compared at every start
    feature_level  {"level", "version"}: of the newest configuration in the log, written before that; absent at level 1
    log/ hard_state index/ watermarks    see docs/log-format.md

The incarnation tells the others that this is another disk than the one they knew: it changes when the directory turns
out to hold less than the node acknowledged.

A directory that is given to another node would make it forget its votes and its log, so that is refused.
"""

import fcntl
import logging
import os
import uuid
from pathlib import Path
from typing import IO, Final, Self

import msgspec

from cluster.process.exit_codes import ExitCode, StartupError
from store.features import FEATURES, FIRST_LEVEL, LevelOf, UnknownFeatureLevel

logger = logging.getLogger(__name__)

FEATURE_LEVEL_FILE: Final = "feature_level"
LOCK_FILE: Final = "lock"
IDENTITY_FILE: Final = "identity"
REBUILD_FILE: Final = "rebuild"
REBUILT_FILE: Final = "rebuilt"
"""With either of them (cluster/process/rebuild.py) log and hard state may be gone by decision."""

DIRECTORY_MODE: Final = 0o700
OTHERS_MODE: Final = 0o077
"""Nobody but the node's user reads everybody's messages."""


class Identity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whose data a directory holds."""

    cluster_id: str
    node_id: int


class StoredIdentity(Identity, frozen=True, forbid_unknown_fields=True):
    """With what tells this directory from an earlier or later one of the same node, and its cluster from another one
    of the same name; that is not known before the first leader has named it.
    """

    incarnation: str
    cluster_uid: str = ""


class StoredFeatureLevel(msgspec.Struct, frozen=True):
    """Never given another form: every build has to be able to read it."""

    level: int
    version: str


class DataDirectory:
    """A locked data directory whose identity was checked. Close it last, when all of its files are closed."""

    def __init__(self, path: Path, lock: IO[bytes], stored: StoredIdentity, feature_level: int) -> None:
        self.path = path
        self._stored = stored
        self._lock = lock
        self._feature_level = feature_level

    @property
    def incarnation(self) -> str:
        return self._stored.incarnation

    def note_feature_level(self, found: LevelOf) -> None:
        """The level at which the log is from now on, durable on return: a build that does not know it opens nothing.
        StartupError when it cannot be written.
        """
        if found.level != self._feature_level:
            noted = StoredFeatureLevel(found.level, found.version)
            write_durably(self.path / FEATURE_LEVEL_FILE, msgspec.json.encode(noted))
            self._feature_level = found.level

    @property
    def cluster_uid(self) -> str:
        return self._stored.cluster_uid

    def renew(self) -> None:
        """Take another incarnation, durable on return. StartupError when it cannot be written."""
        self._stored = _write_identity(self.path, self._stored, self.cluster_uid)

    def belong_to(self, cluster_uid: str) -> None:
        """Note the cluster that the log in this directory is of, durably. StartupError when it is noted as another
        one's, or cannot be written.
        """
        if not cluster_uid or cluster_uid == self.cluster_uid:
            return
        if self.cluster_uid:
            raise StartupError(
                ExitCode.DATA_DIR_UNUSABLE,
                f"data_dir {self.path}: its log is of cluster {cluster_uid}, and the directory of {self.cluster_uid}, "
                f"both named {self._stored.cluster_id!r}: files of two clusters were mixed; restore all of them from "
                "one backup, or give an empty directory and let the cluster fill it",
            )
        named = msgspec.structs.replace(self._stored, cluster_uid=cluster_uid)
        write_durably(self.path / IDENTITY_FILE, msgspec.json.encode(named))
        self._stored = named

    @classmethod
    def open(cls, path: Path, identity: Identity) -> Self:
        """Create the directory if it is missing, lock it, and claim or check its identity, durably.

        StartupError when another process uses it, when it belongs to another node, or when it cannot be used.
        """
        try:
            path.mkdir(parents=True, exist_ok=True)
            if path.stat().st_mode & OTHERS_MODE:  # of an earlier version
                path.chmod(DIRECTORY_MODE)
            lock = open(path / LOCK_FILE, "wb")  # noqa: SIM115 - held as long as the process lives
        except OSError as error:
            raise StartupError(
                ExitCode.DATA_DIR_UNUSABLE, f"data_dir {path}: {error.strerror}; give a directory this user may write"
            ) from None
        try:
            _take_lock(lock, path)
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
        raise StartupError(
            ExitCode.DATA_DIR_UNUSABLE, f"data_dir {path}: {file} cannot be read ({error}); restore it from a backup"
        ) from None
    if (stored.cluster_id, stored.node_id) != (identity.cluster_id, identity.node_id):
        raise StartupError(
            ExitCode.DATA_DIR_UNUSABLE,
            f"data_dir {path}: belongs to node {stored.node_id} of cluster {stored.cluster_id!r}, not to node "
            f"{identity.node_id} of cluster {identity.cluster_id!r}; correct node_id, cluster_id or data_dir",
        )
    if not (path / "log").exists() and not (path / "hard_state").exists():
        logger.warning("data_dir %s holds an identity and no log: it counts as a new disk, which others fill", path)
        by_decision = (path / REBUILD_FILE).exists() or (path / REBUILT_FILE).exists()
        return _write_identity(path, identity, stored.cluster_uid if by_decision else "")
    return stored


def _require_known_level(path: Path) -> int:
    """The level that is noted; StartupError when this build does not work at it."""
    file = path / FEATURE_LEVEL_FILE
    try:
        stored = msgspec.json.decode(file.read_bytes(), type=StoredFeatureLevel)
        FEATURES.require_known(LevelOf(stored.level, stored.version), "this log")
    except FileNotFoundError:
        return FIRST_LEVEL
    except UnknownFeatureLevel as error:
        raise StartupError(ExitCode.WRONG_VERSION, f"data_dir {path}: {error}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise StartupError(
            ExitCode.DATA_DIR_UNUSABLE, f"data_dir {path}: {file} cannot be read ({error}); restore it from a backup"
        ) from None
    return stored.level


def _write_identity(path: Path, identity: Identity, cluster_uid: str = "") -> StoredIdentity:
    """With a new incarnation."""
    new = StoredIdentity(identity.cluster_id, identity.node_id, uuid.uuid4().hex, cluster_uid)
    write_durably(path / IDENTITY_FILE, msgspec.json.encode(new))
    return new


def write_durably(file: Path, data: bytes) -> None:
    """The whole file or what was there before; durable on return. StartupError."""
    temporary = file.with_suffix(".new")
    try:
        with open(temporary, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.rename(file)
        directory = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        raise StartupError(ExitCode.DATA_DIR_UNUSABLE, f"{file}: cannot be written: {error.strerror}") from error
