"""Finds the message at an offset of a queue, which turns a committed range into messages.

A bounded cache holds the messages that were published last; the table `events` is behind it. Groups that are behind
commit range after range, so a look-up in the table also takes what follows. The answers do not depend on the content of
the caches.
"""

from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from keelmq_spark.folding.filters import Attributes

CACHED_MESSAGES_MAX: Final = 2_000_000

READ_AHEAD_MESSAGES: Final = 100_000
"""Minimum number of offsets that a look-up in the table asks for, because the next commits of a group want them."""
BLOCKS_MAX: Final = 20
"""Maximum number of looked-up ranges that are remembered; one for each queue that a group behind is reading."""

Place = tuple[str, int]
"""A topic and a queue."""
Lookup = Callable[[str, int, int, int], Any]
"""Takes topic, queue, first offset and end; returns `offset`, `node_id`, `tag`, `key` and `properties` from the table
`events`, by offset."""
Selected = tuple[list[int], list[str], list[Attributes]]
"""Offsets, nodes and attributes of messages, of equal length."""


class Run(NamedTuple):
    """Messages at consecutive offsets from `first` on; `attributes` has a column for each of their attributes."""

    first: int
    nodes: Any
    attributes: tuple[Any, ...]

    @property
    def end(self) -> int:
        return self.first + len(self.nodes)


class Block(NamedTuple):
    """Rows that the table has of a queue at begin <= offset < end, by offset."""

    begin: int
    end: int
    offsets: list[int]
    nodes: list[str]
    found: Any
    """The columns of the table."""


class Places:
    def __init__(self, lookup: Lookup, cached_messages_max: int = CACHED_MESSAGES_MAX) -> None:
        self._lookup = lookup
        self._blocks: OrderedDict[Place, Block] = OrderedDict()
        self._cached_max = cached_messages_max
        self._cached = 0
        self._runs: OrderedDict[Place, deque[Run]] = OrderedDict()

    def add(self, published: Any, nodes: Any) -> None:
        """Remember the places of messages: rows of the view `events`, and the node of each."""
        names = ["topic", "queue", "offset", *Attributes._fields]
        table = published.select(names).append_column("node", pa.chunked_array([nodes]))
        table = table.sort_by([("topic", "ascending"), ("queue", "ascending"), ("offset", "ascending")])
        counts = table.group_by(["topic", "queue"], use_threads=False).aggregate([("offset", "count")])
        begin = 0
        for topic, queue, count in zip(*(counts[name].to_pylist() for name in counts.column_names), strict=True):
            part = table.slice(begin, count)
            begin += count
            runs = self._runs.setdefault((topic, queue), deque())
            self._runs.move_to_end((topic, queue))
            added = list(_runs(part))
            block = self._blocks.get((topic, queue))
            if block is not None and added[0].first < block.end:  # it does not have these messages
                del self._blocks[topic, queue]
            runs.extend(added)
            self._cached += count
        while self._cached > self._cached_max:
            self._drop_oldest()

    def between(self, place: Place, begin: int, end: int) -> Any:
        """Return the offsets and nodes of the known messages at begin <= offset < end, as two lists of equal length."""
        offsets: list[int] = []
        nodes: list[str] = []
        runs = self._runs.get(place, ())
        cached_from = runs[0].first if runs else end
        if begin < cached_from:
            offsets, nodes = self._looked_up(place, begin, min(end, cached_from))
        for run in runs:
            first, last = max(begin, run.first), min(end, run.end)
            if first < last:
                offsets += range(first, last)
                nodes += run.nodes.slice(first - run.first, last - first).to_pylist()
        return offsets, nodes

    def selectable(self, place: Place, begin: int, end: int) -> Selected:
        """Return what `between` does, and the attributes of the messages that a filter may read."""
        offsets, nodes = self.between(place, begin, end)
        attributes: list[Attributes] = []
        runs = self._runs.get(place, ())
        if begin < (runs[0].first if runs else end):
            block = self._blocks[place]
            at = bisect_left(block.offsets, begin)
            count = bisect_left(block.offsets, min(end, runs[0].first if runs else end)) - at
            attributes += _rows([block.found[name].slice(at, count) for name in Attributes._fields])
        for run in runs:
            first, last = max(begin, run.first), min(end, run.end)
            if first < last:
                attributes += _rows([column.slice(first - run.first, last - first) for column in run.attributes])
        return offsets, nodes, attributes

    def _looked_up(self, place: Place, begin: int, end: int) -> tuple[list[int], list[str]]:
        """Return the messages from the table, by way of a block that goes further."""
        block = self._blocks.pop(place, None)
        if block is None or begin < block.begin or end > block.end:
            until = max(end, begin + READ_AHEAD_MESSAGES)
            found = self._lookup(*place, begin, until)
            block = Block(begin, until, found["offset"].to_pylist(), found["node_id"].to_pylist(), found)
        self._blocks[place] = block
        if len(self._blocks) > BLOCKS_MAX:
            self._blocks.popitem(last=False)
        part = slice(bisect_left(block.offsets, begin), bisect_left(block.offsets, end))
        return block.offsets[part], block.nodes[part]

    def forget(self, place: Place) -> None:
        """Forget the messages of a queue, because its topic was deleted."""
        self._blocks.pop(place, None)
        self._cached -= sum(len(run.nodes) for run in self._runs.pop(place, ()))

    def clear(self) -> None:
        """Forget everything, because the table has lost messages."""
        self._blocks.clear()
        self._runs.clear()
        self._cached = 0

    def _drop_oldest(self) -> None:
        """Drop the oldest run of the queue written to longest ago; an active queue keeps its newest run."""
        place, runs = next(iter(self._runs.items()))
        if runs:
            self._cached -= len(runs.popleft().nodes)
        if not runs:
            del self._runs[place]
        else:
            self._runs.move_to_end(place)


def _rows(columns: Sequence[Any]) -> Iterator[Attributes]:
    return map(Attributes, *(column.to_pylist() for column in columns))


def _runs(part: Any) -> Iterator[Run]:
    offsets, nodes = part["offset"], part["node"].combine_chunks()
    attributes = tuple(_sparse(part[name].combine_chunks()) for name in Attributes._fields)
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    if last - first + 1 == len(offsets):
        yield Run(first, nodes, attributes)
        return
    begin, values = 0, offsets.to_pylist()
    for at in range(1, len(values) + 1):
        if at == len(values) or values[at] != values[at - 1] + 1:
            sliced = tuple(column.slice(begin, at - begin) for column in attributes)
            yield Run(values[begin], nodes.slice(begin, at - begin), sliced)
            begin = at


def _sparse(column: Any) -> Any:
    """Return the column, and a column without any value in a form that takes no memory."""
    return pa.nulls(len(column)) if column.null_count == len(column) else column


def node_ids(topics: Any, message_ids: Any) -> Any:
    """Return `message:<topic>/<id>` for every row."""
    ids = pc.binary_join_element_wise(pc.binary_join_element_wise("message:", topics, ""), message_ids, "/")
    return ids.combine_chunks() if isinstance(ids, pa.ChunkedArray) else ids
