"""Keys of the index: one byte names the table, integers are big-endian so that a range reads in order.

The whole layout, with the values, is in docs/index-layout.md.
"""

import struct
from collections.abc import Iterable
from typing import Final

KEY_HASH_BYTES: Final = 8
META_FORMAT: Final = b"m\x00format"
META_APPLIED: Final = b"m\x01applied"
META_CONFIGURATION: Final = b"m\x02configuration"
META_CLUSTER: Final = b"m\x03cluster"

TOPIC: Final = b"t"
QUEUE_END: Final = b"q"
ROW: Final = b"r"
BATCH_ID: Final = b"b"
MESSAGE_ID: Final = b"i"
DEDUPE_EXPIRY: Final = b"e"
TRANSACTION: Final = b"x"
TRANSACTION_IDS: Final = b"y"
TRANSACTION_EVENT: Final = b"v"
TRANSACTION_STATE: Final = b"s"
CHECK: Final = b"c"
CHECK_URL: Final = b"u"
GROUP: Final = b"g"
GROUP_OFFSET: Final = b"o"
TIMER: Final = b"d"
TOPIC_TIMER: Final = b"D"
GIVEN_BACK: Final = b"w"
SETTINGS: Final = b"z"
OUTCOME: Final = b"j"
MESSAGE_INDEX: Final = b"k"
GROUP_HISTORY: Final = b"n"
LOG_REFERENCES: Final = b"l"
RETENTION: Final = b"a"

# Tables under RETENTION.
QUEUE_STARTS: Final = RETENTION + b"\x00"
DROPPED_TOPICS: Final = RETENTION + b"\x01"
DECIDED: Final = RETENTION + b"\x02"
SWEEP_CURSOR: Final = RETENTION + b"\x03"
DROPPED_TIMERS: Final = RETENTION + b"\x04"
LEASE: Final = b"P"
LEASE_DUE: Final = b"p"
USER: Final = b"U"

# Kinds of keys under TOPIC_TIMER and a topic id.
_BY_TIME: Final = b"\x00"
_BY_BATCH: Final = b"\x01"
_BY_MESSAGE: Final = b"\x02"
_CANCELLED: Final = b"\x03"

# Tables under MESSAGE_INDEX; a topic id follows.
_BY_ID: Final = MESSAGE_INDEX + b"\x00"
_BY_KEY: Final = MESSAGE_INDEX + b"\x01"
_BY_PLACE: Final = MESSAGE_INDEX + b"\x02"
# Kinds of facts known of an id. An id holds no zero byte, so a zero byte ends it.
ID_PLACE: Final = b"\x00"
ID_BATCH: Final = b"\x01"
ID_TRANSACTION: Final = b"\x02"
ID_TIMER: Final = b"\x03"
ID_FIRED: Final = b"\x04"

_U32: Final = struct.Struct(">I")
_U64: Final = struct.Struct(">Q")
_TOPIC_QUEUE: Final = struct.Struct(">cIH")
_ROW: Final = struct.Struct(">cIHQ")
_STATE: Final = struct.Struct(">cBQ")
_TABLE_U32: Final = struct.Struct(">cI")
_TABLE_U64: Final = struct.Struct(">cQ")
_GROUP_OFFSET: Final = struct.Struct(">cIIH")
_GIVEN_BACK: Final = struct.Struct(">cIIHQ")
_TIMER: Final = struct.Struct(">cQQ")
_TIMER_BY_TIME: Final = struct.Struct(">cIcQQ")
_KIND_TOPIC: Final = struct.Struct(">2sI")
_PLACE: Final = struct.Struct(">HQ")
_ENDED_ID_PLACE: Final = struct.Struct(">2xHQ")  # the end of an id and ID_PLACE, both zero bytes, before a place
_KIND_PLACE: Final = struct.Struct(">2sIHQ")
_KEYED_PLACE: Final = struct.Struct(">2sI8sQHQ")
_PLACE_EVENT: Final = struct.Struct(">QIB")
_KIND_QUEUE: Final = struct.Struct(">2sIH")
_KIND_U64: Final = struct.Struct(">2sQ")
_LEASE: Final = struct.Struct(">cIQIQ")
_LEASE_DUE: Final = struct.Struct(">cQIQIQ")
_GROUP_PASS: Final = struct.Struct(">cIIHI")
_GROUP_COMMIT: Final = struct.Struct(">cIIHIQ")


def u64(value: int) -> bytes:
    return _U64.pack(value)


def read_u64(data: bytes) -> int:
    (value,) = _U64.unpack(data)
    return int(value)


