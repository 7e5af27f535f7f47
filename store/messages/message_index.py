"""The message index: finds a message's place by its id or by a key, even long after it was stored.

The tables are written beside the regular effects of apply, and no decision of apply depends on them:

    - A batch id maps to the batch's place. An explicit message id maps to the batch and the ordinal in it. So a message
      is found by either form of its id, with one more write per batch, and one per explicit id.
    - The id of a half batch maps to its transaction, the id of a delayed batch to its timer: messages are also found
      before they are visible.
    - A key's hash maps to messages in time order: the reader compares the key itself, which is in the block.
    - The events of a single message after its delivery: given back, redelivered, dead-lettered, replayed.

Messages stored before this table existed are not in it. Places whose rows are gone are left out when they are read.
"""

from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Final, Literal, NamedTuple

import msgspec

from store.features import FEATURES
from store.index import keys
from store.index.index import Index
from store.index.keys import KEY_HASH_BYTES as KEY_HASH_BYTES
from store.messages.named_rows import encoded_with_principal
from store.messages.timers import Timer, TimerKey
from store.steps import Steps, portions

RedeliveryEventName = Literal["given_back", "given_again", "dead_lettered", "replayed"]
_KINDS: Final[tuple[RedeliveryEventName, ...]] = ("given_back", "replayed", "given_again", "dead_lettered")
"""The kinds, in the order in which the events of one entry happen."""


def key_hash(key: str) -> bytes:
    """Return the hash that stands for a key in the log and in the index."""
    return blake2b(key.encode(), digest_size=KEY_HASH_BYTES).digest()


