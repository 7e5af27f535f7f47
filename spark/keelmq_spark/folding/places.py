"""Finds the message at an offset of a queue, which turns a committed range into messages.

A bounded cache holds the messages that were published last; the table `events` is behind it. Groups that are behind
commit range after range, so a look-up in the table also takes what follows. The answers do not depend on the content of
the caches.
"""

from array import array
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
BLOCKS_BYTES_MAX: Final = 1 << 30
"""Maximum memory of the looked-up ranges that are remembered; one for each queue that a group behind is reading."""
BLOCK_BYTES: Final = 10_000
"""Memory that a remembered range takes besides its rows, so that the number of empty ones is bounded, too."""

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
    offsets: Sequence[int]
    nodes: Any
    attributes: tuple[Any, ...]
    size_bytes: int

    def rows(self, begin: int, end: int) -> slice:
        """Return the positions of the rows at begin <= offset < end."""
        return slice(bisect_left(self.offsets, begin), bisect_left(self.offsets, end))


class Blocks:
    """Remembers several blocks of a queue, one for each group that is behind elsewhere, up to `bytes_max` for all
    queues; beyond it, the block used longest ago goes."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._blocks: OrderedDict[tuple[Place, int], Block] = OrderedDict()
        self._begins: dict[Place, list[int]] = {}

    def find(self, place: Place, begin: int, end: int) -> Block | None:
        """Return a block that has begin <= offset < end of a queue."""
        for first in self._begins.get(place, ()):
            block = self._blocks[place, first]
            if first <= begin and end <= block.end:
                self._blocks.move_to_end((place, first))
                return block
        return None

    def add(self, place: Place, block: Block) -> None:
        """Remember a block in place of those that a group has come to the end of with it."""
        for first in list(self._begins.get(place, ())):
            if first <= block.begin <= self._blocks[place, first].end:
                self._drop(place, first)
        self._blocks[place, block.begin] = block
        self._begins.setdefault(place, []).append(block.begin)
        self._bytes += block.size_bytes
        while self._bytes > self._bytes_max and len(self._blocks) > 1:
            self._drop(*next(iter(self._blocks)))

    def cut(self, place: Place, end: int) -> None:
        """Have no block of the queue tell of offsets from `end` on, which are published now."""
        for first in list(self._begins.get(place, ())):
            if end <= first:
                self._drop(place, first)
            elif end < self._blocks[place, first].end:
                self._blocks[place, first] = self._blocks[place, first]._replace(end=end)

    def forget(self, place: Place) -> None:
        for first in list(self._begins.get(place, ())):
            self._drop(place, first)

    def clear(self) -> None:
        self._blocks.clear()
        self._begins.clear()
        self._bytes = 0

    def _drop(self, place: Place, first: int) -> None:
        self._bytes -= self._blocks.pop((place, first)).size_bytes
        self._begins[place].remove(first)
        if not self._begins[place]:
            del self._begins[place]


class Places:
    def __init__(
        self,
        lookup: Lookup,
        cached_messages_max: int = CACHED_MESSAGES_MAX,
        blocks_bytes_max: int = BLOCKS_BYTES_MAX,
    ) -> None:
        self._lookup = lookup
        self._blocks = Blocks(blocks_bytes_max)
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
            self._blocks.cut((topic, queue), added[0].first)
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
            until = min(end, cached_from)
            block = self._block(place, begin, until)
            found = block.rows(begin, until)
            offsets, nodes = list(block.offsets[found]), block.nodes[found].to_pylist()
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
        cached_from = runs[0].first if runs else end
        if begin < cached_from:
            until = min(end, cached_from)
            block = self._block(place, begin, until)
            found = block.rows(begin, until)
            attributes += _rows([column[found] for column in block.attributes])
        for run in runs:
            first, last = max(begin, run.first), min(end, run.end)
            if first < last:
                attributes += _rows([column.slice(first - run.first, last - first) for column in run.attributes])
        return offsets, nodes, attributes

    def _block(self, place: Place, begin: int, end: int) -> Block:
        """Return a block that has begin <= offset < end, from the table if need be, and then with what follows."""
        block = self._blocks.find(place, begin, end)
        if block is None:
            until = max(end, begin + READ_AHEAD_MESSAGES)
            found = self._lookup(*place, begin, until).combine_chunks()  # DuckDB's have room to spare
            offsets = array("q", found["offset"].to_pylist())
            nodes = found["node_id"]
            attributes = tuple(_sparse(found[name]) for name in Attributes._fields)
            size_bytes = BLOCK_BYTES + 8 * len(offsets) + sum(column.nbytes for column in (nodes, *attributes))
            block = Block(begin, until, offsets, nodes, attributes, size_bytes)
            self._blocks.add(place, block)
        return block

    def forget(self, place: Place) -> None:
        """Forget the messages of a queue, because its topic was deleted."""
        self._blocks.forget(place)
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
