"""The place of a set of tables: a directory of this machine (directory.py), or a folder of an object store
(object_store.py).
"""

import re
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final, Protocol

from keelmq_spark.tables.directory import Directory
from keelmq_spark.tables.errors import TablesError
from keelmq_spark.tables.object_store import SCHEME, ObjectFolder, require_location

Place = str | Path
"""A directory, or s3://BUCKET/PREFIX."""
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
"""Beginning of a URL; one that went through a Path has one slash only."""


class Storage(Protocol):
    """Files under paths such as `events/part-1.parquet`. What is written survives the end of the process. All calls
    raise TablesError where a store refuses or cannot be reached, and OSError where a file system does.
    """

    @property
    def name(self) -> str:
        """The place as users name it, for messages."""

    def names(self, folder: str) -> list[str]:
        """Return the names of the files in a folder, sorted; none when there is no such folder."""

    def read(self, path: str) -> bytes:
        """Return the content of a file. Raises FileNotFoundError."""

    def write(self, path: str, data: bytes) -> None:
        """Write a file under a path that nobody else uses. A reader may see a part of it."""

    def create(self, path: str, data: bytes) -> None:
        """Make a file at once with all of its content. Raises FileExistsError when there is one; of several callers
        exactly one makes it.
        """

    def delete(self, path: str) -> None:
        """Remove a file, if there is one."""

    def write_rows(self, rows: Any, folder: str, name: str, table: str) -> tuple[str, int]:
        """Write rows as a Parquet file with the encodings and Bloom filters of `table`. Return the name that it got,
        which may be longer than `name`, and its size in bytes.
        """

    def lock(self) -> AbstractContextManager[object]:
        """Keep other jobs from writing the tables, where that is possible. Raises TablesInUse with the owner, and
        TablesError where nothing would tell two jobs apart.
        """

    def directory(self) -> Path:
        """Return the directory. Raises TablesError for an object store."""

    def checkpoints(self) -> Path:
        """Return a directory of this machine for the checkpoints of Spark."""

    def uri(self, folder: str) -> str:
        """Return the name of the folder for the package deltalake. Raises TablesError for an unreachable place."""

    def delta_options(self) -> dict[str, str] | None:
        """Return what the package deltalake needs to reach the place, with credentials that are valid now; None for a
        directory. Options that differ from earlier ones replace these.
        """


def storage_of(place: Place) -> Storage:
    """Return the storage at the place. Raises TablesError for a URL of another kind, and for a missing package."""
    require_place(place)
    return ObjectFolder(str(place)) if str(place).startswith(SCHEME) else Directory(Path(place).absolute())


def require_place(place: Place) -> None:
    """Raise TablesError for what is neither a directory nor a folder of an object store. Nothing is asked."""
    text = str(place)
    if text.startswith(SCHEME):
        require_location(text)
    elif _URL.match(text):
        scheme = text.partition(":")[0]
        raise TablesError(
            f"the tables cannot be at {scheme}: they are in a directory that this machine has mounted, or in an object "
            f"store at {SCHEME}BUCKET/PREFIX (docs/lineage.md)"
        )