class TakenBack(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    ordinal: int
    at_ms: int
    raft_index: int
    principal: str | None = None
    """The authenticated principal that cancelled the message."""


class BatchTimer(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """A batch that was scheduled; kept after it was delivered."""

    queue: int
    due_ms: int
    scheduled_at_ms: int
    raft_index: int
    transaction_id: str | None
    taken_back: tuple[TakenBack, ...] = ()


class RedeliveryEvent(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """An action of a group on a message.

    `offset` is the message's offset in the group's own topic, once it is there.
    """

    at_ms: int
    group: str
    attempt: int
    offset: int | None = None
    due_at_ms: int | None = None
    reason: str = ""
    member_id: str = ""
    client_id: str = ""
    principal: str | None = None
    """The authenticated principal that had a dead letter delivered once more."""


class FoundEvent(NamedTuple):
    name: RedeliveryEventName
    raft_index: int
    own_topic_id: int
    """Id of the group's own topic, which no topic of a later group of the same name has."""
    event: RedeliveryEvent


class KeyedMessage(NamedTuple):
    """The place of a message with some key. Sorts by time."""

    stored_at_ms: int
    queue: int
    offset: int


class BatchTimerOf(NamedTuple):
    key: TimerKey
    timer: BatchTimer


class KnownOfId(NamedTuple):
    """All places and references known for an id in one topic, each list in the order of its keys."""

    places: list[tuple[int, int]]
    """Queue and offset of the first message of each batch with this id; for a batch id."""
    batches: list[tuple[str, int]]
    """Batch id and ordinal of each message with this id; for an explicit message id."""
    transactions: list[str]
    timers: list[BatchTimerOf]
    fired: dict[int, int]
    """The offset at which a timer's first message became visible, by the timer's sequence number."""


class Place(NamedTuple):
    topic_id: int
    queue: int
    offset: int


_encode = msgspec.msgpack.Encoder().encode
_decode_timer = msgspec.msgpack.Decoder(BatchTimer).decode
_decode_event = msgspec.msgpack.Decoder(RedeliveryEvent).decode


class MessageIndex:
    def __init__(self, index: Index) -> None:
        self._index = index

    # Changes, during apply.

    def add_batch(self, topic_id: int, queue: int, offset: int, batch_id: str) -> None:
        """Note that a batch became visible."""
        self._index.put(keys.place_of_batch(topic_id, batch_id, queue, offset), b"")

    def forget_batch(self, topic_id: int, queue: int, offset: int, batch_id: str) -> None:
        """Note that a batch is gone; its other keys are swept out later (store/state/sweep.py)."""
        self._index.delete(keys.place_of_batch(topic_id, batch_id, queue, offset))

    def add_ids(
        self, topic_id: int, batch_id: str, message_ids: Sequence[str | None], skip: Iterable[int] = ()
    ) -> Steps[None]:
        """Note the explicit ids of an accepted batch, except the ids at the ordinals in `skip`, which are known."""
        skipped = frozenset(skip)
        added = [(i, each) for i, each in enumerate(message_ids) if each is not None and i not in skipped]
        for number, portion in enumerate(portions(added)):
            if number:
                yield
            self._index.put_all([(key, b"") for key in keys.batch_of_messages(topic_id, batch_id, portion)])

    def add_keys(
        self, topic_id: int, queue: int, offset: int, hashes: Sequence[bytes], skip: Iterable[int], stored_at_ms: int
    ) -> None:
        """Note the keys of a batch that became visible, except the keys at the ordinals in `skip`, which did not."""
        skipped = frozenset(skip)
        became_visible = [joined for ordinal, joined in enumerate(hashes) if ordinal not in skipped]
        self._index.put_all(
            [
                (keys.keyed_message(topic_id, joined[begin : begin + KEY_HASH_BYTES], stored_at_ms, queue, at), b"")
                for at, joined in enumerate(became_visible, offset)
                for begin in range(0, len(joined), KEY_HASH_BYTES)
            ]
        )

    def add_half(self, topic_id: int, batch_id: str, transaction_id: str) -> None:
        """Note that a half batch was prepared."""
        self._index.put(keys.transaction_of_batch(topic_id, batch_id, transaction_id), b"")

    def add_timer(self, key: TimerKey, timer: Timer) -> None:
        """Note that a batch was scheduled."""
        self._index.put(_timer_key(key, timer), _encode(_of_timer(key, timer)))

    def timer_fired(self, key: TimerKey, timer: Timer, offset: int) -> None:
        """Note that the timer's first message became visible at `offset`. Reads nothing, because many timers are due at
        once.
        """
        fired = keys.fired_of_batch_id(timer.topic_id, timer.block.batch_id, key.sequence)
        self._index.put(fired, keys.u64(offset))

    def taken_back(self, key: TimerKey, timer: Timer, taken_back: TakenBack, feature_level: int) -> None:
        """Note that one of the timer's messages was cancelled, as nodes of `feature_level` read it."""
        stored = _timer_key(key, timer)
        value = self._index.get(stored)
        recorded = _decode_timer(value) if value is not None else _of_timer(key, timer)
        changed = msgspec.structs.replace(recorded, taken_back=(*recorded.taken_back, taken_back))
        self._index.put(stored, _encode(FEATURES.at(changed, feature_level)))

    def add_event(
        self, place: Place, raft_index: int, own_topic_id: int, name: RedeliveryEventName, event: RedeliveryEvent
    ) -> None:
        """Note an event of the message at `place`."""
        key = keys.event_of_place(keys.events_of_place(*place), raft_index, own_topic_id, _KINDS.index(name))
        self._index.put(key, encoded_with_principal(event))

    def forget_topic(self, topic_id: int) -> None:
        """Remove everything known of a deleted topic."""
        for prefix in keys.messages_of_topic(topic_id):
            self._index.delete_range(prefix, keys.after(prefix))

    # Queries.

    def batches(self, topic_id: int, message_id: str) -> list[tuple[str, int]]:
        """Return batch id and ordinal of all messages that may have this id: the message blocks tell which do."""
        found = dict.fromkeys(self._known(topic_id, message_id).batches)
        implied = _place_implied(message_id)
        if implied is not None:
            found[implied] = None
        return list(found)

    def may_have(self, topic_ids: Sequence[int], message_id: str) -> list[bool]:
        """Return for each topic whether `batches` may find something there, and `of_batch` a place for it."""
        implied = _place_implied(message_id)
        ids = (message_id,) if implied is None else (message_id, implied[0])
        known = [self._index.beginning([keys.known_of_id(each, value) for each in topic_ids]) for value in ids]
        return [any(of) for of in zip(*known, strict=True)]

    def of_batch(self, topic_id: int, batch_id: str) -> KnownOfId:
        """Return all places and references of the batches with this id; places may be gone."""
        return self._known(topic_id, batch_id)

    def keyed(self, topic_id: int, hashed: bytes, begin: KeyedMessage, end_ms: int) -> Iterator[KeyedMessage]:
        """Yield the messages with a key of this hash from `begin` on and stored before `end_ms`, in time order."""
        first = keys.keyed_message(topic_id, hashed, *begin)
        for key, _ in self._index.scan(first, keys.keyed_message(topic_id, hashed, end_ms, 0, 0)):
            yield KeyedMessage(*keys.keyed_message_parts(key))

    def events(self, place: Place) -> Iterator[FoundEvent]:
        """Yield the events of the message at `place`, in order."""
        prefix = keys.events_of_place(*place)
        for key, value in self._index.scan(prefix, keys.after(prefix)):
            raft_index, own_topic_id, kind = keys.event_of_place_parts(key)
            yield FoundEvent(_KINDS[kind], raft_index, own_topic_id, _decode_event(value))

    def _known(self, topic_id: int, value: str) -> KnownOfId:
        known = KnownOfId([], [], [], [], {})
        prefix = keys.known_of_id(topic_id, value)
        begin = len(prefix)
        for key, stored in self._index.scan(prefix, keys.after(prefix)):
            kind, rest = key[begin : begin + 1], key[begin + 1 :]
            if kind == keys.ID_PLACE:
                known.places.append(keys.place_parts(rest))
            elif kind == keys.ID_BATCH:
                known.batches.append(keys.batch_of_message_parts(rest))
            elif kind == keys.ID_TRANSACTION:
                known.transactions.append(rest.decode())
            elif kind == keys.ID_TIMER:
                timer = _decode_timer(stored)
                known.timers.append(BatchTimerOf(TimerKey(timer.due_ms, keys.read_u64(rest)), timer))
            else:
                known.fired[keys.read_u64(rest)] = keys.read_u64(stored)
        return known


def _place_implied(message_id: str) -> tuple[str, int] | None:
    """Return batch id and ordinal of the message for which the id stands if it is implicit; None if it cannot be."""
    batch_id, dash, number = message_id.rpartition("-")
    if dash and number.isascii() and number.isdigit() and len(number) <= 9 and str(int(number)) == number:
        return batch_id, int(number)
    return None


def _timer_key(key: TimerKey, timer: Timer) -> bytes:
    return keys.timer_of_batch_id(timer.topic_id, timer.block.batch_id, key.sequence)


def _of_timer(key: TimerKey, timer: Timer) -> BatchTimer:
    return BatchTimer(timer.queue, key.due_ms, timer.scheduled_at_ms, timer.raft_index, timer.transaction_id)
