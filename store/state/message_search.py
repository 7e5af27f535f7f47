"""Search for messages by id and by key, and the trace of one message: assembled from the message index and other
tables.

An id may stand for several messages of a topic: an id may be sent again when the dedupe window has passed. Whether a
place really holds the id is in its block, which the store does not parse: the reader of the block compares the id
(`MessagePlace.block`).
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Final, Literal

import msgspec

from store.commands.views import HalfBatchView, Row, TransactionView
from store.index import keys
from store.messages.message_index import BatchTimer, FoundEvent, KeyedMessage, Place, key_hash
from store.messages.timers import Timer, TimerKey, decode_timer
from store.messages.topics import Topic
from store.state.tables import Tables

MessageState = Literal["visible", "scheduled", "taken_back", "prepared", "rolled_back", "discarded"]
TraceEventName = Literal[
    "produced",
    "prepared",
    "check",
    "answer",
    "committed",
    "rolled_back",
    "discarded",
    "resumed",
    "scheduled",
    "taken_back",
    "visible",
    "popped",
    "consumed",
    "skipped",
    "rewound",
    "given_back",
    "given_again",
    "dead_lettered",
    "replayed",
]

TRACE_PLACES_MAX: Final = 256
"""Maximum number of places of one message that a trace follows: the original place, and one for each redelivery to a
group.
"""


class MessagePlace(msgspec.Struct, frozen=True, kw_only=True):
    """A message that may have the requested id. Without a `block`, no body is left to be read."""

    topic: str
    queue: int
    batch_id: str
    ordinal: int
    state: MessageState
    at_ms: int
    """Time at which the message became visible, or was scheduled or prepared."""
    raft_index: int
    offset: int | None = None
    deliver_at_ms: int | None = None
    transaction_id: str | None = None
    block: Row | HalfBatchView | None = None


class TraceEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a message. `topic`, `queue` and `offset` are the message's place at the time of the event, or after
    it.
    """

    at_ms: int
    event: TraceEventName
    raft_index: int
    topic: str | None = None
    queue: int | None = None
    offset: int | None = None
    transaction_id: str | None = None
    due_at_ms: int | None = None
    group: str | None = None
    member_id: str | None = None
    client_id: str | None = None
    committed_offset: int | None = None
    """The group's offset after a commit or a reset."""
    first_commit: bool = False
    """True if the group had no offset in the queue before: it may have begun behind the message."""
    attempt: int | None = None
    reason: str | None = None
    via: str | None = None
    answer: str | None = None
    source: str | None = None
    operator: str | None = None
    forced: bool = False
    principal: str | None = None
    """The authenticated principal whose request it was; None without one, and for messages."""


def order_of(event: TraceEvent) -> tuple[int, int]:
    """Return the sort key of an event of a trace."""
    return event.at_ms, event.raft_index


