"""Rebuilds a replica: the node gives up its copy of the data, and the others fill it like a node with a new disk.

    rebuild    file with the decision: once it is durable, no part of the copy is used again
    rebuilt    new name of the file when the whole copy is removed

Every start carries out a decision before it opens anything: it takes a new incarnation first, so that the other nodes
treat this as another disk, and then removes the parts of the copy. If it is killed at any moment, the next start goes
on.
"""

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from cluster.process.data_directory import REBUILD_FILE, REBUILT_FILE, DataDirectory, sync_directory, write_durably
from cluster.process.exit_codes import ExitCode, StartupError, code_of_disk
from store.log.differs import FILE_NAME as DIFFERS_FILE
from store.log.watermarks import FILE_NAME as WATERMARKS_FILE
from store.snapshots.install import DECISION_FILE

logger = logging.getLogger(__name__)

PARTS: Final = ("log", "index", "index.incoming", DECISION_FILE, "hard_state", WATERMARKS_FILE, DIFFERS_FILE)
"""Parts of the data directory that tell of the node's former copy. The mark of a differing replica is removed last, so
that a node that is killed meanwhile never votes."""


class Rebuild(msgspec.Struct, frozen=True):
    """The decision to rebuild. `joins` says that the log names the nodes of the cluster: after the rebuild this node
    learns them from the leader and ignores its options, with which it might begin a cluster of its own.
    """

    joins: bool


def decide(path: Path, *, joins: bool) -> None:
    """Write the decision to rebuild; durable on return. The caller must make the Raft node fall silent and start the
    node again. Raises StartupError when the decision cannot be written.
    """
    write_durably(path / REBUILD_FILE, msgspec.json.encode(Rebuild(joins)))


def finish_rebuild(directory: DataDirectory, remove: Callable[[Path], None] | None = None) -> bool:
    """Carry out a decision if there is one, and return whether there was. Raises StartupError when a part cannot be
    removed; the next start goes on then.
    """
    path = directory.path
    if not (path / REBUILD_FILE).exists():
        return False
    logger.warning("rebuilding this replica: its log and index are removed, and the others fill it anew")
    directory.renew()
    try:
        for part in PARTS:
            (remove or _remove)(path / part)
            (remove or _remove)(path / f"{part}.tmp")
        sync_directory(path)
        os.rename(path / REBUILD_FILE, path / REBUILT_FILE)
        sync_directory(path)
    except OSError as error:
        raise StartupError(
            code_of_disk(error.errno),
            f"data_dir {path}: cannot be emptied for the rebuild: {error}; mend that, and start again",
        ) from None
    return True


def remove_copy(path: Path) -> None:
    """Remove every part of the copy of the data, and the trace of a rebuild. Raises StartupError."""
    try:
        for part in (*PARTS, REBUILT_FILE):
            _remove(path / part)
            _remove(path / f"{part}.tmp")
        sync_directory(path)
    except OSError as error:
        raise StartupError(ExitCode.DATA_DIR_UNUSABLE, f"data_dir {path}: cannot be emptied: {error}") from None


def joins_since_rebuild(path: Path) -> bool:
    """Return whether this node was rebuilt and learns the cluster's nodes from the log alone. An unreadable file counts
    as True.
    """
    try:
        return msgspec.json.decode((path / REBUILT_FILE).read_bytes(), type=Rebuild).joins
    except FileNotFoundError:
        return False
    except (OSError, ValueError):
        return True


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
