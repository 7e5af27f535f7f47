"""Properties that all tables share, whatever their format: partitions, times, sizes, and when they are tidied."""

from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from keelmq_spark.tables.schema import ADDED_COLUMNS as ADDED_COLUMNS
from keelmq_spark.tables.schema import EDGES, NODES
from keelmq_spark.views.events import EVENTS_ARROW

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
SORTED_BY: Final[dict[str, tuple[str, ...]]] = {"events": (), "nodes": ("node_id",), "edges": ("dst", "src")}
"""Columns by which the rows of a write are sorted. Ids that follow each other then share their beginnings; events stay
in the order of the log, which their ids, times and offsets share."""
ENCODINGS: Final[dict[str, dict[str, Any]]] = {
    "events": {
        "event_id": "DELTA_BYTE_ARRAY",
        **dict.fromkeys(("ts", "raft_index"), "DELTA_BINARY_PACKED"),
        **dict.fromkeys(("offset", "offset_end"), "BYTE_STREAM_SPLIT"),
        **dict.fromkeys(("message_id", "transaction_id", "causation_id", "key"), "PLAIN"),
        "trace_id": "DELTA_LENGTH_BYTE_ARRAY",
    },
    "nodes": {
        "node_id": "DELTA_BYTE_ARRAY",
        **dict.fromkeys(("first_ts", "last_ts"), "PLAIN"),
        **dict.fromkeys(("attrs.offset", "attrs.raft_index"), "DELTA_BINARY_PACKED"),
        **dict.fromkeys((f"attrs.{name}" for name in ("message_id", "transaction_id", "key")), "DELTA_BYTE_ARRAY"),
        "attrs.trace_id": "DELTA_LENGTH_BYTE_ARRAY",
    },
    "edges": {**dict.fromkeys(("src", "dst", "event_id"), "DELTA_BYTE_ARRAY"), "ts": "PLAIN"},
}
"""Encodings of columns by table, whose values hardly repeat: a dictionary of them takes twice the place. Other columns
have dictionaries. Sorted ids share their beginnings with those before, rising numbers have small differences, and times
that do not rise are copied from further before by zstd, which differences would hide from it."""
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
    """Split `rows` by partition, sort each part, and drop the column that the partition's name contains."""
    keys = [(column, "ascending") for column in SORTED_BY[name]]
    if not keys:
        return _parts(name, rows, open_rows)
    return [Part(value, part.sort_by(keys)) for value, part in _parts(name, rows, open_rows)]


def _parts(name: str, rows: Any, open_rows: Any) -> list[Part]:
    if name == "nodes":
        return [Part("false", rows), Part("true", open_rows)]
    if name != "edges":
        return [Part(None, rows)]
    kinds = sorted(pc.unique(rows["kind"]).to_pylist())
    return [Part(kind, rows.filter(pc.equal(rows["kind"], kind)).drop_columns(["kind"])) for kind in kinds]


def schema_of(name: str) -> Any:
    if name != "events":
        return NODES if name == "nodes" else EDGES
    return EVENTS_ARROW


def stored_schema(name: str) -> Any:
    """Return the columns of a table, that of its partition included."""
    columns, partition = schema_of(name), PARTITIONS[name]
    return columns if partition is None or partition in columns.names else columns.append(pa.field(OPEN, pa.bool_()))


def compact_after(name: str) -> int:
    """Return the number of writes after which a table is compacted: not all at the same commit, for short pauses."""
    return COMPACT_EVERY + COMPACT_EVERY // 3 * list(PARTITIONS).index(name)
