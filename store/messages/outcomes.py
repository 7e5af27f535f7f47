"""What applying an entry did to messages: which got an offset, which wait, what was decided, committed or given back.

The log says what was asked for. Where a batch was placed, which of its messages were known before, from where an offset
moved, and what a timer brought is decided by apply, so apply keeps it: one row per entry that did something, written
with the effects themselves. A row is a function of the entries before it, the same on every replica, never changed;
rows of entries that the log need not keep are removed.

A row refers to message blocks and does not copy them; their ids, and who produced them, are in the record that has
them.
"""

from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

import msgspec

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
]


class MessagesOf(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True, gc=False):
    """Messages of the block at `block_offset` of the record at `position`: one, `only`, or all but those in `skip`."""

    position: int
    block_offset: int
    count: int
    skip: tuple[int, ...] = ()
    only: int | None = None


class Event(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True, gc=False):
    """One thing that happened, to `messages` or to a transaction; `offset` is that of the first of the messages.

    `offset_end` is for ACK: the group's offset moved from `offset` to it. `group` is the consumers' for ACK, RETRY and
    DLQ; where it is None, of what has messages, their producer's is meant. `attempt` is how often a message was given
    back, or a transaction asked about. `message_id` is for what has no block in the log. Without a `topic`, that of the
    batch is meant.
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

    @property
    def rows(self) -> int:
        """How many messages it is about; one when it is about none."""
        return 1 if self.messages is None else self.messages.count


class Outcome(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """The row of an entry. `clock_ms` is the replicated clock when it was applied."""

    term: int
    clock_ms: int
    events: tuple[Event, ...]


class OutcomeOf(NamedTuple):
    raft_index: int
    outcome: Outcome


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Outcome).decode


class Outcomes:
    """Collects the events of the entry that is being applied."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._events: list[Event] = []

    def add(self, event: Event) -> None:
        self._events.append(event)

    def add_all(self, events: Iterable[Event]) -> None:
        self._events.extend(events)

    def mark(self) -> int:
        """Where `undo` goes back to."""
        return len(self._events)

    def undo(self, mark: int) -> None:
        """Forget what was added since: it was refused."""
        del self._events[mark:]

    def store(self, raft_index: int, term: int, clock_ms: int) -> None:
        """Stage the row of the entry, if it did anything."""
        if self._events:
            outcome = Outcome(term, clock_ms, tuple(self._events))
            self._index.put(keys.outcome(raft_index), _encode(outcome))
            self._events.clear()

    def remove(self, first: int, before: int) -> None:
        """Forget the rows of the entries first <= index < before."""
        self._index.delete_range(keys.outcome(first), keys.outcome(before))

    def scan(self, first: int, last: int) -> Iterator[OutcomeOf]:
        """Of the entries first <= index <= last that did something, in order."""
        for key, value in self._index.scan(keys.outcome(first), keys.outcome(last + 1)):
            yield OutcomeOf(keys.read_u64(key[1:]), _decode(value))


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
    """An event of messages. Those of a block that the broker made are named: their block is in no record."""
    if block.inline is None:
        return Event(type, None, topic, queue, offset, None, group, client, attempt, None, messages)
    message_id = f"{block.batch_id}-0"
    return Event(type, transaction_id, topic, queue, offset, None, group, client, attempt, message_id)


def messages_of(block: BlockLocation, count: int, skip: tuple[int, ...] = (), only: int | None = None) -> MessagesOf:
    return MessagesOf(block.position, block.offset, count, skip, only)
