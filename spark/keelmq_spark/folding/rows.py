"""Collects rows of the tables: whole columns from the fast path, single ones from the slow path, which takes events
row by row.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import astuple

from keelmq_spark.folding.fold_state import NodeRow
from keelmq_spark.tables.schema import ATTRIBUTES, EDGES, MESSAGE, NODES


class Row(NamedTuple):
    """An event on the slow path; `us` is its time in microseconds."""

    event_id: str
    us: int
    type: str
    message_id: str
    transaction_id: str
    topic: str
    queue: int
    offset: int
    offset_end: int
    group: str
    client: str | None
    attempt: int | None
    trace_id: str | None
    causation_id: str | None
    key: str | None
    raft_index: int
    bytes: int | None
    filter: str | None


def single_rows(events: Any) -> Iterator[Row]:
    """Yield the rows of a table of events."""
    table = events.append_column("us", pc.cast(events["ts"], pa.int64())).select(list(Row._fields))
    return map(Row, *(column.to_pylist() for column in table.columns))


def message_row(row: Row, node_id: str, state: str) -> NodeRow:
    """Return the node of the event's message, which has no offset yet."""
    return NodeRow(
        node_id, MESSAGE, row.us, row.us, state, row.message_id, row.topic, row.queue, None,
        row.transaction_id, row.group, row.client, None, row.trace_id, row.key, row.bytes, row.raft_index,
    )  # fmt: skip


class Edges:
    def __init__(self) -> None:
        self._parts: list[Any] = []
        self._single: list[tuple[str, str, str, int, str]] = []
        self._repeated: tuple[list[Any], ...] = ([], [], [], [], [])

    def add(self, src: str, dst: str, kind: str, us: int, event_id: str) -> None:
        self._single.append((src, dst, kind, us, event_id))

    def add_all(self, srcs: Sequence[str], dst: str, kind: str, us: int, event_id: str) -> None:
        """Add the same edge from many nodes."""
        self._repeated[0].extend(srcs)
        for column, value in zip(self._repeated[1:], (dst, kind, us, event_id), strict=True):
            column.extend([value] * len(srcs))

    def add_columns(self, src: Any, dst: Any, kind: str, ts: Any, event_id: Any) -> None:
        columns = [src, dst, constant(kind, len(src)), ts, event_id]
        self._parts.append(pa.table([plain(column) for column in columns], schema=EDGES))

    def table(self) -> Any:
        single = zip(*self._single, strict=True) if self._single else ([] for _ in EDGES)
        rows = [
            pa.table([pa.array(values, field.type) for values, field in zip(columns, EDGES, strict=True)], schema=EDGES)
            for columns in (single, self._repeated)
        ]
        return pa.concat_tables([*self._parts, *rows])


def nodes_table(rows: Iterable[NodeRow]) -> Any:
    """Return the rows as a table; `NodeRow` has the columns of `nodes`, and then the attributes, in their order."""
    columns = list(zip(*map(astuple, rows), strict=True)) or [()] * len(NodeRow.__struct_fields__)
    own = len(NODES) - 1
    attributes = [pa.array(values, field.type) for values, field in zip(columns[own:], ATTRIBUTES, strict=True)]
    arrays = [pa.array(values, NODES.field(at).type) for at, values in enumerate(columns[:own])]
    return pa.table([*arrays, pa.StructArray.from_arrays(attributes, fields=list(ATTRIBUTES))], schema=NODES)


def constant(value: str, length: int) -> Any:
    return pa.repeat(pa.scalar(value, pa.string()), length)


def joined(prefix: str, names: Any) -> Any:
    return pc.binary_join_element_wise(prefix, names, "")


def plain(column: Any) -> Any:
    """Return one array; a chunked column is combined."""
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
