"""Queries on the applied state. They change nothing."""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import NamedTuple

from store.commands.cluster import Settings
from store.commands.pops import PopHandle
from store.commands.topics import TopicInfo
from store.commands.transactions import TransactionState
from store.commands.views import (
    DueCheck,
    QueueRange,
    Row,
    ScheduledPage,
    TimelineEvent,
    TransactionPage,
    TransactionView,
)
from store.errors import TRANSACTION_NOT_FOUND, Refused
from store.groups.pops import Pops
from store.index import keys
from store.index.index import IndexFigures
from store.limits import TRANSACTION_RETENTION_MS
from store.messages.message_index import KeyedMessage
from store.messages.outcomes import OutcomeOf
from store.messages.topics import Topic
from store.state.group_queries import QueriesOnGroups
from store.state.log_holders import LogHolder, LogHolders
from store.state.message_search import MessagePlace, MessageSearch, TraceEvent
from store.state.release import Releases
from store.state.tables import Tables
from store.state.walks import Walks


class KeptBytes(NamedTuple):
    """The bytes of a topic's messages; None while they are not all counted: below feature level 2, and for messages of
    before it for a while longer.
    """

    total: int | None
    queues: list[int | None]


class Queries(QueriesOnGroups, ABC):
    """All queries on the applied state. Methods that take a topic or queue raise Refused (`topic_not_found`,
    `queue_not_found`) when it does not exist.
    """

    def __init__(self, tables: Tables, search: MessageSearch, pops: Pops) -> None:
        super().__init__(tables, pops)
        self._references = tables.references
        self._rules = tables.rules
        self.walks = Walks(tables.topics, tables.queues, tables.rules)
        self._releases = Releases(tables, self.walks)
        self._holders = LogHolders(tables, self.walks)
        self._leases = tables.leases
        self._outcomes = tables.outcomes
        self._settings = tables.settings
        self._index = tables.index
        self._queues = tables.queues
        self._table = tables.transactions
        self._timers = tables.timers
        self._search = search
        self.users = tables.users

    @property
    @abstractmethod
    def applied_index(self) -> int:
        """Index of the last entry of which the queries see all effects. Of the next one they may see some."""

    @property
    def index_figures(self) -> IndexFigures:
        return self._index.figures()

    # Topics and queues.

    def topic(self, name: str) -> TopicInfo | None:
        topic = self._topics.get(name)
        return topic.info() if topic is not None else None

    def topic_id(self, name: str) -> int | None:
        """Return the id of the topic, which no later topic of its name has; None when there is no such topic."""
        topic = self._topics.get(name)
        return topic.id if topic is not None else None

    def topics(self, *, system: bool = False) -> list[TopicInfo]:
        """Return the topics in the order of their names; system topics only with `system`."""
        return [topic.info() for topic in self._topics.all() if system or not topic.system]

    @property
    def topics_of_clients(self) -> int:
        """Number of topics that are not the system's or groups' own."""
        return self._topics.of_clients

    def topics_after(self, name: str | None, limit: int, *, system: bool = False) -> list[TopicInfo]:
        """Return a page of `topics`: at most `limit`, after the topic `name`."""
        page = self._topics.after(name, limit) if system else self._topics.users_after(name, limit)
        return [topic.info() for topic in page]

    def queue_ranges(self, topic: str) -> list[QueueRange]:
        found = self._topics.require(topic)
        return [self._queues.range(found, queue) for queue in range(len(found.ends))]

    def min_offset(self, topic: str, queue: int) -> int:
        return self._queues.range(self._queue_of(topic, queue), queue).min_offset

    def max_offset(self, topic: str, queue: int) -> int:
        """Return the offset that the next message will get."""
        return self._queue_of(topic, queue).ends[queue]

    def rows(self, topic: str, queue: int, offset: int, max_rows: int, max_bytes: int) -> list[Row]:
        """Return rows, beginning with the row that holds `offset`: at least one if there is any, at most `max_rows`,
        and at most `max_bytes` of unpacked blocks. Empty at or beyond the end; an offset before the first row starts at
        the first row.
        """
        return self._queues.rows(self._queue_of(topic, queue), queue, offset, max_rows, max_bytes)

    def offset_at(self, topic: str, queue: int, timestamp_ms: int) -> tuple[int, int | None]:
        """Return offset and stored_at_ms of the first message stored at or after `timestamp_ms`; (max_offset, None) if
        there is none. The offset is the first one of a batch: the messages of a batch are stored at one time.
        """
        return self._queues.offset_at(self._queue_of(topic, queue), queue, timestamp_ms)

    # Retention.

    def expired_queues(self, clock_ms: int) -> Iterator[tuple[str, int] | None]:
        """Yield topic and number of the queues with messages that are expired at `clock_ms`: a walk, see
        store/state/walks.py.
        """
        return self.walks.expired(clock_ms)

    def still_expired(self, queues: Sequence[tuple[str, int]], clock_ms: int) -> list[tuple[str, int]]:
        """Return the given queues that have messages expired at `clock_ms`."""
        found = ((name, queue, self._topics.get(name)) for name, queue in queues)
        return [
            (name, queue)
            for name, queue, topic in found
            if topic is not None and queue < len(topic.ends) and self.walks.has_expired(topic, queue, clock_ms)
        ]

    def exceeding_topics(self, limit: int) -> Iterator[tuple[str, list[int]] | None]:
        """Yield the topics that have more bytes than they keep, with at most `limit` queues whose first messages are
        the oldest: a walk, see store/state/walks.py.
        """
        return self.walks.exceeding(limit)

    def still_exceeding(self, topics: Iterable[str], limit: int) -> list[tuple[str, list[int]]]:
        """Return the given topics that have more bytes than they keep, as `exceeding_topics` does."""
        found = ((name, self._topics.get(name)) for name in topics)
        return [
            (name, self._rules.oldest_queues(topic, limit))
            for name, topic in found
            if topic is not None and self._rules.exceeds(topic)
        ]

    def uncounted_queues(self) -> Iterator[tuple[str, int] | None]:
        """Yield topic and number of the queues with rows whose bytes are not counted yet: a walk."""
        return self.walks.uncounted()

    def still_uncounted(self, queues: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
        """Return the given queues that have rows whose bytes are not counted yet."""
        found = ((name, queue, self._topics.get(name)) for name, queue in queues)
        return [
            (name, queue)
            for name, queue, topic in found
            if topic is not None and queue < len(topic.ends) and topic.is_uncounted(queue)
        ]

    def kept_bytes(self, topic: str) -> KeptBytes:
        """Return the bytes of the blocks of a topic's messages."""
        found = self._topics.require(topic)
        queues = [None if found.is_uncounted(queue) else each for queue, each in enumerate(found.queue_bytes)]
        return KeptBytes(None if None in queues else found.kept_bytes, queues)

    def has_expired_others(self, clock_ms: int) -> bool:
        """Return whether rows of deleted topics or purged queues are left, or transactions whose retention is over."""
        decided_at_ms = self._table.first_decided_at_ms()
        return bool(self._topics.dropped or self._topics.purged) or (
            decided_at_ms is not None and decided_at_ms <= clock_ms - TRANSACTION_RETENTION_MS
        )

    def releasable(self, clock_ms: int) -> Iterator[str | None]:
        """Yield the topics whose first row may go before its retention is over: a walk, see store/state/walks.py."""
        return self._releases.due(clock_ms)

    def still_releasable(self, topics: Sequence[str], clock_ms: int) -> list[str]:
        """Return the given topics whose first row may go before its retention is over."""
        found = ((name, self._topics.get(name)) for name in topics)
        return [name for name, topic in found if topic is not None and self._releases.is_due(topic, clock_ms)]

    @property
    def has_dropped_timers(self) -> bool:
        """True when timers of deleted topics are left."""
        return bool(self._topics.dropped_timers)

    @property
    def log_floor(self) -> int:
        """Index of the first log entry that this state may point at."""
        return self._references.floor(self.applied_index)

    @property
    def log_needed(self) -> int:
        """Index of the first log entry that a holder other than a view may point at."""
        return self._references.needed(self.applied_index)

    def find_log_holders(self) -> Generator[None, None, list[LogHolder]]:
        """Find the holders of the log: one per kind, the one that holds most first. A walk that returns its result at
        the end.
        """
        return self._holders.find()

    @property
    def sweep_is_under_way(self) -> bool:
        """True when a sweep of the search tables has begun and not reached the end."""
        return self._index.get(keys.SWEEP_CURSOR) is not None

    # Messages.

    def topics_with_id(self, message_id: str, after: str | None, limit: int) -> tuple[list[str], str | None]:
        """Look at `limit` topics of clients after the topic `after`. Return those that may have a message with this id,
        and the last one that was looked at; None when it was the last one of all.
        """
        page = self._topics.users_after(after, limit)
        found = [topic.name for topic in self._search.among(page, message_id)]
        return found, page[-1].name if len(page) == limit else None

    def message_places(self, topic: str, message_id: str, limit: int) -> list[MessagePlace]:
        """Return places of messages in the topic that may have this id; their blocks tell which do."""
        return self._search.by_id(self._topics.require(topic), message_id, limit)

    def keyed_messages(
        self, topic: str, key: str, *, begin: KeyedMessage, end_ms: int, limit: int
    ) -> list[KeyedMessage]:
        """Return messages from `begin` on that probably have this key, stored before `end_ms`, in time order."""
        return self._search.by_key(self._topics.require(topic), key, begin, end_ms, limit)

    def row_of(self, topic: str, queue: int, offset: int) -> Row | None:
        """Return the row that holds the message at `offset`; None when there is none."""
        found = self._queue_of(topic, queue)
        row = self._queues.row_at(found, queue, offset) if offset < found.ends[queue] else None
        return row if row is not None and offset < row.next_offset else None

    def trace_steps(self, place: MessagePlace) -> Iterator[TraceEvent | None]:
        """Yield the recorded events of a message, in any order, and None between two steps: entries may be applied
        then.
        """
        return self._search.trace(place)

    # Timers.

    @property
    def timers_pending(self) -> int:
        """Number of timers: batches and redeliveries that wait for their time."""
        return self._timers.counters.pending

    @property
    def messages_scheduled(self) -> int:
        """Number of messages that wait for their time."""
        return self._timers.counters.messages

    def next_due_ms(self) -> int | None:
        """Return when the next timer is due or the next lease of a popped message ends; None without either. Cheap
        enough to be called after every apply.
        """
        timers_ms, leases_ms = self._timers.next_due_ms(), self._leases.next_due_ms()
        return min(timers_ms, leases_ms) if timers_ms is not None and leases_ms is not None else timers_ms or leases_ms

    def timers_due_within(self, until_ms: int, limit: int, writes_max: int) -> int:
        """Return how many of the first due timers, at most `limit`, have together at most `writes_max` keys and
        explicit ids; at least one if any is due.
        """
        return self._timers.due_within(until_ms, limit, writes_max)

    def leases_next_due_ms(self) -> int | None:
        """Return when the next lease of a popped message ends; None without leases."""
        return self._leases.next_due_ms()

    def scheduled(self, topic: str, *, limit: int = 100, after: str | None = None) -> ScheduledPage:
        """Return a topic's waiting messages by due time. `after` is the `next` of an earlier page; any other value is
        Refused (`invalid_request`).
        """
        return self._timers.page(self._topics.require(topic).id, limit, after)

    # The cluster.

    @property
    def settings(self) -> Settings:
        return self._settings.current

    # Transactions.

    def transaction(self, transaction_id: str) -> TransactionView | None:
        return self._table.view(transaction_id)

    def transaction_bytes(self, transaction_id: str) -> int:
        """Return the size of the batch headers that a decision carries out; 0 for an unknown transaction."""
        return self._table.held_bytes(transaction_id)

    def timeline(self, transaction_id: str) -> list[TimelineEvent]:
        """Return all events of the transaction, in order. Refused (`transaction_not_found`) when it does not exist."""
        timeline = self._table.timeline(transaction_id)
        if timeline is None:
            detail = f"transaction {transaction_id} does not exist"
            raise Refused(TRANSACTION_NOT_FOUND, detail, {"transaction_id": transaction_id})
        return timeline

    def transactions(
        self,
        *,
        state: TransactionState | None = None,
        prepared_before_ms: int | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> TransactionPage:
        """Return a page of transactions, the oldest first. `after` is the `next` of an earlier page; any other value is
        Refused (`invalid_request`).
        """
        return self._table.page(state, prepared_before_ms, limit, after)

    @property
    def transactions_undecided(self) -> int:
        """Number of prepared transactions that nobody has decided, not counting discarded ones."""
        return self._table.undecided

    def topic_of_lease(self, group: str, handle: PopHandle) -> str | None:
        """Return the topic of the message that the group's handle stands for; None when it holds none. Refused
        (`group_not_found`).
        """
        found = self._leases.find(self._groups.id_of(group), handle.raft_index, handle.number, handle.offset)
        topic = None if found is None else self._topics.by_id(found[1].topic_id)
        return None if topic is None else topic.name

    def due_checks(self, now_ms: int, limit: int, after: tuple[int, str] | None = None) -> list[DueCheck]:
        """Return prepared transactions whose next check is due, the longest due first. `after` is (next_check_at_ms,
        transaction_id) of the last transaction of an earlier call.
        """
        return self._table.due_checks(now_ms, limit, after)

    def check_url(self, producer_group: str) -> str | None:
        url = self._index.get(keys.check_url(producer_group))
        return url.decode() if url is not None else None

    def check_urls(self, limit: int, after: str = "") -> list[tuple[str, str]]:
        """Return at most `limit` producer groups with their check URLs, in the order of the names after `after`."""
        rows = self._index.scan(keys.check_url(after) + b"\0", keys.after(keys.check_url("")))
        return [(keys.check_url_group(key), url.decode()) for key, url in itertools.islice(rows, limit)]

    def take_grown_queues(self) -> tuple[tuple[str, int], ...]:
        """Return topic and number of each queue that grew since the last call; for readers that wait for messages."""
        return self._queues.take_grown()

    def take_appended(self) -> dict[str, list[int]]:
        """Return the messages and bytes that were appended to each topic since the last call; for metrics."""
        return self._queues.take_appended()

    @property
    def appended_messages(self) -> int:
        """Number of messages that this process has appended to topics since it loaded the state."""
        return self._queues.appended_messages

    @property
    def acknowledged_messages(self) -> int:
        """Number of messages that groups have committed or acknowledged since this process loaded the state."""
        return self._outcomes.acknowledged_messages

    # Outcomes of entries.

    def outcomes(self, first: int, last: int, limit: int, events_max: int = 1 << 40) -> list[OutcomeOf]:
        """Return the outcomes of entries that had effects: at most `limit`, and none after `events_max` events."""
        return list(self._outcomes.first_of(first, last, limit, events_max))

    def _queue_of(self, topic: str, queue: int) -> Topic:
        found = self._topics.require(topic)
        found.require_queue(queue)
        return found