def read_u32(data: bytes) -> int:
    (value,) = _U32.unpack(data)
    return int(value)


def after(prefix: bytes) -> bytes:
    """Return the first key that sorts after every key with `prefix`."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes((stripped[-1] + 1,))


def topic(name: str) -> bytes:
    return TOPIC + name.encode()


def user(name: str) -> bytes:
    return USER + name.encode()


def queue_end(topic_id: int, queue: int) -> bytes:
    return _TOPIC_QUEUE.pack(QUEUE_END, topic_id, queue)


def queue_ends(topic_id: int) -> bytes:
    return _TABLE_U32.pack(QUEUE_END, topic_id)


def row(topic_id: int, queue: int, base_offset: int) -> bytes:
    return _ROW.pack(ROW, topic_id, queue, base_offset)


def row_base_offset(key: bytes) -> int:
    return read_u64(key[7:15])


def rows(topic_id: int) -> bytes:
    return _TABLE_U32.pack(ROW, topic_id)


def batch_id(topic_id: int, value: str) -> bytes:
    return _TABLE_U32.pack(BATCH_ID, topic_id) + value.encode()


def message_ids(topic_id: int) -> bytes:
    """Return the prefix of the keys of a topic's message ids; the id follows it."""
    return _TABLE_U32.pack(MESSAGE_ID, topic_id)


def message_id(topic_id: int, value: str) -> bytes:
    return message_ids(topic_id) + value.encode()


def dedupe_expiry(sequence: int) -> bytes:
    return _TABLE_U64.pack(DEDUPE_EXPIRY, sequence)


def transaction(transaction_id: str) -> bytes:
    return TRANSACTION + transaction_id.encode()


def transaction_ids(transaction_id: str, batch: int) -> bytes:
    return TRANSACTION_IDS + transaction_id.encode() + b"\x00" + _U32.pack(batch)


def transaction_keys(transaction_id: str, batch: int) -> bytes:
    return TRANSACTION_IDS + transaction_id.encode() + b"\x01" + _U32.pack(batch)


def transaction_events(transaction_id: str) -> bytes:
    return TRANSACTION_EVENT + transaction_id.encode() + b"\x00"


def transaction_event(transaction_id: str, sequence: int) -> bytes:
    return transaction_events(transaction_id) + _U32.pack(sequence)


def transaction_state(state: int, prepared_at_ms: int, transaction_id: str) -> bytes:
    return _STATE.pack(TRANSACTION_STATE, state, prepared_at_ms) + transaction_id.encode()


def transaction_state_parts(key: bytes) -> tuple[int, str]:
    """Return `prepared_at_ms` and transaction id of a state key."""
    return read_u64(key[2:10]), key[10:].decode()


def check(next_check_at_ms: int, transaction_id: str) -> bytes:
    return _TABLE_U64.pack(CHECK, next_check_at_ms) + transaction_id.encode()


def check_transaction_id(key: bytes) -> str:
    return key[9:].decode()


def check_url(producer_group: str) -> bytes:
    return CHECK_URL + producer_group.encode()


def check_url_group(key: bytes) -> str:
    return key[len(CHECK_URL) :].decode()


def group(name: str) -> bytes:
    return GROUP + name.encode()


def group_offset(group_id: int, topic_id: int, queue: int) -> bytes:
    return _GROUP_OFFSET.pack(GROUP_OFFSET, group_id, topic_id, queue)


def group_offset_parts(key: bytes) -> tuple[int, int, int]:
    """Return group id, topic id and queue of an offset key."""
    _, group_id, topic_id, queue = _GROUP_OFFSET.unpack(key)
    return int(group_id), int(topic_id), int(queue)


def group_offsets_in(group_id: int, topic_id: int) -> bytes:
    """Return the prefix of the keys of a group's offsets in one topic; the queue follows it."""
    return group_offset(group_id, topic_id, 0)[:-2]


def given_back(group_id: int, topic_id: int, queue: int, offset: int) -> bytes:
    return _GIVEN_BACK.pack(GIVEN_BACK, group_id, topic_id, queue, offset)


def given_back_parts(key: bytes) -> tuple[int, int, int, int]:
    """Return group id, topic id, queue and offset of a mark's key."""
    _, group_id, topic_id, queue, offset = _GIVEN_BACK.unpack(key)
    return int(group_id), int(topic_id), int(queue), int(offset)


def given_back_by(group_id: int) -> bytes:
    return _TABLE_U32.pack(GIVEN_BACK, group_id)


def group_offsets(group_id: int) -> bytes:
    return _TABLE_U32.pack(GROUP_OFFSET, group_id)


def leases_of(group_id: int) -> bytes:
    return _TABLE_U32.pack(LEASE, group_id)


