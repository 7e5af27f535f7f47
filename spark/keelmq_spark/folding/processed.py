"""The messages that a group has processed, by ranges of offsets and by the filters in force."""

from collections.abc import Collection, Iterator, Sequence

from keelmq_spark.folding import intervals
from keelmq_spark.folding.filters import Attributes, selection
from keelmq_spark.folding.fold_state import FILTERS_MAX, FoldState, key_of
from keelmq_spark.folding.places import Place, Places


def newly_processed(
    state: FoldState,
    places: Places,
    key: str,
    place: Place,
    begin: int,
    end: int,
    filter: str | None,
    unprocessed: Collection[int],
) -> Iterator[Sequence[str]]:
    """Note that the group passed begin <= offset < end of a queue, except for the offsets `unprocessed`.

    Yields the nodes of the messages that it selects and has not processed before; `key` is the group, the topic and the
    queue.
    """
    consumed = state.consumed.setdefault(key, [])
    by_filter = state.selected.get(key, {})
    if filter is not None:
        by_filter = state.selected.setdefault(key, by_filter)
        if filter not in by_filter and len(by_filter) >= FILTERS_MAX:
            del by_filter[next(iter(by_filter))]
    passed = consumed if filter is None else by_filter.setdefault(filter, [])
    selects = selection(filter) if filter is not None else None
    for first, last in intervals.missing(passed, begin, end):
        if not by_filter:
            offsets, nodes = places.between(place, first, last)
            yield [n for at, n in zip(offsets, nodes, strict=True) if at not in unprocessed] if unprocessed else nodes
            continue
        yield [
            n
            for at, n, message in zip(*places.selectable(place, first, last), strict=True)
            if at not in unprocessed
            and (selects is None or selects(message))
            and not was_processed(state, key, at, message)
        ]
    intervals.add_except(passed, begin, end, unprocessed)


def was_processed(state: FoldState, key: str, offset: int, message: Attributes) -> bool:
    """Return whether the group has processed the message; `key` is the group, the topic and the queue."""
    if intervals.has(state.consumed.get(key, []), offset):
        return True
    by_filter = state.selected.get(key, {}).items()
    return any(intervals.has(ranges, offset) and selection(filter)(message) for filter, ranges in by_filter)


def is_news(state: FoldState, places: Places, group: str, topic: str, queue: int, offset: int) -> bool:
    """Note that the group has processed the message at this place. Returns False when it had before."""
    key = key_of(group, topic, queue)
    consumed = state.consumed.setdefault(key, [])
    new = not intervals.has(consumed, offset)
    if new and key in state.selected:
        messages = places.selectable((topic, queue), offset, offset + 1)[2]
        new = not any(was_processed(state, key, offset, message) for message in messages)
    intervals.add(consumed, offset, offset + 1)
    return new


def forget_processed(state: FoldState, group: str, topic: str, queue: int, offset: int) -> None:
    """Note that the group gave up the message at this place: that it had processed it before, until a reset, counts for
    nothing, and when it processes the message again that is news.
    """
    key = key_of(group, topic, queue)
    for ranges in (state.consumed.get(key, []), *state.selected.get(key, {}).values()):
        intervals.remove(ranges, offset)
