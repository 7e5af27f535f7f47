"""The order of events: by entry of the log, and by number within the entry."""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from keelmq_spark.folding.rows import plain


def in_log_order(batch: Any) -> Any:
    """Return the batch sorted by entry, and by number within the entry; a sorted batch is returned unchanged."""
    numbers = pc.cast(pc.list_element(pc.split_pattern(batch["event_id"], ":"), 2), pa.int64())
    indexes = plain(batch["raft_index"])
    numbers = plain(numbers)
    count = len(indexes)
    if count < 2:
        return batch
    index_before, index, number_before, number = (
        part for column in (indexes, numbers) for part in (column.slice(0, count - 1), column.slice(1))
    )
    ordered = pc.or_(
        pc.less(index_before, index), pc.and_(pc.equal(index_before, index), pc.less(number_before, number))
    )
    if pc.all(ordered).as_py():
        return batch
    keys = pa.table({"index": indexes, "number": numbers})
    order = pc.sort_indices(keys, sort_keys=[("index", "ascending"), ("number", "ascending")])
    return batch.take(order)
