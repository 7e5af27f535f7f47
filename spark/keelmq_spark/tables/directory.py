"""Tables in a directory: the writer holds a lock of the operating system, and a record is a name that was free."""

import errno
import fcntl
import os
import re
import socket
import uuid
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from keelmq_spark.tables.errors import TablesError, TablesInUse
from keelmq_spark.tables.rewriting import write_file

_LOCK: Final = "_lock"
_TEMPORARY: Final = ".next"
_NO_DELTA: Final = re.compile(r"%[0-9A-Fa-f]{2}|[\\\x00-\x1f\x7f]").search
"""Finds what the package deltalake takes for other characters, or refuses, in a path without links."""


class Directory:
    """Storage in a directory, which is made when something is written. See storage.py for what the methods promise."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def name(self) -> str:
        return str(self._path)

    def names(self, folder: str) -> list[str]:
        try:
            return sorted(os.listdir(self._path / folder))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def read(self, path: str) -> bytes:
        return (self._path / path).read_bytes()

    def write(self, path: str, data: bytes) -> None:
        file = self._path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)

    def create(self, path: str, data: bytes) -> None:
        file = self._path / path
        temporary = file.with_name(f".{uuid.uuid4().hex}{_TEMPORARY}")
        temporary.write_bytes(data)
        try:
            _link(temporary, file)
        finally:
            temporary.unlink(missing_ok=True)

    def delete(self, path: str) -> None:
        (self._path / path).unlink(missing_ok=True)

    def write_rows(self, rows: Any, folder: str, name: str, table: str) -> tuple[str, int]:
        return name, write_file(rows, self._path / folder / name, table)

    def lock(self) -> "TablesLock":
        return TablesLock(self._path)

    def directory(self) -> Path:
        return self._path

    def checkpoints(self) -> Path:
        return self._path / "_checkpoint"

    def uri(self, folder: str) -> str:
        unusable = _NO_DELTA(os.path.realpath(self._path))
        if unusable is not None:
            raise TablesError(
                f"the package deltalake cannot have tables in {self._path}, because of {unusable.group()!r}: name "
                "another directory, or make Parquet tables (`--format parquet`)"
            )
        return str(self._path / folder)

    def delta_options(self) -> None:
        return None


def is_temporary(name: str) -> bool:
    """Return whether a file is one that `create` did not give its name, because the process ended."""
    return name.startswith(".") and name.endswith(_TEMPORARY)


def _link(temporary: Path, path: Path) -> None:
    """Give the whole file its name. Raises FileExistsError when the name is taken."""
    try:
        os.link(temporary, path)
    except OSError as exc:
        if exc.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
        if path.exists():  # a file system without hard links: not atomic, and TablesLock is the only guard
            raise FileExistsError(path) from None
        temporary.replace(path)


class TablesLock:
    """Excludes a second job on the same tables. The operating system releases it with the process, however that ends.

    Use it as a context manager. Raises TablesInUse with the owner when it is held.
    """

    def __init__(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            owner = os.read(self._file, 1024).decode(errors="replace").strip() or "an unknown process"
            os.close(self._file)
            if exc.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            raise TablesInUse(f"{path} is written by {owner}: stop that job, or name other tables") from None
        now = datetime.now(UTC).isoformat(timespec="seconds")
        os.truncate(self._file, 0)
        os.pwrite(self._file, f"process {os.getpid()} on {socket.gethostname()}, since {now}\n".encode(), 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._file)
