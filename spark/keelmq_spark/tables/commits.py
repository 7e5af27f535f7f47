"""The commit point of the lineage tables: one small file says what all tables hold, up to where, and of which log.

A batch is first written into the three tables and the state of the fold, and then committed with one record,
`_commits/<number>.json`. What no record names is undone by the next job and never read. A record is created, never
replaced: of two jobs that write the same tables, the second one to commit a number fails.
"""

import errno
import fcntl
import os
import re
import socket
import uuid
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self

import msgspec

Format = Literal["delta", "parquet"]
LAYOUT: Final = 1
"""Version of the records and of the layout that they describe."""
KEPT: Final = 16
"""Number of records that are kept; only the last one is read."""
_LOCK: Final = "_lock"
_URL: Final = re.compile(r"[a-z][a-z0-9+.-]+:/")
"""Beginning of a URL that was taken for a path, which has one slash only."""
_DIRECTORY: Final = "_commits"


class TablesError(Exception):
    """The tables cannot be written as asked. The message says why, and what to do."""


class TablesInUse(TablesError):
    """Another job writes the tables."""


class OtherLog(TablesError):
    """The tables, or the checkpoint of a query, belong to the log of another cluster."""


class Gap(TablesError):
    """A batch does not begin where the tables end."""


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """Content of the tables: every event of the entries before `end_index`, of the log of the cluster `cluster_uid`.

    `begin_index` is where the committed batch began. `tables` has the version of each Delta table; it is empty for
    Parquet. `state` names the file with the state of the fold. `cluster_uid` is empty while the cluster is not known.
    """

    layout: int = LAYOUT
    number: int
    format: Format
    cluster_uid: str
    begin_index: int
    end_index: int
    tables: dict[str, int]
    state: str
    schema: int = 1
    """Version of the tables' columns (schema.py). A version that does not know it reads and writes those it knows."""


class Commits:
    """Reads and adds the records under the path of the tables."""

    def __init__(self, path: Path) -> None:
        self._path = path / _DIRECTORY

    def last(self) -> Commit | None:
        """Return the newest record; None before the first. Raises TablesError for a record of a later layout."""
        while True:
            names = sorted(self._path.glob("*.json"))
            if not names:
                return None
            try:
                data = names[-1].read_bytes()
            except FileNotFoundError:  # replaced by many newer ones meanwhile
                continue
            try:
                layout = msgspec.json.decode(data, type=dict[str, object]).get("layout")
                if layout == LAYOUT:
                    return msgspec.json.decode(data, type=Commit)
            except msgspec.DecodeError as exc:
                raise TablesError(f"{names[-1]} cannot be read: {exc}") from exc
            raise TablesError(
                f"{names[-1]} has layout {layout}, this version knows {LAYOUT}: use the version that wrote it"
            )

    def state(self, commit: Commit) -> bytes:
        """Return the state of the fold as of the commit."""
        return (self._path / commit.state).read_bytes()

    def write_state(self, data: bytes) -> str:
        """Write a state of the fold, and return the name that a commit gives it."""
        self._path.mkdir(parents=True, exist_ok=True)
        name = f"{uuid.uuid4().hex}.state"
        (self._path / name).write_bytes(data)
        return name

    def add(self, commit: Commit) -> None:
        """Commit. Raises TablesInUse when another job has committed this number."""
        path = self._path / f"{commit.number:020d}.json"
        temporary = self._path / f".{uuid.uuid4().hex}.next"
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(commit)))
        try:
            _create(temporary, path)
        except FileExistsError:
            raise TablesInUse(f"{path} was written by another job: only one job may write a set of tables") from None
        finally:
            temporary.unlink(missing_ok=True)
        for old in sorted(self._path.glob("*.json"))[:-KEPT]:
            old.unlink(missing_ok=True)

    def remove_others(self, *commits: Commit) -> None:
        """Remove what no job needs any more: states other than those of `commits`, and files left by a kill."""
        kept = {commit.state for commit in commits}
        for left in (*self._path.glob("*.state"), *self._path.glob(".*.next")):
            if left.name not in kept:
                left.unlink(missing_ok=True)


def require_directory(path: Path) -> Path:
    """Return the path. Raises TablesError for a URL, which would become a directory `s3:` on this machine."""
    if _URL.match(str(path)):
        raise TablesError(
            f"{path}: the tables are in a directory that this machine has mounted, not in an object store; copy them "
            "there (docs/lineage.md)"
        )
    return path


def _create(temporary: Path, path: Path) -> None:
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
        require_directory(path).mkdir(parents=True, exist_ok=True)
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
