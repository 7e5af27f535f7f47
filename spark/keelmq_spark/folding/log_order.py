"""The order of events: by entry of the log, and by number within the entry; and of offsets, which begin anew when a
topic is deleted and made again.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from keelmq_spark.folding.fold_state import key_of
from keelmq_spark.folding.rows import plain
from keelmq_spark.tables.schema import GROUP_TOPICS
from keelmq_spark.views.event_types import PUBLISH


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


def of_topics(batch: Any) -> Any:
    """Return a mask of the messages that are published in a topic that is no group's."""
    published = pc.and_(pc.equal(batch["type"], PUBLISH), pc.invert(of_groups(batch["topic"])))
    return pc.fill_null(published, False)


def of_groups(topics: Any) -> Any:
    retry, dead = (pc.starts_with(topics, prefix) for prefix in GROUP_TOPICS)
    return pc.or_(retry, dead)


def offsets_by_queue(published: Any) -> Iterator[tuple[str, int, int, int]]:
    """Yield topic, queue, and the least and the greatest offset of the published messages of each queue."""
    found = published.group_by(["topic", "queue"]).aggregate([("offset", "min"), ("offset", "max")])
    names = ("topic", "queue", "offset_min", "offset_max")
    return zip(*(found[name].to_pylist() for name in names), strict=True)


def made_again(published: Any, ends: Mapping[str, int], first_entry: int) -> int | None:
    """Return the first entry behind `first_entry`, with which the batch begins, that publishes messages below an
    earlier one of their queue, because the topic was deleted and made again; None when there is none. The messages are
    in the order of the log, and `ends` has the offsets behind those of earlier batches, by topic and queue.
    """
    if not published.num_rows:
        return None
    of = [("offset", name) for name in ("min", "max", "first", "last", "count")]
    queues = published.group_by(["topic", "queue"], use_threads=False).aggregate(of)
    found = [] if _are_dense(queues) else [_below_itself(published)]
    for topic, queue, least in zip(
        *(queues[name].to_pylist() for name in ("topic", "queue", "offset_min")), strict=True
    ):
        if least < (end := ends.get(key_of(topic, queue), 0)):
            found.append(_first_below(published, topic, queue, end))
    return min((entry for entry in found if entry is not None and entry > first_entry), default=None)


def _are_dense(queues: Any) -> bool:
    """Return whether each queue has each offset from its first to its last message once, which needs no sorting."""
    least, greatest, first, last, count = (
        queues[f"offset_{name}"] for name in ("min", "max", "first", "last", "count")
    )
    rising = pc.and_(pc.equal(least, first), pc.equal(greatest, last))
    dense = pc.all(pc.and_(rising, pc.equal(pc.subtract(greatest, least), pc.subtract(count, 1)))).as_py()
    return dense is not False


def _below_itself(published: Any) -> int | None:
    count = published.num_rows
    table = published.select(["topic", "queue", "offset", "raft_index"]).append_column("row", pa.arange(0, count, 1))
    table = table.sort_by([("topic", "ascending"), ("queue", "ascending"), ("row", "ascending")]).combine_chunks()
    before, after = table.slice(0, count - 1), table.slice(1)
    again = pc.and_(pc.equal(before["topic"], after["topic"]), pc.equal(before["queue"], after["queue"]))
    for compare, name in ((pc.greater_equal, "offset"), (pc.less, "raft_index")):
        again = pc.and_(again, compare(before[name], after[name]))
    found: int | None = pc.min(after["raft_index"].filter(again)).as_py()
    return found


def _first_below(published: Any, topic: str, queue: int, end: int) -> int | None:
    below = pc.and_(pc.equal(published["topic"], topic), pc.equal(published["queue"], queue))
    below = pc.and_(below, pc.less(published["offset"], end))
    found: int | None = pc.min(published["raft_index"].filter(below)).as_py()
    return found
