"""Keys and values for limits in bytes and purges, from feature level 2 on; the others are in store/index/keys.py."""

import struct
from typing import Final

from store.index.keys import RETENTION

PURGED_QUEUES: Final = RETENTION + b"\x05"
LOG_TIMES: Final = RETENTION + b"\x06"

_QUEUE_END: Final = struct.Struct(">3Q")
_END_ALONE: Final = struct.Struct(">Q")
_PURGED: Final = struct.Struct(">2sIH")
_TIME: Final = struct.Struct(">2sQ")


def queue_end_value(end: int, kept_bytes: int, counted_from: int) -> bytes:
    """Return the value of a queue's end whose bytes are counted."""
    return _QUEUE_END.pack(end, kept_bytes, counted_from)


def read_queue_end(value: bytes) -> tuple[int, int, int]:
    """Return the end of a queue, the bytes of its counted rows, and the offset from which on rows are counted. In a
    value of before feature level 2 no row is.
    """
    if len(value) == _END_ALONE.size:
        (end,) = _END_ALONE.unpack(value)
        return end, 0, end
    return _QUEUE_END.unpack(value)


def purged_queue(topic_id: int, queue: int) -> bytes:
    return _PURGED.pack(PURGED_QUEUES, topic_id, queue)


def purged_queue_parts(key: bytes) -> tuple[int, int]:
    """Return topic id and queue of a purged queue's key."""
    _, topic_id, queue = _PURGED.unpack(key)
    return int(topic_id), int(queue)


def log_time(position: int) -> bytes:
    return _TIME.pack(LOG_TIMES, position)
