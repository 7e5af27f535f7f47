"""The three tables at one place, Delta or Parquet files, which change together, with a commit (commits.py).

Rows that were written and not committed are undone when a job begins (`recover`), and readers never see them. So a job
that was killed at any point goes on from the last commit, wherever its batches begin and end.
"""

from datetime import datetime
from typing import Any, Protocol

from keelmq_spark.tables.commits import Commit, Commits, Format
from keelmq_spark.tables.delta import DeltaFiles
from keelmq_spark.tables.errors import TablesError, TablesInUse
from keelmq_spark.tables.parquet import ParquetFiles
from keelmq_spark.tables.published import Rows, published_in
from keelmq_spark.tables.schema import SCHEMA as SCHEMA
from keelmq_spark.tables.storage import Place, storage_of


class Table(Protocol):
    """One table, as of the last commit and the writes since then."""

    @property
    def version(self) -> int | None:
        """Version that a commit names; None where the names of the files say which of them are committed."""

    def recover(self) -> None:
        """Remove uncommitted files."""

    def write(self, rows: Any, raft_index: int, open_rows: Any = None) -> None:
        """Add `rows`, the last of them of the entry `raft_index`, and replace the open rows if `open_rows` is given.

        Raises TablesInUse when another job has written the table."""

    def committed(self) -> None:
        """Note that what was written is committed, and remove or combine files where that is due."""

    def files(self) -> list[str]:
        """Return the Parquet files that make up the table now, as paths or as URLs."""

    def rows(self) -> Rows:
        """Return what DuckDB reads of the table now."""

    def compact(self) -> None:
        """Combine many small files into few large ones; the rows stay the same."""

    def prune(self, before: datetime) -> int:
        """Remove rows whose time is before `before`, except open ones, and return their number."""


class Tables:
    """Owns the three tables and their commits at a place: a directory, or s3://BUCKET/PREFIX. `format` applies to new
    tables.
    """

    def __init__(self, place: Place, format: Format = "delta") -> None:
        """Raise TablesError for a place that cannot have such tables, or be reached."""
        self.storage = storage_of(place)
        self._commits = Commits(self.storage)
        self.commit: Commit | None = self._commits.last()
        """The last commit; None before the first."""
        self.format = self.commit.format if self.commit is not None else format
        self.events = self._table("events")
        self.nodes = self._table("nodes")
        self.edges = self._table("edges")

    def _table(self, name: str) -> Table:
        if self.format == "delta":
            return DeltaFiles(self.storage, name, self.commit.tables[name] if self.commit is not None else None)
        return ParquetFiles(self.storage.directory(), name, self.next_index - 1)

    @property
    def next_index(self) -> int:
        """Raft index of the first entry that is not in the tables; 0 before the first commit."""
        return self.commit.end_index if self.commit is not None else 0

    @property
    def all(self) -> dict[str, Table]:
        return {"events": self.events, "nodes": self.nodes, "edges": self.edges}

    def recover(self) -> bytes | None:
        """Undo what was not committed, and return the state of the last commit; None before the first.

        Raises TablesError for tables that an earlier version made."""
        if self.commit is None and any(name.endswith(".state") for name in self.storage.names("_state")):
            raise TablesError(
                f"{self.storage.name} has tables of an earlier version, which do not say of which log they are: name "
                "another directory, and the job makes them anew from the log"
            )
        for table in self.all.values():
            table.recover()
        return self._commits.state(self.commit) if self.commit is not None else None

    def is_current(self) -> bool:
        """Return whether nobody has committed since the last commit."""
        return self._commits.last() == self.commit

    def require_current(self) -> None:
        """Raise TablesInUse when another job has committed since the last commit."""
        if not self.is_current():
            raise TablesInUse(f"{self.storage.name} was changed by another job: only one job may write a set of tables")

    def add_commit(self, cluster_uid: str, begin_index: int, end_index: int, state: bytes | None) -> None:
        """Commit everything that was written. `state` is None when it is that of the last commit.

        Raises TablesInUse when another job has committed since the last commit."""
        before = self.commit
        if state is not None:
            state_name = self._commits.write_state(state)
        elif before is not None:
            state_name = before.state
        else:
            raise ValueError("the first commit needs a state")
        versions = {name: table.version for name, table in self.all.items()}
        self.commit = Commit(
            number=before.number + 1 if before is not None else 1,
            format=self.format,
            cluster_uid=cluster_uid,
            begin_index=begin_index,
            end_index=end_index,
            tables={name: version for name, version in versions.items() if version is not None},
            state=state_name,
            schema=max(SCHEMA, before.schema if before is not None else SCHEMA),
        )
        self._commits.add(self.commit, before)
        for table in self.all.values():
            table.committed()

    def compact(self) -> None:
        """Combine many small files into few large ones. Raises TablesInUse when another job writes the tables."""
        self.require_current()
        for table in self.all.values():
            table.compact()
        self._commit_rewritten()

    def prune(self, before: datetime) -> dict[str, int]:
        """Remove what happened before `before`: events, edges, and nodes that no longer change. Return the number of
        removed rows by table. Raises TablesInUse when another job writes the tables.
        """
        self.require_current()
        removed = {name: table.prune(before) for name, table in self.all.items()}
        self._commit_rewritten()
        return removed

    def _commit_rewritten(self) -> None:
        if self.commit is not None:
            self.add_commit(self.commit.cluster_uid, self.commit.end_index, self.commit.end_index, None)

    def published(self, topic: str, queue: int, begin: int, end: int) -> Any:
        """Return `offset`, `node_id`, `tag`, `key` and `properties` of the messages at begin <= offset < end, from the
        table `events`.
        """
        return published_in(self.events.rows(), topic, queue, begin, end)
