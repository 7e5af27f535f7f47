"""Backups as files of this machine."""

import contextlib
import errno
import fcntl
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, Self

from keelmq.errors import InvalidRequest, KeelMQError

SUFFIX: Final = ".backup"
PARTIAL_END: Final = r"\.[0-9a-f]{8}\.partial"
"""End of the name of a file that is being written, as an expression."""
PRIVATE_DIRECTORY_MODE: Final = 0o700
PRIVATE_MODE: Final = 0o600
"""Mode of the file: it holds the messages of all clients and the hashes of their tokens."""

NO_LINKS: Final = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
"""Errors of `link` where the file system has no hard links."""

Found = dict[str, Any]
"""Description of a backup in a list: the fields of its first frame, with its `file` and `bytes`, or an `error`."""


class Opened(NamedTuple):
    """A backup that is read; `stream` can seek, `name` is the last part of its name."""

    stream: BinaryIO
    size_bytes: int
    name: str


class FilePlace:
    """A file, or a directory of files, as a place of backups. All methods raise OSError."""

    def __init__(self, text: str) -> None:
        self.name = text
        self._path = Path(text)

    def prepare(self) -> None:
        """Make the directory, if that is what the place is. Raises InvalidRequest if the file exists, or cannot be
        published there.
        """
        if not self.name:
            raise InvalidRequest("invalid_request", "the place of a backup is empty: give a file, or a directory")
        if self.name.endswith("/"):
            self._path.mkdir(mode=PRIVATE_DIRECTORY_MODE, exist_ok=True)
        if self._path.exists() and not self._path.is_dir():
            raise InvalidRequest("file_exists", f"{self.name} exists; a backup never replaces a file")
        with self.new(f"links{SUFFIX}") as tried:
            tried.require_links()

    def remove_left(self) -> None:
        """Remove what backups that were killed have left of their files for this place. One that is being written is
        locked by its writer; what cannot be removed stays.
        """
        directory, name = self._path.parent, re.escape(self._path.name)
        if self._path.is_dir():
            directory, name = self._path, rf".*{re.escape(SUFFIX)}"
        left = re.compile(name + PARTIAL_END)
        with contextlib.suppress(OSError):
            for path in [each for each in directory.iterdir() if left.fullmatch(each.name)]:
                with contextlib.suppress(OSError), path.open("rb") as stream:
                    fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink()

    def path_of(self, name: str) -> Path:
        """Return the path of the file; `name` is its name if this is a directory."""
        return self._path / name if self._path.is_dir() else self._path

    def new(self, name: str) -> "NewFile":
        """Return the file that is to be written; `name` is its name if this is a directory."""
        return NewFile(self.path_of(name))

    @contextlib.contextmanager
    def open(self) -> Iterator[Opened]:
        """Open the backup."""
        with self._path.open("rb") as stream:
            yield Opened(stream, os.fstat(stream.fileno()).st_size, self._path.name)

    def found(self) -> list[Found]:
        """Return what the backups in the directory say of themselves. One that cannot be read has an error."""
        files = sorted(self._path.glob(f"*{SUFFIX}"))
        if not self._path.is_dir():
            raise NotADirectoryError(0, "is not a directory")
        found = []
        for file in files:
            try:
                with file.open("rb") as stream:
                    found.append(described(file.name, stream, os.fstat(stream.fileno()).st_size))
            except OSError as exc:
                found.append({"file": file.name, "bytes": None, "error": exc.strerror})
        return found


class NewFile:
    """A file that appears under its name when it is whole and durable, and replaces nothing. All raise OSError."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self.path = path
        self.size_bytes = 0
        self.is_published = False
        # A name of its own: of two that write the same file, the one that ends first wins, and the other is an error.
        self._partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}.partial")
        self._stream = open(  # noqa: SIM115 - closed by __exit__
            os.open(self._partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_MODE), "wb"
        )
        with contextlib.suppress(OSError):  # not every file system has locks; remove_left() leaves the file alone then
            fcntl.flock(self._stream, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._stream.close()  # writes what is buffered, which a full disk does not take
        finally:
            self._partial.unlink(missing_ok=True)

    def write(self, data: bytes) -> None:
        self._stream.write(data)
        self.size_bytes += len(data)

    def require_links(self) -> None:
        """Raise InvalidRequest if `publish` will fail, as the file system has no hard links."""
        link = self._partial.with_name(f"{self.path.name}.{secrets.token_hex(4)}.partial")
        try:
            os.link(self._partial, link)
        except OSError as exc:
            if exc.errno not in NO_LINKS:
                raise
            raise InvalidRequest(
                "invalid_request",
                f"{self.path.parent} is on a file system without hard links ({exc.strerror}), by which a backup gets "
                "its name once it is whole: name a directory of another one, and copy the file from there",
            ) from None
        finally:
            link.unlink(missing_ok=True)

    def publish(self) -> None:
        """Give the file its name; durable on return."""
        self._stream.flush()
        os.fsync(self._stream.fileno())
        os.link(self._partial, self.path)  # unlike a rename it replaces nothing
        directory = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
        self.is_published = True


def described(name: str, stream: BinaryIO, size_bytes: int) -> Found:
    """Return what the backup says of itself in its first frame. Raises OSError."""
    from keelmq.log.backup_frames import read_summary

    try:
        summary = read_summary(stream)
    except KeelMQError as exc:
        return {"file": name, "bytes": size_bytes, "error": exc.detail}
    fields = ("cluster_id", "cluster_uid", "node_id", "version", "created_ms", "index", "state_hash")
    return {"file": name, "bytes": size_bytes, **{field: getattr(summary, field) for field in fields}}
