"""Writes batches of events, in the order of the log, into the three tables, and commits them together.

The commit is the only moment at which a batch takes effect: it names the tables, the state of the fold, the range of
the log and the cluster. A job that was killed before is undone, and goes on where the last commit ends.
"""

from datetime import datetime
from typing import Any

import pyarrow.compute as pc

from keelmq_spark.folding.fold import Fold
from keelmq_spark.folding.fold_state import FoldState, decode_state, encode_state
from keelmq_spark.folding.places import Places
from keelmq_spark.tables.errors import Gap, OtherLog
from keelmq_spark.tables.schema import EDGES
from keelmq_spark.tables.tables import Tables


class LineageSink:
    def __init__(self, tables: Tables, cluster_uid: str = "") -> None:
        """Undo what a killed job left, and continue `tables` with the log of the cluster `cluster_uid`, empty if that
        is not known. Raises OtherLog for tables of another cluster, and TablesError as the tables do.
        """
        commit = tables.commit
        known = commit.cluster_uid if commit is not None else ""
        if known and cluster_uid and known != cluster_uid:
            raise OtherLog(
                f"{tables.storage.name} has the lineage of the cluster {known}, and the servers are of the cluster "
                f"{cluster_uid}: name the servers of that cluster, or other tables"
            )
        self.tables = tables
        self._cluster_uid = known or cluster_uid
        stored = tables.recover()
        self._places = Places(tables.published)
        self.edges: Any = EDGES.empty_table()
        """Edges that the last write added to the tables."""
        self._fold = Fold(decode_state(stored) if stored is not None else FoldState(), self._places)

    @property
    def next_index(self) -> int:
        """Raft index of the first entry that is not in the tables; 0 for tables without a commit."""
        return self.tables.next_index

    def prune(self, before: datetime) -> None:
        """Remove what happened before `before` from the tables. Raises TablesInUse when another job writes them."""
        if self.tables.commit is not None:
            self.tables.prune(before)
            self._places.clear()

    def write(self, batch: Any, begin: int, end: int) -> int:
        """Add a batch: an Arrow table with the events of the entries begin <= index < end. Return the number of new
        events. Entries that the tables have are left out.

        The batch survives the end of the process. Raises Gap when it begins behind the end of the tables, and
        TablesInUse when another job writes the tables.
        """
        self.edges = EDGES.empty_table()
        done = self.next_index
        if done and begin > done:
            raise Gap(
                f"the batch begins at entry {begin} of the log, and {self.tables.storage.name} ends before {done}"
            )
        if end <= done:
            return 0
        self.tables.require_current()
        batch = batch.filter(pc.and_(pc.greater_equal(batch["raft_index"], done), pc.less(batch["raft_index"], end)))
        tables = self.tables
        if not batch.num_rows and tables.commit is not None:
            tables.add_commit(self._cluster_uid, max(begin, done), end, None)
            return 0
        last = end - 1
        tables.events.write(batch, last)
        folded = self._fold.fold(batch)
        tables.edges.write(folded.edges, last)
        tables.nodes.write(folded.nodes, last, folded.open_nodes)
        tables.add_commit(self._cluster_uid, max(begin, done), end, encode_state(self._fold.state))
        self.edges = folded.edges
        return int(batch.num_rows)
