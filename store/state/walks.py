"""Walks through all topics or queues in steps, in search of those where something is due.

A walk is an iterator that yields its findings, and None after each step: its caller lets the event loop run then.
Topics may be created, changed and deleted meanwhile; a queue that exists during the whole walk is visited once. One
look is enough for a topic whose oldest message is too young, however many queues it has.
"""

from collections.abc import Callable, Iterator
from typing import Final

from store.messages.queues import Queues
from store.messages.topics import Topic, Topics
from store.state.retention_rules import RetentionRules

STEP: Final = 128
"""Queues, or topics, that are visited in one step: at worst an index seek each, two milliseconds in all."""


class Walks:
    def __init__(self, topics: Topics, queues: Queues, rules: RetentionRules) -> None:
        self._topics = topics
        self._queues = queues
        self._rules = rules
        self.steps = 0
        """Number of steps of all walks since the start of the process."""

    def own_topics(self) -> Iterator[Topic | None]:
        """Yield the system's topics and the groups' own."""
        name: str | None = None
        while page := self._topics.own_after(name, STEP):
            for topic in page:
                if self._topics.by_id(topic.id) is topic:
                    yield topic
            name = page[-1].name
            self.steps += 1
            yield None

    def queues(self, wanted: Callable[[Topic], bool]) -> Iterator[tuple[Topic, int] | None]:
        """Yield every queue that holds a message, of the topics that `wanted` accepts."""
        looked_at, name = 0, None
        while page := self._topics.after(name, STEP):
            for topic in page:
                looked_at += 1  # a topic that is skipped costs a look, too
                queue = 0 if topic.starts != topic.ends and wanted(topic) else len(topic.ends)
                is_met = queue == 0
                while self._topics.by_id(topic.id) is topic and queue < len(topic.ends):
                    if topic.starts[queue] != topic.ends[queue]:
                        yield topic, queue
                    queue, looked_at = queue + 1, looked_at + 1
                    if looked_at >= STEP:
                        looked_at = 0
                        self.steps += 1
                        yield None
                if is_met and self._topics.by_id(topic.id) is topic:
                    self._note_oldest(topic)
            name = page[-1].name
            if looked_at >= STEP:
                looked_at = 0
                self.steps += 1
                yield None

    def _note_oldest(self, topic: Topic) -> None:
        """Set the topic's `oldest_ms`. Messages stored later are not older, so the value stays a lower bound."""
        stored_at_ms = (self._queues.first_stored_at_ms(topic, queue) for queue in range(len(topic.ends)))
        topic.oldest_ms = min((each for each in stored_at_ms if each is not None), default=topic.oldest_ms)

    def expired(self, clock_ms: int) -> Iterator[tuple[str, int] | None]:
        """Yield topic and number of the queues with messages that are expired at `clock_ms`."""

        def may_have(topic: Topic) -> bool:
            until_ms = self._rules.over_until_ms(topic, clock_ms)
            return until_ms is not None and topic.oldest_ms <= until_ms

        for found in self.queues(may_have):
            if found is None:
                yield None
            elif self.has_expired(*found, clock_ms):
                yield found[0].name, found[1]

    def exceeding(self, limit: int) -> Iterator[tuple[str, list[int]] | None]:
        """Yield the topics that have more bytes than they keep, with at most `limit` queues whose first messages are
        the oldest.
        """
        looked_at, name = 0, None
        while page := self._topics.users_after(name, STEP):
            for topic in page:
                looked_at += 1
                queues = len(topic.ends) if self._rules.may_exceed(topic) else 0
                for queue in range(queues):  # what is looked up is remembered: what follows takes no seeks
                    if self._topics.by_id(topic.id) is topic:
                        self._queues.first_stored_at_ms(topic, queue)
                    looked_at += 1
                    if looked_at >= STEP:
                        looked_at = 0
                        self.steps += 1
                        yield None
                if queues and self._topics.by_id(topic.id) is topic and self._rules.exceeds(topic):
                    yield topic.name, self._rules.oldest_queues(topic, limit)
            name = page[-1].name
            if looked_at >= STEP:
                looked_at = 0
                self.steps += 1
                yield None

    def uncounted(self) -> Iterator[tuple[str, int] | None]:
        """Yield topic and number of the queues with rows whose bytes are not counted yet."""
        for found in self.queues(lambda topic: not topic.is_counted()):
            if found is None:
                yield None
            elif found[0].is_uncounted(found[1]):
                yield found[0].name, found[1]

    def has_expired(self, topic: Topic, queue: int, clock_ms: int) -> bool:
        until_ms = self._rules.over_until_ms(topic, clock_ms)
        if until_ms is None:
            return False
        stored_at_ms = self._queues.first_stored_at_ms(topic, queue)
        return stored_at_ms is not None and stored_at_ms <= until_ms
