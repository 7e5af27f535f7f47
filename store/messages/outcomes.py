"""Outcomes: the effects of an entry on messages, such as offsets assigned, decisions, commits and redeliveries.

The log says what was requested. Apply decides where a batch is placed, which of its messages were known before, from
which offset a group moved, and which messages a timer made visible. So apply keeps these effects: one row per entry
with effects, written with the effects themselves. A row is a function of the entries before it, the same on every
replica, and never changed; rows of entries that the log no longer needs to keep are removed.

A row refers to message blocks and does not copy them; message ids and producers are in the record that holds the block.
"""

import itertools
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

import msgspec

from store.features import FEATURES
from store.index import keys
from store.index.index import Index
from store.messages.block_location import BlockLocation

EventType = Literal[
    "HALF",
    "COMMIT",
    "ROLLBACK",
    "CHECK",
    "DISCARD",
    "RESUME",
    "PUBLISH",
    "SCHEDULE",
    "CANCEL",
    "ACK",
    "RETRY",
    "DLQ",
    "EXPIRE",
    "RESET",
    "PURGE",
    "GROUP_PAUSE",
    "GROUP_RESUME",
    "TOPIC_DELETE",
]


class MessagesOf(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True, gc=False):
    """Messages of the block at `block_offset` of the record at `position`: one (`only`), or all except the ordinals in
    `skip`.
    """

    position: int
    block_offset: int
    count: int
    skip: tuple[int, ...] = ()
    only: int | None = None


class Event(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True, gc=False):
    """One effect on `messages` or on a transaction; `offset` is the offset of the first message.

    `offset_end` is for ACK and RESET: the group's offset moved from `offset` to it; a RESET without `offset` is
    where the group begins. A PURGE removed the messages of the queue from `offset` to it. A TOPIC_DELETE has the
    topic alone, whose groups lost their offsets with it. `group` is the consumer group for ACK, RETRY, DLQ, RESET,
    GROUP_PAUSE and GROUP_RESUME; an event with messages and without `group` refers to the producer group of the
    messages. `attempt` counts how often a message was given back, or a transaction was checked. `message_id` is for
    messages without a block in the log. Without `topic`, the topic of the batch is meant. `filter` is for ACK: the
    place, in the outcome's filters, of the expression that selected the group's messages; the others were passed
    unread. It is None for a group that reads all.
    """

    type: EventType
    transaction_id: str | None = None
    topic: str | None = None
    queue: int | None = None
    offset: int | None = None
    offset_end: int | None = None
    group: str | None = None
    client: str | None = None
    attempt: int | None = None
    message_id: str | None = None
    messages: MessagesOf | None = None
    filter: int | None = None

    @property
    def rows(self) -> int:
        """Number of messages the event is about; one for an event without messages."""
        return 1 if self.messages is None else self.messages.count


class Outcome(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """The row of an entry. `clock_ms` is the replicated clock at which the entry was applied. `filters` has each SQL92
    expression that events refer to once: a commit of many queues repeats a long one in none of them. `principals` names
    the principals whose requests caused events, each with the first of its events and the one after the last.
    """

    term: int
    clock_ms: int
    events: tuple[Event, ...]
    filters: tuple[str, ...] = ()
    principals: tuple[tuple[str, int, int], ...] = ()

    def principal_of(self, ordinal: int) -> str | None:
        """Return the principal whose request caused the event; None without one."""
        return next((name for name, begin, end in self.principals if begin <= ordinal < end), None)


class OutcomeOf(NamedTuple):
    raft_index: int
    outcome: Outcome


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Outcome).decode


def _messages_of(event: Event) -> int:
    return (event.offset_end or 0) - (event.offset or 0)


class Outcomes:
    """Collects the events of the entry that is being applied, and keeps the rows of earlier entries in the index."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._events: list[Event] = []
        self._filters: dict[str, int] = {}
        self._principals: list[tuple[str, int, int]] = []
        self.acknowledged_messages = 0
        """Number of messages that groups acknowledged since these outcomes were loaded. Not part of the state."""

    def add(self, event: Event) -> None:
        self._events.append(event)

    def add_ack(self, event: Event) -> None:
        """Add an event of type ACK, and count its messages."""
        self._events.append(event)
        self.acknowledged_messages += _messages_of(event)

    def add_all(self, events: Iterable[Event]) -> None:
        self._events.extend(events)

    def filter(self, expression: str | None) -> int | None:
        """Return the number by which events of this entry refer to the expression; None for None."""
        return None if expression is None else self._filters.setdefault(expression, len(self._filters))

    def mark(self) -> int:
        """Return a mark for `undo`."""
        return len(self._events)

    def undo(self, mark: int) -> None:
        """Forget the events added since `mark`, because their command was refused."""
        self.acknowledged_messages -= sum(_messages_of(each) for each in self._events[mark:] if each.type == "ACK")
        del self._events[mark:]

    def name(self, principal: str, mark: int) -> None:
        """Note that the events added since `mark` are of a request of `principal`."""
        if mark < len(self._events):
            self._principals.append((principal, mark, len(self._events)))

    def store(self, raft_index: int, term: int, clock_ms: int, feature_level: int) -> None:
        """Stage the row of the entry, if the entry had effects, as nodes of `feature_level` read it."""
        if self._events:
            outcome = Outcome(term, clock_ms, tuple(self._events), tuple(self._filters), tuple(self._principals))
            self._index.put(keys.outcome(raft_index), _encode(FEATURES.at(outcome, feature_level)))
            self._events.clear()
            self._filters.clear()
            self._principals.clear()

    def remove(self, first: int, before: int) -> None:
        """Remove the rows of the entries first <= index < before."""
        self._index.delete_range(keys.outcome(first), keys.outcome(before))

    def scan(self, first: int, last: int) -> Iterator[OutcomeOf]:
        """Yield the rows of the entries first <= index <= last that had effects, in order."""
        for key, value in self._index.scan(keys.outcome(first), keys.outcome(last + 1)):
            yield OutcomeOf(keys.read_u64(key[1:]), _decode(value))

    def first_of(self, first: int, last: int, limit: int, events_max: int) -> Iterator[OutcomeOf]:
        """Yield like `scan` at most `limit` rows, and none after `events_max` events."""
        for each in itertools.islice(self.scan(first, last), limit):
            yield each
            events_max -= len(each.outcome.events)
            if events_max <= 0:
                return


def message_events(
    type: EventType,
    topic: str | None,
    queue: int | None,
    offset: int | None,
    block: BlockLocation,
    messages: MessagesOf,
    *,
    attempt: int | None = None,
    group: str | None = None,
    client: str | None = None,
    transaction_id: str | None = None,
) -> Event:
    """Return an event about messages. Messages of a block that the broker made are named by id: their block is in no
    record.
    """
    if block.inline is None:
        return Event(type, None, topic, queue, offset, None, group, client, attempt, None, messages)
    message_id = f"{block.batch_id}-0"
    return Event(type, transaction_id, topic, queue, offset, None, group, client, attempt, message_id)


def messages_of(block: BlockLocation, count: int, skip: tuple[int, ...] = (), only: int | None = None) -> MessagesOf:
    return MessagesOf(block.position, block.offset, count, skip, only)
