"""Finds the message at an offset of a queue, which turns a committed range into messages.

A bounded cache holds the messages that were published last; the table `events` is behind it. The answers do not depend
on the content of the cache.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

CACHED_MESSAGES_MAX: Final = 2_000_000

Place = tuple[str, int]
"""A topic and a queue."""
Lookup = Callable[[str, int, int, int], Any]
"""Takes topic, queue, first offset and end; returns `offset` and `node_id` from the table `events`, by offset."""


class Run(NamedTuple):
    """Messages at consecutive offsets from `first` on."""

    first: int
    nodes: Any

    @property
    def end(self) -> int:
        return self.first + len(self.nodes)


class Places:
    def __init__(self, lookup: Lookup, cached_messages_max: int = CACHED_MESSAGES_MAX) -> None:
        self._lookup = lookup
        self._cached_max = cached_messages_max
        self._cached = 0
        self._runs: OrderedDict[Place, deque[Run]] = OrderedDict()

    def add(self, topics: Any, queues: Any, offsets: Any, nodes: Any) -> list[Place]:
        """Remember the places of messages. Returns the queues that begin anew, because their topic was deleted."""
        table = pa.table({"topic": topics, "queue": queues, "offset": offsets, "node": nodes})
        table = table.sort_by([("topic", "ascending"), ("queue", "ascending"), ("offset", "ascending")])
        counts = table.group_by(["topic", "queue"], use_threads=False).aggregate([("offset", "count")])
        anew, begin = [], 0
        for topic, queue, count in zip(*(counts[name].to_pylist() for name in counts.column_names), strict=True):
            part = table.slice(begin, count)
            begin += count
            runs = self._runs.setdefault((topic, queue), deque())
            self._runs.move_to_end((topic, queue))
            added = list(_runs(part["offset"], part["node"].combine_chunks()))
            if runs and added[0].first < runs[-1].end:
                anew.append((topic, queue))
                self._forget((topic, queue))
            runs.extend(added)
            self._cached += count
        while self._cached > self._cached_max:
            self._drop_oldest()
        return anew

    def between(self, place: Place, begin: int, end: int) -> Any:
        """Return the offsets and nodes of the known messages at begin <= offset < end, as two lists of equal length."""
        offsets: list[int] = []
        nodes: list[str] = []
        runs = self._runs.get(place, ())
        cached_from = runs[0].first if runs else end
        if begin < cached_from:
            found = self._lookup(*place, begin, min(end, cached_from))
            offsets += found["offset"].to_pylist()
            nodes += found["node_id"].to_pylist()
        for run in runs:
            first, last = max(begin, run.first), min(end, run.end)
            if first < last:
                offsets += range(first, last)
                nodes += run.nodes.slice(first - run.first, last - first).to_pylist()
        return offsets, nodes

    def _forget(self, place: Place) -> None:
        runs = self._runs[place]
        self._cached -= sum(len(run.nodes) for run in runs)
        runs.clear()

    def _drop_oldest(self) -> None:
        """Drop the oldest run of the queue written to longest ago; an active queue keeps its newest run."""
        place, runs = next(iter(self._runs.items()))
        if runs:
            self._cached -= len(runs.popleft().nodes)
        if not runs:
            del self._runs[place]
        else:
            self._runs.move_to_end(place)


def _runs(offsets: Any, nodes: Any) -> Iterator[Run]:
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    if last - first + 1 == len(offsets):
        yield Run(first, nodes)
        return
    begin, values = 0, offsets.to_pylist()
    for at in range(1, len(values) + 1):
        if at == len(values) or values[at] != values[at - 1] + 1:
            yield Run(values[begin], nodes.slice(begin, at - begin))
            begin = at


def node_ids(topics: Any, message_ids: Any) -> Any:
    """Return `message:<topic>/<id>` for every row."""
    ids = pc.binary_join_element_wise(pc.binary_join_element_wise("message:", topics, ""), message_ids, "/")
    return ids.combine_chunks() if isinstance(ids, pa.ChunkedArray) else ids