def lease(group_id: int, raft_index: int, number: int, single: int) -> bytes:
    return _LEASE.pack(LEASE, group_id, raft_index, number, single)


def lease_parts(key: bytes) -> tuple[int, int, int, int]:
    """Return group id, raft index, number and `single` of a lease key."""
    _, group_id, raft_index, number, single = _LEASE.unpack(key)
    return int(group_id), int(raft_index), int(number), int(single)


def lease_due(due_ms: int, of: tuple[int, int, int, int]) -> bytes:
    """Return the due key of the lease `of`, given as `lease_parts` returns it."""
    return _LEASE_DUE.pack(LEASE_DUE, due_ms, *of)


def lease_due_parts(key: bytes) -> tuple[int, tuple[int, int, int, int]]:
    """Return due time and lease of a due key."""
    _, due_ms, group_id, raft_index, number, single = _LEASE_DUE.unpack(key)
    return int(due_ms), (int(group_id), int(raft_index), int(number), int(single))


def timer(due_ms: int, sequence: int) -> bytes:
    return _TIMER.pack(TIMER, due_ms, sequence)


def timer_parts(key: bytes) -> tuple[int, int]:
    """Return due time and sequence of a timer key."""
    return read_u64(key[1:9]), read_u64(key[9:17])


def topic_timers(topic_id: int) -> bytes:
    return _TABLE_U32.pack(TOPIC_TIMER, topic_id)


def topic_timers_by_time(topic_id: int) -> bytes:
    return topic_timers(topic_id) + _BY_TIME


def topic_timer(topic_id: int, due_ms: int, sequence: int) -> bytes:
    return _TIMER_BY_TIME.pack(TOPIC_TIMER, topic_id, _BY_TIME, due_ms, sequence)


def topic_timer_parts(key: bytes) -> tuple[int, int]:
    """Return due time and sequence of a topic's timer key."""
    return read_u64(key[6:14]), read_u64(key[14:22])


def timer_of_batch(topic_id: int, batch_id: str) -> bytes:
    return topic_timers(topic_id) + _BY_BATCH + batch_id.encode()


def timer_of_messages(topic_id: int, message_ids: Iterable[str]) -> list[bytes]:
    prefix = topic_timers(topic_id) + _BY_MESSAGE
    return [prefix + message_id.encode() for message_id in message_ids]


def timer_of_message(topic_id: int, message_id: str) -> bytes:
    return topic_timers(topic_id) + _BY_MESSAGE + message_id.encode()


def cancelled_message(topic_id: int, message_id: str) -> bytes:
    return topic_timers(topic_id) + _CANCELLED + message_id.encode()


def outcome(raft_index: int) -> bytes:
    return _TABLE_U64.pack(OUTCOME, raft_index)


def known_of_id(topic_id: int, value: str) -> bytes:
    return _KIND_TOPIC.pack(_BY_ID, topic_id) + value.encode() + b"\x00"


def place_of_batch(topic_id: int, batch_id: str, queue: int, base_offset: int) -> bytes:
    return _KIND_TOPIC.pack(_BY_ID, topic_id) + batch_id.encode() + _ENDED_ID_PLACE.pack(queue, base_offset)


def place_parts(rest: bytes) -> tuple[int, int]:
    """Return queue and offset from the rest of the key after ID_PLACE."""
    queue, offset = _PLACE.unpack(rest)
    return int(queue), int(offset)


def batch_of_messages(topic_id: int, batch_id: str, ordinal_ids: Iterable[tuple[int, str]]) -> list[bytes]:
    """Return the key of each message of a batch, which is given by its ordinal and its explicit id."""
    topic, kind, batch, pack = _KIND_TOPIC.pack(_BY_ID, topic_id), b"\x00" + ID_BATCH, batch_id.encode(), _U32.pack
    return [b"".join((topic, message_id.encode(), kind, pack(ordinal), batch)) for ordinal, message_id in ordinal_ids]


def batch_of_message_parts(rest: bytes) -> tuple[str, int]:
    """Return batch id and ordinal from the rest of the key after ID_BATCH."""
    (ordinal,) = _U32.unpack(rest[:4])
    return rest[4:].decode(), int(ordinal)


def transaction_of_batch(topic_id: int, batch_id: str, transaction_id: str) -> bytes:
    return known_of_id(topic_id, batch_id) + ID_TRANSACTION + transaction_id.encode()


def timer_of_batch_id(topic_id: int, batch_id: str, sequence: int) -> bytes:
    return known_of_id(topic_id, batch_id) + ID_TIMER + _U64.pack(sequence)


