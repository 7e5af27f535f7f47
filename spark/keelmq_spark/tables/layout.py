"""Properties that all tables share, whatever their format: partitions, times, sizes, and when they are tidied."""

from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from keelmq_spark.tables.schema import ADDED_COLUMNS as ADDED_COLUMNS
from keelmq_spark.tables.schema import EDGES, NODES

COMPACT_EVERY: Final = 200
"""Number of writes of a table, by this job or earlier ones, after which its small files are compacted into large
ones."""
SMALL_FILE_BYTES: Final = 16 * 1024 * 1024
FILES_PER_WRITE: Final = {"events": 1, "nodes": 1, "edges": 5}
"""Files that a write usually adds to a table; a write of edges has a file for each kind that it has."""
TIMES: Final = {"events": "ts", "nodes": "last_ts", "edges": "ts"}
"""Columns with the time by which rows are pruned."""
STATED: Final = {"events": ["ts", "raft_index", "offset"], "nodes": ["first_ts", "last_ts"], "edges": ["ts"]}
"""Columns whose least and greatest value in each file a Delta table tells, so that queries skip files."""

LOOKED_UP: Final = {"events": ["message_id"], "nodes": ["node_id"], "edges": ["src", "dst"]}
"""Columns with a Bloom filter: a look-up reads only row groups that may contain the value."""
COMPACTED_LEVEL: Final = 9
"""Level of zstd for files that stay; new files, which a compaction replaces, have the fastest one."""
ENCODINGS: Final[dict[str, Any]] = {
    **dict.fromkeys(("event_id",), "DELTA_BYTE_ARRAY"),
    **dict.fromkeys(("ts", "first_ts", "last_ts", "raft_index", "offset", "offset_end"), "DELTA_BINARY_PACKED"),
    **dict.fromkeys(("attrs.offset", "attrs.raft_index"), "DELTA_BINARY_PACKED"),
    **dict.fromkeys(("node_id", "src", "dst", "message_id", "transaction_id", "causation_id", "key"), "PLAIN"),
    **dict.fromkeys(("attrs.message_id", "attrs.transaction_id", "attrs.key"), "PLAIN"),
}
"""Encodings of columns whose values hardly repeat: a dictionary of them takes twice the place. Other columns have
dictionaries. Sorted ids share their beginnings with those before, and rising numbers have small differences."""
OPEN: Final = "open"
PARTITIONS: Final[dict[str, str | None]] = {"events": None, "nodes": OPEN, "edges": "kind"}
"""Partition column by table. `open` of a node means that it may still change: the next batch replaces it."""


class Part(NamedTuple):
    """Rows of one partition of a table."""

    value: str | None
    rows: Any

    def folder(self, table: str) -> str:
        """Return the folder of the rows in the storage, `table` or one below it."""
        column = PARTITIONS[table]
        return table if column is None else f"{table}/{column}={self.value}"


def parts(name: str, rows: Any, open_rows: Any) -> list[Part]:
    """Split `rows` by partition, and drop the column that the partition's name contains."""
    if name == "nodes":
        return [Part("false", rows), Part("true", open_rows)]
    if name != "edges":
        return [Part(None, rows)]
    kinds = sorted(pc.unique(rows["kind"]).to_pylist())
    return [Part(kind, rows.filter(pc.equal(rows["kind"], kind)).drop_columns(["kind"])) for kind in kinds]


def schema_of(name: str) -> Any:
    if name != "events":
        return NODES if name == "nodes" else EDGES
    from keelmq_spark.views.events import EVENTS_ARROW  # imports PySpark, which readers of the tables do not need

    return EVENTS_ARROW


def stored_schema(name: str) -> Any:
    """Return the columns of a table, that of its partition included."""
    columns, partition = schema_of(name), PARTITIONS[name]
    return columns if partition is None or partition in columns.names else columns.append(pa.field(OPEN, pa.bool_()))


def compact_after(name: str) -> int:
    """Return the number of writes after which a table is compacted: not all at the same commit, for short pauses."""
    return COMPACT_EVERY + COMPACT_EVERY // 3 * list(PARTITIONS).index(name)
