"""Counts messages and bytes by topic, with a bounded number of series.

The first SERIES_MAX topics that are counted have a series each. All further ones are counted together, in the series
OTHERS, so that the sum over all series is always the whole. A topic never moves from one to the other: a counter that
fell would look like a restart.
"""

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily

SERIES_MAX: Final = 1_000
"""Maximum number of objects of one kind that have a series of their own, on one node."""
TOPICS_PER_STEP: Final = 1_000
"""Number of topics that are looked at in one step, which takes 0.2 ms."""
OTHERS: Final = "(others)"
"""Label of the series in which all further objects are summed. No topic and no group can have this name."""


class TopicCounters:
    """Counts the messages of topics, and their bytes, for one kind of event. Use on the event loop only."""

    def __init__(self, series_max: int = SERIES_MAX) -> None:
        self._series_max = series_max
        self._own: dict[str, list[int]] = {}
        self._others = [0, 0]
        self._summed: dict[str, None] = {}
        """Topics that are counted in `_others`: a dict used as a set."""

    @property
    def summed(self) -> int:
        """Number of topics without a series of their own."""
        return len(self._summed)

    def add(self, topic: str, messages: int, size_bytes: int) -> None:
        counts = self._own.get(topic)
        if counts is None:
            counts = self._counts_of_new(topic)
        counts[0] += messages
        counts[1] += size_bytes

    def _counts_of_new(self, topic: str) -> list[int]:
        if topic in self._summed or len(self._own) >= self._series_max:
            self._summed[topic] = None
            return self._others
        return self._own.setdefault(topic, [0, 0])

    def forget_deleted(self, exists: Callable[[str], bool]) -> Iterator[None]:
        """End the series of topics that do not exist any more, in steps between which other work may run and topics may
        be counted. New topics get their room.
        """
        for counted in (self._own, self._summed):
            for number, topic in enumerate(tuple(counted), start=1):
                if not exists(topic):
                    counted.pop(topic, None)
                if number % TOPICS_PER_STEP == 0:
                    yield
            yield

    def families(self, name: str, messages: str, size_bytes: str) -> Iterator[CounterMetricFamily]:
        """Yield the counters `{name}_messages` and `{name}_bytes`, each with its description."""
        for place, (unit, description) in enumerate((("messages", messages), ("bytes", size_bytes))):
            family = CounterMetricFamily(f"{name}_{unit}", description, labels=["topic"])
            for topic, counts in self._own.items():
                family.add_metric([topic], counts[place])
            if self._summed or any(self._others):
                family.add_metric([OTHERS], self._others[place])
            yield family
