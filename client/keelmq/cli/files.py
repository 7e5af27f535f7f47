"""Replaces files as a whole."""

import contextlib
import os
import secrets
from pathlib import Path
from typing import Final

NEW_MODE: Final = 0o666
"""Mode of a new file, from which the umask takes its part."""


def replace_file(path: Path, content: bytes, *, new_mode: int = NEW_MODE) -> None:
    """Give the file this content. At every moment, also after a crash, the name leads to the whole former file or to
    the whole new one.

    A file that is there keeps its mode and, where this user may do that, its owner; a new one has `new_mode` less the
    umask. A process that is killed may leave an unfinished file beside it, whose name begins with a dot. Raises
    OSError.
    """
    try:
        former = path.stat()
    except FileNotFoundError:
        former = None
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        write_synced(beside, content, new_mode if former is None else 0o600)
        if former is not None:
            with contextlib.suppress(PermissionError):
                os.chown(beside, former.st_uid, former.st_gid)
            beside.chmod(former.st_mode & 0o777)
        beside.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise
    sync_directory(path.parent)


def write_synced(path: Path, content: bytes, mode: int) -> None:
    """Create the file with this content, and sync it; after an error it is not there. Raises OSError, FileExistsError
    when the name is taken.
    """
    # The mode is given with the creation, so there is no moment at which others could open a key.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    except BaseException:
        with contextlib.suppress(OSError):
            path.unlink()
        raise
    finally:
        os.close(descriptor)


def sync_directory(path: Path) -> None:
    """Return when the names in the directory are on the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
