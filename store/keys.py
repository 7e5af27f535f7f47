"""Keys of the index: one byte names the table, integers are big-endian so that a range reads in order.

The whole layout, with the values, is in docs/index-layout.md.
"""

import struct
from typing import Final

META_FORMAT: Final = b"m\x00format"
META_APPLIED: Final = b"m\x01applied"

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

# What a key under TOPIC_TIMER and a topic id is about.
_BY_TIME: Final = b"\x00"
_BY_BATCH: Final = b"\x01"
_BY_MESSAGE: Final = b"\x02"
_CANCELLED: Final = b"\x03"

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


def u64(value: int) -> bytes:
    return _U64.pack(value)


def read_u64(data: bytes) -> int:
    (value,) = _U64.unpack(data)
    return int(value)


def after(prefix: bytes) -> bytes:
    """The first key that sorts after every key with `prefix`."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes((stripped[-1] + 1,))


def topic(name: str) -> bytes:
    return TOPIC + name.encode()


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


def message_id(topic_id: int, value: str) -> bytes:
    return _TABLE_U32.pack(MESSAGE_ID, topic_id) + value.encode()


def dedupe_expiry(sequence: int) -> bytes:
    return _TABLE_U64.pack(DEDUPE_EXPIRY, sequence)


def transaction(transaction_id: str) -> bytes:
    return TRANSACTION + transaction_id.encode()


def transaction_ids(transaction_id: str, batch: int) -> bytes:
    return TRANSACTION_IDS + transaction_id.encode() + b"\x00" + _U32.pack(batch)


def transaction_events(transaction_id: str) -> bytes:
    return TRANSACTION_EVENT + transaction_id.encode() + b"\x00"


def transaction_event(transaction_id: str, sequence: int) -> bytes:
    return transaction_events(transaction_id) + _U32.pack(sequence)


def transaction_state(state: int, prepared_at_ms: int, transaction_id: str) -> bytes:
    return _STATE.pack(TRANSACTION_STATE, state, prepared_at_ms) + transaction_id.encode()


def transaction_state_parts(key: bytes) -> tuple[int, str]:
    """`prepared_at_ms` and transaction id of a state key."""
    return read_u64(key[2:10]), key[10:].decode()


def check(next_check_at_ms: int, transaction_id: str) -> bytes:
    return _TABLE_U64.pack(CHECK, next_check_at_ms) + transaction_id.encode()


def check_transaction_id(key: bytes) -> str:
    return key[9:].decode()


def check_url(producer_group: str) -> bytes:
    return CHECK_URL + producer_group.encode()


def group(name: str) -> bytes:
    return GROUP + name.encode()


def group_offset(group_id: int, topic_id: int, queue: int) -> bytes:
    return _GROUP_OFFSET.pack(GROUP_OFFSET, group_id, topic_id, queue)


def group_offset_parts(key: bytes) -> tuple[int, int, int]:
    """Group id, topic id and queue of an offset key."""
    _, group_id, topic_id, queue = _GROUP_OFFSET.unpack(key)
    return int(group_id), int(topic_id), int(queue)


def given_back(group_id: int, topic_id: int, queue: int, offset: int) -> bytes:
    return _GIVEN_BACK.pack(GIVEN_BACK, group_id, topic_id, queue, offset)


def given_back_parts(key: bytes) -> tuple[int, int, int, int]:
    """Group id, topic id, queue and offset."""
    _, group_id, topic_id, queue, offset = _GIVEN_BACK.unpack(key)
    return int(group_id), int(topic_id), int(queue), int(offset)


def timer(due_ms: int, sequence: int) -> bytes:
    return _TIMER.pack(TIMER, due_ms, sequence)


def timer_parts(key: bytes) -> tuple[int, int]:
    """Due time and sequence of a timer key."""
    return read_u64(key[1:9]), read_u64(key[9:17])


def topic_timers(topic_id: int) -> bytes:
    return _TABLE_U32.pack(TOPIC_TIMER, topic_id)


def topic_timers_by_time(topic_id: int) -> bytes:
    return topic_timers(topic_id) + _BY_TIME


def topic_timer(topic_id: int, due_ms: int, sequence: int) -> bytes:
    return _TIMER_BY_TIME.pack(TOPIC_TIMER, topic_id, _BY_TIME, due_ms, sequence)


def topic_timer_parts(key: bytes) -> tuple[int, int]:
    """Due time and sequence of a topic's timer key."""
    return read_u64(key[6:14]), read_u64(key[14:22])


def timer_of_batch(topic_id: int, batch_id: str) -> bytes:
    return topic_timers(topic_id) + _BY_BATCH + batch_id.encode()


def timer_of_message(topic_id: int, message_id: str) -> bytes:
    return topic_timers(topic_id) + _BY_MESSAGE + message_id.encode()


def cancelled_message(topic_id: int, message_id: str) -> bytes:
    return topic_timers(topic_id) + _CANCELLED + message_id.encode()


def outcome(raft_index: int) -> bytes:
    return _TABLE_U64.pack(OUTCOME, raft_index)