def fired_of_batch_id(topic_id: int, batch_id: str, sequence: int) -> bytes:
    return known_of_id(topic_id, batch_id) + ID_FIRED + _U64.pack(sequence)


def messages_of_topic(topic_id: int) -> tuple[bytes, bytes, bytes]:
    """Return the prefixes of all keys under MESSAGE_INDEX that belong to a topic."""
    return (
        _KIND_TOPIC.pack(_BY_ID, topic_id),
        _KIND_TOPIC.pack(_BY_KEY, topic_id),
        _KIND_TOPIC.pack(_BY_PLACE, topic_id),
    )


def keyed_message(topic_id: int, key_hash: bytes, stored_at_ms: int, queue: int, offset: int) -> bytes:
    """Return the key of a message with a key of this hash.

    `key_hash` has 8 bytes. Messages with one hash sort by time.
    """
    return _KEYED_PLACE.pack(_BY_KEY, topic_id, key_hash, stored_at_ms, queue, offset)


def keyed_message_parts(key: bytes) -> tuple[int, int, int]:
    """Return `stored_at_ms`, queue and offset of a keyed message's key."""
    _, _, _, stored_at_ms, queue, offset = _KEYED_PLACE.unpack(key)
    return int(stored_at_ms), int(queue), int(offset)


def events_of_place(topic_id: int, queue: int, offset: int) -> bytes:
    return _KIND_PLACE.pack(_BY_PLACE, topic_id, queue, offset)


def event_of_place(place: bytes, raft_index: int, own_topic_id: int, kind: int) -> bytes:
    """Return the key of an event; `place` is the prefix that `events_of_place` returns, `own_topic_id` is of the
    group's own topic.
    """
    return place + _PLACE_EVENT.pack(raft_index, own_topic_id, kind)


def event_of_place_parts(key: bytes) -> tuple[int, int, int]:
    """Return raft index, id of the group's own topic, and kind of an event's key."""
    raft_index, own_topic_id, kind = _PLACE_EVENT.unpack(key[-_PLACE_EVENT.size :])
    return int(raft_index), int(own_topic_id), int(kind)


def group_history(group_id: int) -> bytes:
    return _TABLE_U32.pack(GROUP_HISTORY, group_id)


def group_commits(group_id: int, topic_id: int) -> bytes:
    return _GROUP_PASS.pack(GROUP_HISTORY, group_id, topic_id, 0, 0)[:9]


def group_pass(group_id: int, topic_id: int, queue: int, number: int) -> bytes:
    return _GROUP_PASS.pack(GROUP_HISTORY, group_id, topic_id, queue, number)


def group_commit(group_id: int, topic_id: int, queue: int, number: int, offset: int) -> bytes:
    return _GROUP_COMMIT.pack(GROUP_HISTORY, group_id, topic_id, queue, number, offset)


def group_pass_number(key: bytes) -> int:
    """Return the number of the pass over the queue that a commit belongs to."""
    (number,) = _U32.unpack(key[11:15])
    return int(number)


def group_commit_parts(key: bytes) -> tuple[int, int, int]:
    """Return topic id, queue and offset of a commit's key."""
    _, _, topic_id, queue, _, offset = _GROUP_COMMIT.unpack(key)
    return int(topic_id), int(queue), int(offset)


def place_event_parts(key: bytes) -> tuple[int, int, int]:
    """Return topic id, queue and offset of the message that an event's key belongs to."""
    _, topic_id, queue, offset = _KIND_PLACE.unpack(key[: _KIND_PLACE.size])
    return int(topic_id), int(queue), int(offset)


def log_references(number: int) -> bytes:
    return _TABLE_U64.pack(LOG_REFERENCES, number)


def queue_start(topic_id: int, queue: int) -> bytes:
    return _KIND_QUEUE.pack(QUEUE_STARTS, topic_id, queue)


def queue_starts(topic_id: int) -> bytes:
    return _KIND_TOPIC.pack(QUEUE_STARTS, topic_id)


def dropped_topic(topic_id: int) -> bytes:
    return _KIND_TOPIC.pack(DROPPED_TOPICS, topic_id)


def dropped_timers(topic_id: int) -> bytes:
    return _KIND_TOPIC.pack(DROPPED_TIMERS, topic_id)


def decided(decided_at_ms: int, transaction_id: str) -> bytes:
    return _KIND_U64.pack(DECIDED, decided_at_ms) + transaction_id.encode()


def decided_parts(key: bytes) -> tuple[int, str]:
    """Return `decided_at_ms` and transaction id of a decision's key."""
    return read_u64(key[2:10]), key[10:].decode()