class MessageSearch:
    def __init__(self, tables: Tables) -> None:
        self._index = tables.index
        self._topics = tables.topics
        self._queues = tables.queues
        self._table = tables.transactions
        self._groups = tables.groups
        self._messages = tables.messages
        self._references = tables.references

    def by_id(self, topic: Topic, message_id: str, limit: int) -> list[MessagePlace]:
        """Return at most `limit` places that may hold the message: visible, waiting, or in a half transaction."""
        found: list[MessagePlace] = []
        for batch_id, ordinal in self._messages.batches(topic.id, message_id):
            for place in self._of_batch(topic, batch_id, ordinal):
                if len(found) == limit:
                    return found
                found.append(place)
        return found

    def among(self, topics: Sequence[Topic], message_id: str) -> list[Topic]:
        """Return the topics in which `by_id` may find something."""
        may = self._messages.may_have([topic.id for topic in topics], message_id)
        return list(itertools.compress(topics, may))

    def by_key(self, topic: Topic, key: str, begin: KeyedMessage, end_ms: int, limit: int) -> list[KeyedMessage]:
        """Return messages from `begin` on that probably have the key, stored before `end_ms`, in time order."""
        return list(itertools.islice(self._messages.keyed(topic.id, key_hash(key), begin, end_ms), limit))

    def trace(self, place: MessagePlace) -> Iterator[TraceEvent | None]:
        """Yield the events of the message at `place`, which `order_of` sorts, and None between two steps: entries may
        be applied then.
        """
        if place.transaction_id is not None:
            yield from self._decision_events(place.transaction_id)
        timer = self._timer_of(place)
        if timer is not None:
            yield from _timer_events(place, timer)
        topic = self._topics.get(place.topic)
        if place.offset is not None and topic is not None:
            late = place.transaction_id is not None or timer is not None
            yield _at_place(place, "visible" if late else "produced", place.at_ms, place.raft_index)
            yield from self._deliveries(topic, place.queue, place.offset)

    def _of_batch(self, topic: Topic, batch_id: str, ordinal: int) -> Iterator[MessagePlace]:
        known = self._messages.of_batch(topic.id, batch_id)
        for queue, base_offset in known.places:
            row = self._queues.row_at(topic, queue, base_offset) if base_offset < topic.ends[queue] else None
            is_there = row is not None and (row.base_offset, row.batch_id) == (base_offset, batch_id)
            if row is not None and is_there and ordinal in row.ordinals():
                yield _visible(topic, queue, row, ordinal)
        for key, timer in known.timers:
            place = self._waiting(topic, batch_id, ordinal, key, timer)
            if place is not None:
                yield place
        for transaction_id in known.transactions:
            transaction = self._table.view(transaction_id)
            if transaction is not None:
                yield from self._halves(transaction, topic, batch_id, ordinal)

    def _halves(
        self, transaction: TransactionView, topic: Topic, batch_id: str, ordinal: int
    ) -> Iterator[MessagePlace]:
        """Yield the places of the message in a transaction that is not committed. The body of a rolled back half is
        readable as long as the log holds it.
        """
        if transaction.state == "committed":  # the message is visible, or waits, or its id was known already
            return
        for batch in transaction.batches:
            if (batch.topic, batch.batch_id) == (topic.name, batch_id) and ordinal < batch.count:
                yield MessagePlace(
                    topic=batch.topic,
                    queue=batch.queue,
                    batch_id=batch_id,
                    ordinal=ordinal,
                    state=transaction.state,
                    at_ms=transaction.prepared_at_ms,
                    raft_index=transaction.prepared_index,
                    transaction_id=transaction.transaction_id,
                    block=batch if self._references.is_kept(batch.position) else None,
                )

    def _waiting(
        self, topic: Topic, batch_id: str, ordinal: int, key: TimerKey, timer: BatchTimer
    ) -> MessagePlace | None:
        """Return the place of a message whose timer has not fired yet, or that was cancelled; None otherwise."""
        taken_back = any(each.ordinal == ordinal for each in timer.taken_back)
        value = self._index.get(keys.timer(*key))
        waiting = decode_timer(value) if value is not None else None
        if not taken_back and (waiting is None or ordinal not in waiting.ordinals()):
            return None
        return MessagePlace(
            topic=topic.name,
            queue=timer.queue,
            batch_id=batch_id,
            ordinal=ordinal,
            state="taken_back" if taken_back else "scheduled",
            at_ms=timer.scheduled_at_ms,
            raft_index=timer.raft_index,
            deliver_at_ms=timer.due_ms,
            transaction_id=timer.transaction_id,
            block=None if taken_back or waiting is None else _half_view(topic, waiting),
        )

    def _timer_of(self, place: MessagePlace) -> BatchTimer | None:
        """Return the timer by which the message became visible, or for which it waits."""
        topic = self._topics.get(place.topic)
        if topic is None or place.state not in ("visible", "scheduled", "taken_back"):
            return None
        base_offset = place.block.base_offset if isinstance(place.block, Row) else None
        known = self._messages.of_batch(topic.id, place.batch_id)
        for key, timer in known.timers:
            waits = place.offset is None and (timer.due_ms, timer.raft_index) == (place.deliver_at_ms, place.raft_index)
            fired = base_offset is not None and known.fired.get(key.sequence) == base_offset
            if timer.queue == place.queue and (waits or fired):
                return timer
        return None

    def _decision_events(self, transaction_id: str) -> list[TraceEvent]:
        return [
            TraceEvent(
                at_ms=event.at_ms,
                event=event.event,
                raft_index=event.raft_index,
                transaction_id=transaction_id,
                client_id=event.client_id or None,
                via=event.via,
                answer=event.answer,
                source=event.source,
                operator=event.operator,
                reason=event.reason,
                forced=event.forced,
                principal=event.principal,
            )
            for event in self._table.timeline(transaction_id) or []
        ]

    def _deliveries(self, topic: Topic, queue: int, offset: int) -> Iterator[TraceEvent | None]:
        """Yield the groups' events of the message, in every place where it was redelivered, and None between steps."""
        places = [(topic, queue, offset)]
        for number, (where, queue_there, offset_there) in enumerate(places):
            yield from self._passes(where, queue_there, offset_there)
            for found in self._messages.events(Place(where.id, queue_there, offset_there)):
                own = self._own_topic(found)
                yield _redelivery_event(found, own)
                if own is not None and found.event.offset is not None and len(places) < TRACE_PLACES_MAX:
                    places.append((own, 0, found.event.offset))
            assert number < TRACE_PLACES_MAX

    def _own_topic(self, found: FoundEvent) -> Topic | None:
        """Return the group's own topic that the message came to; None for other events, and if the topic is gone."""
        came = found.name in ("given_again", "dead_lettered")
        return self._topics.by_id(found.own_topic_id) if came else None

    def _passes(self, topic: Topic, queue: int, offset: int) -> Iterator[TraceEvent | None]:
        for found in self._groups.passed(topic, queue, offset):
            if found is None:
                yield None
                continue
            group, (committed, commit) = found
            name: TraceEventName = "popped" if commit.popped else "consumed"
            if commit.reset_from is not None:
                name = "skipped" if committed > offset else "rewound"
            yield TraceEvent(
                at_ms=commit.at_ms,
                event=name,
                raft_index=commit.raft_index,
                topic=topic.name,
                queue=queue,
                offset=offset,
                group=group,
                member_id=commit.member_id or None,
                client_id=commit.client_id or None,
                committed_offset=committed,
                first_commit=commit.is_first,
                principal=commit.principal,
            )


