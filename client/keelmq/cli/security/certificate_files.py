"""Writes keys and certificates so that a crash leaves nothing half done, and reads files of a sane size."""

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple, NoReturn

from keelmq.cli.files import replace_file, sync_directory, write_synced
from keelmq.errors import Conflict, KeelMQError

FILE_BYTES_MAX: Final = 1024 * 1024
KEY_MODE: Final = 0o600
CERTIFICATE_MODE: Final = 0o644
"""Mode of a new certificate, from which the umask takes its part."""
DIRECTORY_MODE: Final = 0o700

_NO_HARD_LINKS: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS})


class NewFile(NamedTuple):
    path: Path
    content: bytes
    mode: int


def create(files: Sequence[NewFile]) -> None:
    """Create files of one directory in their order, each complete and on the disk before it has its name.

    After an error none of them exists. A process that is killed may leave the first of them, complete, and unfinished
    ones whose names begin with a dot. Raises Conflict (`file_exists`) when a name is taken, and KeelMQError
    (`file_unusable`) when they cannot be written.
    """
    beside: list[Path] = []
    named: list[Path] = []
    try:
        for file in files:
            with _named_errors(file.path, "written"):
                beside.append(_write_beside(file))
        for file, written in zip(files, beside, strict=True):
            with _named_errors(file.path, "written"):
                _give_name(written, file.path)
            named.append(file.path)
        with _named_errors(files[0].path.parent, "written"):
            sync_directory(files[0].path.parent)
    except BaseException:
        _remove(named)
        raise
    finally:
        _remove(beside)


def replace(file: NewFile) -> None:
    """Replace a file that exists, as `replace_file` does. Raises KeelMQError (`file_unusable`) when that cannot be
    done.
    """
    with _named_errors(file.path, "replaced"):
        file.path.stat()
        replace_file(file.path, file.content)


@contextlib.contextmanager
def directory_for(path: Path) -> Iterator[None]:
    """Make the directory, for its owner only, if it is missing, and remove it when what is done within fails. The
    directory above it has to exist. Raises KeelMQError (`file_unusable`).
    """
    with _named_errors(path, "made"):
        try:
            path.mkdir(mode=DIRECTORY_MODE)
            made = True
        except FileExistsError:
            if not path.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from None
            made = False
    try:
        if made:
            with _named_errors(path.parent, "written"):
                sync_directory(path.parent)
        yield
    except BaseException:
        if made:
            with contextlib.suppress(OSError):
                path.rmdir()
        raise


def read(path: Path, *, when_missing: str = "") -> bytes:
    """Return the content of a file. Raises KeelMQError (`file_unusable`) when it cannot be read or is larger than
    FILE_BYTES_MAX; `when_missing` is the next step for somebody who does not have the file.
    """
    with _named_errors(path, "read", when_missing=when_missing), open(path, "rb") as stream:
        content = stream.read(FILE_BYTES_MAX + 1)
    if len(content) > FILE_BYTES_MAX:
        raise unusable(path, f"has more than {FILE_BYTES_MAX} bytes, which no certificate and no key has")
    return content


def is_taken(path: Path) -> bool:
    """Return whether something has this name, even a symbolic link that leads nowhere."""
    return os.path.lexists(path)


def unusable(path: Path, why: str) -> KeelMQError:
    """Return the error for a file; `why` is the rest of a sentence that begins with the path."""
    return KeelMQError("file_unusable", f"{path} {why}")


@contextlib.contextmanager
def _named_errors(path: Path, what: str, *, when_missing: str = "") -> Iterator[None]:
    """Raise an OSError of the context as an error that names the path and the next step."""
    try:
        yield
    except FileExistsError:
        raise Conflict("file_exists", f"{path} exists and is not overwritten") from None
    except OSError as error:
        _fail(path, what, error, when_missing)


def _fail(path: Path, what: str, error: OSError, when_missing: str) -> NoReturn:
    why = f"cannot be {what}: {error.strerror or error}"
    if isinstance(error, FileNotFoundError):
        steps = {"made": "make the directory above it first", "written": "make the directory first"}
        step = when_missing or steps.get(what, "")
    elif isinstance(error, PermissionError):
        step = "run the command as the user who owns the directory and its files"
    elif error.errno in (errno.ENOSPC, errno.EDQUOT):
        step = "free some space, then repeat the command"
    elif error.errno == errno.EROFS:
        step = "choose a directory that can be written"
    else:
        step = ""
    raise unusable(path, f"{why}; {step}" if step else why) from None


def _write_beside(file: NewFile) -> Path:
    """Write the content into a new file of the same directory, sync it, and return its path."""
    path = file.path.with_name(f".{file.path.name}.{secrets.token_hex(4)}")
    write_synced(path, file.content, file.mode)
    return path


def _give_name(written: Path, path: Path) -> None:
    """Give a file its name. Raises FileExistsError when the name is taken."""
    try:
        os.link(written, path)  # a rename would overwrite what somebody else made in this moment
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        if is_taken(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from None
        written.replace(path)


def _remove(paths: Sequence[Path]) -> None:
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink()
