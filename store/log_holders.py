"""What holds the log: per kind of holder, where in the log it begins, since when, and which one it is.

Each look costs a walk over the counted ranges in memory and a few index seeks. Nothing here changes anything.
"""

from typing import Final, NamedTuple

from store.log_references import HeldFrom, Holder, LogReferences
from store.outcomes import Outcomes
from store.queues import Queues
from store.topics import Topic, Topics, group_of
from store.transaction_table import TransactionTable

QUEUES_LOOKED_AT_MAX: Final = 8
"""Queues whose first rows are compared with the place that is held, the oldest first."""

OUTCOMES_LOOKED_AT_MAX: Final = 64
"""Entries from the place that is held on that are asked which topic a waiting message is for."""


class LogHolder(NamedTuple):
    """What some kind of holder needs of the log."""

    holder: Holder
    raft_index: int
    """Of the first entry it may need; those of the same 4 MiB of the log are kept too."""
    since_ms: int | None
    """The replicated clock of that entry; None when this node does not know it any more."""
    subject: str | None
    """The topic, group or transaction id; None when it is not found with a few looks."""


class LogHolders:
    def __init__(
        self,
        references: LogReferences,
        topics: Topics,
        queues: Queues,
        table: TransactionTable,
        outcomes: Outcomes,
    ) -> None:
        self._references = references
        self._topics = topics
        self._queues = queues
        self._table = table
        self._outcomes = outcomes

    def all(self) -> list[LogHolder]:
        """One per kind that points at the log, the one that holds most of it first. Views hold nothing."""
        found: list[tuple[HeldFrom, Holder]] = []
        for holder in Holder:
            held = self._references.first_of(holder) if holder is not Holder.VIEW else None
            if held is not None:
                found.append((held, holder))
        return [
            LogHolder(holder, held.raft_index, self._since_ms(held), self._subject(holder, held))
            for held, holder in sorted(found)
        ]

    def _since_ms(self, held: HeldFrom) -> int | None:
        first = next(self._outcomes.scan(held.raft_index, held.raft_index), None)
        return first.outcome.clock_ms if first is not None else None

    def _subject(self, holder: Holder, held: HeldFrom) -> str | None:
        match holder:
            case Holder.TRANSACTION:
                return self._transaction(held)
            case Holder.SCHEDULED:
                return self._scheduled(held)
        topic = self._topic(holder, held)
        if topic is None:
            return None
        return topic.name if holder is Holder.MESSAGE else group_of(topic.name)

    def _transaction(self, held: HeldFrom) -> str | None:
        for view in self._table.oldest_undecided():
            if any(self._references.is_in_range(batch.position, held) for batch in view.batches):
                return view.transaction_id
        return None

    def _topic(self, holder: Holder, held: HeldFrom) -> Topic | None:
        oldest: list[tuple[int, str, int, Topic]] = []
        for topic in self._topics.all():
            for queue in range(len(topic.ends)) if topic.holder is holder else ():
                stored_at_ms = self._queues.first_stored_at_ms(topic, queue)
                if stored_at_ms is not None:
                    oldest.append((stored_at_ms, topic.name, queue, topic))
        for _, _, queue, topic in sorted(oldest)[:QUEUES_LOOKED_AT_MAX]:
            first = self._queues.first_row(topic, queue)
            if first is not None and first.inline is None and self._references.is_in_range(first.position, held):
                return topic
        return None

    def _scheduled(self, held: HeldFrom) -> str | None:
        last = held.raft_index + OUTCOMES_LOOKED_AT_MAX
        events = (event for each in self._outcomes.scan(held.raft_index, last) for event in each.outcome.events)
        return next((event.topic for event in events if event.type == "SCHEDULE"), None)