def _visible(topic: Topic, queue: int, row: Row, ordinal: int) -> MessagePlace:
    return MessagePlace(
        topic=topic.name,
        queue=queue,
        batch_id=row.batch_id,
        ordinal=ordinal,
        state="visible",
        at_ms=row.stored_at_ms,
        raft_index=row.raft_index,
        offset=row.base_offset + row.ordinals().index(ordinal),
        transaction_id=row.transaction_id,
        block=row,
    )


def _half_view(topic: Topic, timer: Timer) -> HalfBatchView:
    block = timer.block
    return HalfBatchView(
        topic.name,
        timer.queue,
        timer.block_count,
        block.batch_id,
        block.crc32c,
        block.position,
        block.offset,
        block.length,
        block.encoding,
        block.uncompressed_bytes,
    )


def _timer_events(place: MessagePlace, timer: BatchTimer) -> Iterator[TraceEvent]:
    yield _at_place(place, "scheduled", timer.scheduled_at_ms, timer.raft_index, due_at_ms=timer.due_ms)
    for each in timer.taken_back:
        if each.ordinal == place.ordinal:
            yield _at_place(place, "taken_back", each.at_ms, each.raft_index, principal=each.principal)


def _at_place(
    place: MessagePlace,
    event: TraceEventName,
    at_ms: int,
    raft_index: int,
    *,
    due_at_ms: int | None = None,
    principal: str | None = None,
) -> TraceEvent:
    return TraceEvent(
        at_ms=at_ms,
        event=event,
        raft_index=raft_index,
        topic=place.topic,
        queue=place.queue,
        offset=place.offset if event in ("produced", "visible") else None,
        transaction_id=place.transaction_id,
        due_at_ms=due_at_ms,
        principal=principal,
    )


def _redelivery_event(found: FoundEvent, own: Topic | None) -> TraceEvent:
    event = found.event
    return TraceEvent(
        at_ms=event.at_ms,
        event=found.name,
        raft_index=found.raft_index,
        topic=own.name if own is not None else None,
        queue=0 if own is not None else None,
        offset=event.offset,
        group=event.group,
        member_id=event.member_id or None,
        client_id=event.client_id or None,
        due_at_ms=event.due_at_ms,
        attempt=event.attempt,
        reason=event.reason or None,
        principal=event.principal,
    )
