"""Writes batches of events, in the order of the log, and keeps the three tables complete up to the same index.

The order of the writes makes a kill harmless: events, edges, nodes, and last the state of the fold. A repeated batch is
folded from the same state as before, and each table takes only rows that it lacks.
"""

from typing import Any

import pyarrow.compute as pc

from keelmq_spark.fold import Fold
from keelmq_spark.fold_state import FoldState, decode_state, encode_state
from keelmq_spark.places import Places
from keelmq_spark.tables import Tables


class LineageSink:
    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        stored = tables.read_state()
        self._fold = Fold(decode_state(stored) if stored is not None else FoldState(), Places(tables.published))

    @property
    def raft_index(self) -> int:
        """Raft index up to which all tables are complete."""
        return self._fold.state.raft_index

    def write(self, batch: Any) -> int:
        """Add a batch of events (an Arrow table) and return the number of new events.

        The events survive the end of the process."""
        done = self.raft_index
        batch = batch.filter(pc.greater(batch["raft_index"], done))
        if not batch.num_rows:
            return 0
        last = pc.max(batch["raft_index"]).as_py()
        tables = self.tables
        tables.events.write(_behind(batch, tables.events.raft_index), last)
        folded = self._fold.fold(batch)
        tables.edges.write(folded.edges, last)
        tables.nodes.write(folded.nodes, last, folded.open_nodes)
        tables.write_state(encode_state(self._fold.state), last)
        return int(batch.num_rows)


def _behind(batch: Any, raft_index: int) -> Any:
    return batch.filter(pc.greater(batch["raft_index"], raft_index)) if raft_index else batch
