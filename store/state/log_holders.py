"""The holders of the log: per kind, where in the log its references begin, since when, and the topic, group or
transaction.

Each search walks the counted ranges and the queues in memory, in steps, and makes a few index seeks. Nothing is
changed.
"""

from bisect import insort
from collections.abc import Generator, Iterator
from typing import Final, NamedTuple

from store.messages.log_references import HeldFrom, Holder
from store.messages.topics import Topic, group_of
from store.state.tables import Tables
from store.state.walks import Walks

QUEUES_LOOKED_AT_MAX: Final = 8
"""Maximum number of queues whose first rows are compared with the held position, the oldest queues first."""

OUTCOMES_LOOKED_AT_MAX: Final = 64
"""Maximum number of entries from the held entry on in which the topic of a scheduled message is looked up."""


class OwnBlock(NamedTuple):
    """The first block that a subject needs: its position in the log, and the entry and the time that are known of it. A
    block that became visible later than it was stored, as one of a transaction, lies in an earlier entry than that.
    """

    position: int
    raft_index: int
    at_ms: int


class LogHolder(NamedTuple):
    """The part of the log that some kind of holder needs."""

    holder: Holder
    raft_index: int
    """Index of the first entry the holder may need; entries in the same 4 MiB of the log are kept too."""
    since_ms: int | None
    """The replicated clock of that entry in ms; None when this node does not know it any more."""
    subject: str | None
    """The topic, group or transaction id; None when a bounded search does not find it."""
    own: OwnBlock | None = None
    """The subject's own first block, somewhere in these 4 MiB; None when the search does not find it."""


class LogHolders:
    def __init__(self, tables: Tables, walks: Walks) -> None:
        self._references = tables.references
        self._walks = walks
        self._queues = tables.queues
        self._table = tables.transactions
        self._outcomes = tables.outcomes

    def find(self) -> Generator[None, None, list[LogHolder]]:
        """Find one holder per kind that points at the log, the largest holder first. Views hold nothing. This is a walk
        (store/state/walks.py) that returns its result at the end.
        """
        found: list[LogHolder] = []
        for holder in Holder:
            held = self._references.first_of(holder) if holder is not Holder.VIEW else None
            if held is not None:
                subject, own = yield from self._subject(holder, held)
                found.append(LogHolder(holder, held.raft_index, self._since_ms(held), subject, own))
        return sorted(found, key=lambda each: each.raft_index)

    def _since_ms(self, held: HeldFrom) -> int | None:
        first = next(self._outcomes.scan(held.raft_index, held.raft_index), None)
        return first.outcome.clock_ms if first is not None else None

    def _subject(self, holder: Holder, held: HeldFrom) -> Generator[None, None, tuple[str | None, OwnBlock | None]]:
        match holder:
            case Holder.TRANSACTION:
                return self._transaction(held)
            case Holder.SCHEDULED:
                return self._scheduled(held), None
        found = yield from self._topic(holder, held)
        if found is None:
            return None, None
        topic, own = found
        return topic.name if holder is Holder.MESSAGE else group_of(topic.name), own

    def _transaction(self, held: HeldFrom) -> tuple[str | None, OwnBlock | None]:
        for view in sorted(self._table.oldest_undecided(), key=lambda each: each.prepared_index):
            inside = [each.position for each in view.batches if self._references.is_in_range(each.position, held)]
            if inside:
                return view.transaction_id, OwnBlock(min(inside), view.prepared_index, view.prepared_at_ms)
        return None, None

    def _topic(self, holder: Holder, held: HeldFrom) -> Generator[None, None, tuple[Topic, OwnBlock] | None]:
        oldest: list[tuple[int, str, int, Topic]] = []  # sorted

        def may_be_older(topic: Topic) -> bool:
            is_full = len(oldest) == QUEUES_LOOKED_AT_MAX
            return topic.holder is holder and (not is_full or topic.oldest_ms < oldest[-1][0])

        for found in self._walks.queues(may_be_older) if holder is Holder.MESSAGE else self._own_queues():
            if found is None:
                yield
            elif found[0].holder is holder:
                topic, queue = found
                stored_at_ms = self._queues.first_stored_at_ms(topic, queue)
                if stored_at_ms is not None:
                    insort(oldest, (stored_at_ms, topic.name, queue, topic), key=lambda each: each[:3])
                    del oldest[QUEUES_LOOKED_AT_MAX:]
        for _, _, queue, topic in oldest:
            first = self._queues.first_row(topic, queue)
            if first is not None and first.inline is None and self._references.is_in_range(first.position, held):
                return topic, OwnBlock(first.position, first.raft_index, first.stored_at_ms)
        return None

    def _own_queues(self) -> Iterator[tuple[Topic, int] | None]:
        """Yield the only queue of each topic that is the system's or a group's own."""
        return ((topic, 0) if topic is not None else None for topic in self._walks.own_topics())

    def _scheduled(self, held: HeldFrom) -> str | None:
        last = held.raft_index + OUTCOMES_LOOKED_AT_MAX
        events = (event for each in self._outcomes.scan(held.raft_index, last) for event in each.outcome.events)
        return next((event.topic for event in events if event.type == "SCHEDULE"), None)
