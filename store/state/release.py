"""Rows that are released before their retention is over, because nobody needs them: they would hold the log for
nothing.

Rows are released in the system's topics and in the groups' own, from the front of each queue on:

- `%RETRY%<group>`: a row the group has processed. Its offset is past the row, and no pop consumer holds a message of
  the row.
- `%DLQ%<group>`: a dead letter that was replayed REPLAYED_KEPT_MS ago. The replay has a row of its own.
- `TRANS_CHECK_MAX_TIME_TOPIC`: a half of a transaction that was decided since, or forgotten.
- `RMQ_SYS_TRANS_HALF_TOPIC`: a row before all entries of the log that the state needs. The half topic shows what the
  log happens to have, and never holds the log.

Whether a row may be released is a function of the entries, and is decided when ReleaseMessages is applied.
"""

from collections.abc import Callable, Iterator

from store.commands.views import Row
from store.groups.given_back import REPLAYED
from store.limits import REPLAYED_KEPT_MS
from store.messages.log_references import Holder
from store.messages.topics import Topic, group_of
from store.state.tables import Tables
from store.state.walks import Walks
from store.transactions.table import DISCARDED, PREPARED

MayGo = Callable[[Row], bool]


class Releases:
    def __init__(self, tables: Tables, walks: Walks) -> None:
        self._walks = walks
        self._queues = tables.queues
        self._table = tables.transactions
        self._groups = tables.groups
        self._marks = tables.marks
        self._references = tables.references

    def rule(self, topic: Topic, clock_ms: int) -> MayGo | None:
        """Return the function that decides whether a row of the topic may be released; None for a topic whose rows are
        removed by their retention alone.
        """
        match topic.holder:
            case Holder.RETRY:
                processed = self._groups.processed(group_of(topic.name), topic, 0)
                return lambda row: row.next_offset <= processed
            case Holder.DEAD_LETTER:
                until_ms = clock_ms - REPLAYED_KEPT_MS
                return lambda row: self._was_replayed(topic, row, until_ms)
            case Holder.VIEW:
                needed = self._references.needed_position()
                return lambda row: needed is None or row.position < needed
            case Holder.TRANSACTION:
                return self._is_decided
        return None

    def due(self, clock_ms: int) -> Iterator[str | None]:
        """Yield the topics whose first row may be released: a walk, with one or two index seeks per topic of dead
        letters.
        """
        for topic in self._walks.own_topics():
            if topic is None:
                yield None
            elif self.is_due(topic, clock_ms):
                yield topic.name

    def is_due(self, topic: Topic, clock_ms: int) -> bool:
        """Return whether the topic's first row may be released."""
        if topic.starts[0] == topic.ends[0] or not self._may_be_due(topic):
            return False
        may_go = self.rule(topic, clock_ms)
        first = self._queues.first_row(topic, 0) if may_go is not None else None
        return may_go is not None and first is not None and may_go(first)

    def _may_be_due(self, topic: Topic) -> bool:
        """Return whether the topic's first row is worth a lookup. Uses memory only: most topics are not."""
        if topic.holder is Holder.MESSAGE:
            return False
        if topic.holder is Holder.RETRY:
            return topic.starts[0] < self._groups.processed(group_of(topic.name), topic, 0)
        return topic.holder is not Holder.VIEW or self._references.holds_views_alone()

    def _was_replayed(self, topic: Topic, row: Row, until_ms: int) -> bool:
        group_id = self._groups.known_id(group_of(topic.name))
        mark = self._marks.get(group_id, topic.id, 0, row.base_offset) if group_id is not None else None
        return (
            mark is not None and mark.outcome == REPLAYED and mark.due_at_ms is not None and mark.due_at_ms <= until_ms
        )

    def _is_decided(self, row: Row) -> bool:
        record = self._table.get(row.transaction_id) if row.transaction_id is not None else None
        return record is None or record.state not in (PREPARED, DISCARDED)
