"""Checks of queues: per queue, offsets are dense and in order, and times do not fall. All readers see prefixes of one
sequence, with intact bodies.
"""

from collections.abc import Callable
from typing import Protocol

from crc32c import crc32c

from store.commands.views import Row
from store.state.machine import StateMachine

from .violation import Violation

_ROWS_MAX, _BYTES_MAX = 1_000_000, 1 << 40


class Readings(Protocol):
    """The first message that any reader has read at each (topic, queue, offset)."""

    read: dict[tuple[str, int, int], str]


def read_queue(
    node_id: int, machine: StateMachine, payload_at: Callable[[int], bytes], topic: str, queue: int, offset: int
) -> list[Row]:
    """Return the rows that a consumer gets from `offset` on. Checks that they have no gap and that every block is as
    its producer made it.

    `payload_at` returns the payload of the log record at a position.
    """
    rows = machine.rows(topic, queue, offset, _ROWS_MAX, _BYTES_MAX)
    expected = rows[0].base_offset if rows else offset
    stored_at_ms = 0
    for row in rows:
        if row.base_offset != expected:
            _fail(node_id, topic, queue, f"offset {row.base_offset} follows where {expected} was due")
        block = payload_at(row.position)[row.block_offset : row.block_offset + row.block_length]
        if crc32c(block) != row.crc32c:
            _fail(node_id, topic, queue, f"the block of batch {row.batch_id} is not what was sent")
        if row.stored_at_ms < stored_at_ms:
            _fail(node_id, topic, queue, f"offset {row.base_offset} was stored before the one in front of it")
        expected, stored_at_ms = row.next_offset, row.stored_at_ms
    end = machine.max_offset(topic, queue)
    if max(expected, offset) != max(end, offset):
        _fail(node_id, topic, queue, f"rows end at {expected}, the queue at {end}")
    return rows


def check_same_for_all(node_id: int, topic: str, queue: int, rows: list[Row], readings: Readings) -> None:
    """Two readers never see different messages at one offset, whichever node they ask, whenever."""
    for row in rows:
        ordinals = row.ordinals()
        for at, ordinal in enumerate(ordinals):
            message = f"{row.batch_id}-{ordinal}"
            first = readings.read.setdefault((topic, queue, row.base_offset + at), message)
            if first != message:
                _fail(
                    node_id, topic, queue, f"{message} at offset {row.base_offset + at}, where {first} was read before"
                )


def _fail(node_id: int, topic: str, queue: int, found: str) -> None:
    raise Violation("queue_prefix", f"node {node_id}, queue {queue} of {topic}: {found}")
