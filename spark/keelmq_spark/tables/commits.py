"""The commit point of the lineage tables: one small file says what all tables hold, up to where, and of which log.

A batch is first written into the three tables and the state of the fold, and then committed with one record,
`_commits/<number>.json`. What no record names is undone by the next job and never read. A record is created, never
replaced: of two jobs that write the same tables, the second one to commit a number fails.
"""

import uuid
from collections.abc import Collection, Sequence
from typing import Final, Literal

import msgspec

from keelmq_spark.tables.directory import is_temporary
from keelmq_spark.tables.errors import TablesError, TablesInUse
from keelmq_spark.tables.storage import Storage

Format = Literal["delta", "parquet"]
LAYOUT: Final = 1
"""Version of the records and of the layout that they describe."""
KEPT: Final = 16
"""Number of records that are kept; only the last one is read."""
_FOLDER: Final = "_commits"
_RECORD: Final = ".json"
_STATE: Final = ".state"


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
    """Reads and adds the records of the tables in a storage."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def last(self) -> Commit | None:
        """Return the newest record; None before the first. Raises TablesError for a record of a later layout."""
        while True:
            names = [name for name in self._storage.names(_FOLDER) if name.endswith(_RECORD)]
            if not names:
                return None
            path = _path(names[-1])
            try:
                data = self._storage.read(path)
            except FileNotFoundError:  # replaced by many newer ones meanwhile
                continue
            shown = f"{self._storage.name}/{path}"
            try:
                layout = msgspec.json.decode(data, type=dict[str, object]).get("layout")
                if layout == LAYOUT:
                    return msgspec.json.decode(data, type=Commit)
            except msgspec.DecodeError as exc:
                raise TablesError(f"{shown} cannot be read: {exc}") from exc
            raise TablesError(
                f"{shown} has layout {layout}, this version knows {LAYOUT}: use the version that wrote it"
            )

    def state(self, commit: Commit) -> bytes:
        """Return the state of the fold as of the commit."""
        return self._storage.read(_path(commit.state))

    def write_state(self, data: bytes) -> str:
        """Write a state of the fold, and return the name that a commit gives it."""
        name = f"{uuid.uuid4().hex}{_STATE}"
        self._storage.write(_path(name), data)
        return name

    def add(self, commit: Commit, before: Commit | None) -> None:
        """Commit, and remove files that no job needs any more: records before the last KEPT records, states except of
        this commit and of the preceding commit `before`, and files left by a killed job.

        Raises TablesInUse when another job has committed this number.
        """
        path = _path(f"{commit.number:020d}{_RECORD}")
        # A job that takes over from here on writes a state that this list does not have.
        present = self._storage.names(_FOLDER)
        try:
            self._storage.create(path, msgspec.json.format(msgspec.json.encode(commit)))
        except FileExistsError:
            raise TablesInUse(
                f"{self._storage.name}/{path} was written by another job: only one job may write a set of tables"
            ) from None
        for name in _unneeded(present, {commit.state, before.state if before is not None else commit.state}):
            self._storage.delete(_path(name))


def _unneeded(present: Sequence[str], states: Collection[str]) -> list[str]:
    """Return what goes when a record is added to those that are present."""
    records = [name for name in present if name.endswith(_RECORD)]
    others = [name for name in present if name.endswith(_STATE) and name not in states]
    return [*records[: 1 - KEPT], *others, *filter(is_temporary, present)]


def _path(name: str) -> str:
    return f"{_FOLDER}/{name}"
