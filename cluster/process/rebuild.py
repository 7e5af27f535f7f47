"""Rebuilding a replica: the node gives its copy up and is filled by the others, as one with a new disk is.

    rebuild    the decision: once it is durable, nothing of the copy is used again
    rebuilt    what it is renamed to when all of the copy is gone

Every start carries a decision out before it opens anything: a new incarnation first, so that the others take this for
another disk, then the parts of the copy go. Killed at any moment, the next start goes on.
"""

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from cluster.process.data_directory import REBUILD_FILE, REBUILT_FILE, DataDirectory, write_durably
from cluster.process.exit_codes import ExitCode, StartupError
from store.log.differs import FILE_NAME as DIFFERS_FILE
from store.log.watermarks import FILE_NAME as WATERMARKS_FILE
from store.snapshots.install import DECISION_FILE

logger = logging.getLogger(__name__)

PARTS: Final = ("log", "index", "index.incoming", DECISION_FILE, "hard_state", WATERMARKS_FILE, DIFFERS_FILE)
"""Of the data directory: everything that speaks of what this node had. A differing replica is known as such to the
last, so that a node that is killed meanwhile never votes."""


class Rebuild(msgspec.Struct, frozen=True):
    """`joins`: the nodes of the cluster are in its log. From then on this node is told of them, and never goes by those
    that it is started with: alone with those it might begin a cluster of its own.
    """

    joins: bool


def decide(path: Path, *, joins: bool) -> None:
    """Durable on return: what runs on the copy must fall silent, and the node start again. StartupError when it cannot
    be written.
    """
    write_durably(path / REBUILD_FILE, msgspec.json.encode(Rebuild(joins)))


def finish_rebuild(directory: DataDirectory, remove: Callable[[Path], None] | None = None) -> bool:
    """Carry out a decision, if there is one; whether there was. StartupError: the next start goes on."""
    path = directory.path
    if not (path / REBUILD_FILE).exists():
        return False
    logger.warning("rebuilding this replica: its log and index go, and the others fill it anew")
    directory.renew()
    try:
        for part in PARTS:
            (remove or _remove)(path / part)
            (remove or _remove)(path / f"{part}.tmp")
        _sync(path)
        os.rename(path / REBUILD_FILE, path / REBUILT_FILE)
        _sync(path)
    except OSError as error:
        raise StartupError(
            ExitCode.DATA_DIR_UNUSABLE, f"data_dir {path}: cannot be emptied for the rebuild: {error}"
        ) from None
    return True


def joins_since_rebuild(path: Path) -> bool:
    """Whether this node goes by the log alone, since it was rebuilt. A file that cannot be read says so as well."""
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


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
