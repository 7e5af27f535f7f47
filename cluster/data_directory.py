"""The data directory: one process at a time, one node of one cluster for ever.

    lock        flock()ed while a process uses the directory
    identity    {"cluster_id", "node_id", "incarnation"}: compared at every start
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

from cluster.exit_codes import ExitCode, StartupError

logger = logging.getLogger(__name__)

LOCK_FILE: Final = "lock"
IDENTITY_FILE: Final = "identity"


class Identity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whose data a directory holds."""

    cluster_id: str
    node_id: int


class StoredIdentity(Identity, frozen=True, forbid_unknown_fields=True):
    """With what tells this directory from an earlier or later one of the same node."""

    incarnation: str


class DataDirectory:
    """A locked data directory whose identity was checked. Close it last, when all of its files are closed."""

    def __init__(self, path: Path, lock: IO[bytes], stored: StoredIdentity) -> None:
        self.path = path
        self._stored = stored
        self._lock = lock

    @property
    def incarnation(self) -> str:
        return self._stored.incarnation

    def renew(self) -> None:
        """Take another incarnation, durable on return. StartupError when it cannot be written."""
        self._stored = _write_identity(self.path, self._stored)

    @classmethod
    def open(cls, path: Path, identity: Identity) -> Self:
        """Create the directory if it is missing, lock it, and claim or check its identity, durably.

        StartupError when another process uses it, when it belongs to another node, or when it cannot be used.
        """
        try:
            path.mkdir(parents=True, exist_ok=True)
            lock = open(path / LOCK_FILE, "wb")  # noqa: SIM115 - held as long as the process lives
        except OSError as error:
            raise StartupError(
                ExitCode.DATA_DIR_UNUSABLE, f"data_dir {path}: {error.strerror}; give a directory this user may write"
            ) from None
        try:
            _take_lock(lock, path)
            stored = _claim(path, identity)
        except BaseException:
            lock.close()
            raise
        return cls(path, lock, stored)

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
        return _write_identity(path, identity)
    return stored


def _write_identity(path: Path, identity: Identity) -> StoredIdentity:
    """With a new incarnation."""
    new = StoredIdentity(identity.cluster_id, identity.node_id, uuid.uuid4().hex)
    _write_durably(path / IDENTITY_FILE, msgspec.json.encode(new))
    return new


def _write_durably(file: Path, data: bytes) -> None:
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
        raise StartupError(ExitCode.DATA_DIR_UNUSABLE, f"{file}: cannot be written: {error.strerror}") from None
