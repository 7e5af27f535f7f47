"""What expires, and what of the log is needed, broken."""

from typing import Any

from store.limits import RETENTION_FOREVER_MS
from store.log_references import LogReferences
from store.topics import Topic, Topics
from tests.sim.threads import Running
from tests.sim.variant import Swap, mutant

_until, _set_start, _init = Topic.expires_until_ms, Topics.set_start, LogReferences.__init__


def expires_a_little_early(topic: Topic, clock_ms: int) -> int | None:
    """Messages go some hundred milliseconds before their retention is over."""
    return _until(topic, clock_ms + 400)


def expires_by_the_own_clock(topic: Topic, clock_ms: int) -> int | None:
    """Each node decides by its own clock what has expired, not by that of the entry."""
    return _until(topic, clock_ms if Running.node is None else Running.node._wall_ms())  # type: ignore[attr-defined]


def expires_whatever_the_topic_says(topic: Topic, clock_ms: int) -> int | None:
    """All topics keep their messages for half a second."""
    return None if topic.retention_ms == RETENTION_FOREVER_MS else clock_ms - 500


def uses_offsets_again(topics: Topics, topic: Topic, queue: int, start: int) -> None:
    """A queue that is empty begins at 0 again."""
    if start == topic.ends[queue]:
        start = topic.ends[queue] = 0
    _set_start(topics, topic, queue, start)


def needs_less_of_the_log(references: LogReferences, applied_index: int) -> int:
    """The first part of the log that something points at is not counted."""
    ranges = sorted(number for number, each in references._ranges.items() if each.count)
    return references._ranges[ranges[1]].first_index if len(ranges) > 1 else applied_index + 1


def forgets_after_a_restart_what_points_at_the_log(references: LogReferences, *arguments: Any) -> None:
    """A node that starts again counts from the last range of the log that something points at."""
    _init(references, *arguments)
    for number in sorted(references._ranges)[:-1]:
        del references._ranges[number]


MUTANTS = (
    mutant(15, Swap(Topic, "expires_until_ms", expires_a_little_early)),
    mutant(8, Swap(Topic, "expires_until_ms", expires_by_the_own_clock)),
    mutant(15, Swap(Topic, "expires_until_ms", expires_whatever_the_topic_says)),
    mutant(4, Swap(Topics, "set_start", uses_offsets_again)),
    mutant(15, Swap(LogReferences, "floor", needs_less_of_the_log)),
    mutant(15, Swap(LogReferences, "__init__", forgets_after_a_restart_what_points_at_the_log)),
)
