"""Messages of a queue's rows: their blocks from the log, their offsets, and how JSON shows them."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from crc32c import crc32c
from msgspec import UNSET, UnsetType

from cluster.blocks import BlockMessage, body_text, read_block
from cluster.core import Core
from cluster.problems import Problem
from cluster.responses import AttemptView, MessageView, as_view, origin_view
from store.log_errors import LogTruncated
from store.results import HalfBatchView, Redelivery, Row
from store.topics import DLQ_PREFIX


class BlockReader:
    """Reads message blocks from the log; blocks of the same log record share one read."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._position = -1
        self._payload = b""
        self._unpacked_at: tuple[int, int] | None = None
        self._unpacked: list[BlockMessage] = []

    def block(self, place: Row | HalfBatchView) -> bytes:
        """The block as it was produced, its checksum verified."""
        if isinstance(place, Row) and place.inline is not None:
            return place.inline
        if place.position != self._position:
            try:
                self._payload = self._core.read_payload(place.position)
            except LogTruncated:
                raise Problem("overloaded", "what was found is just being removed; try again") from None
            self._position = place.position
        block = self._payload[place.block_offset : place.block_offset + place.block_length]
        if crc32c(block) != place.crc32c:
            # The record's own CRC holds, so the disk is innocent and every replica would answer the same.
            raise RuntimeError(f"batch {place.batch_id} in the log record at {place.position} has another crc32c")
        return block

    def messages(self, place: Row | HalfBatchView) -> list[BlockMessage]:
        """All messages of the block; asked for one after the other, those of one block are unpacked once."""
        if isinstance(place, Row) and place.inline is not None:
            return read_block(place.inline, None)
        at = (place.position, place.block_offset)
        if at != self._unpacked_at:
            self._unpacked = read_block(self.block(place), place.uncompressed_bytes)
            self._unpacked_at = at
        return self._unpacked

    def reads_anew(self, place: Row | HalfBatchView) -> bool:
        """Whether `messages` has to unpack a block for this."""
        return (place.position, place.block_offset) != self._unpacked_at


class FoundMessage(NamedTuple):
    """A message of a row, with the offset it is delivered at."""

    offset: int
    message_id: str
    message: BlockMessage


def delivered(row: Row, messages: list[BlockMessage]) -> Iterator[FoundMessage]:
    """The row's messages with their offsets; the ordinals it skips take none."""
    for offset, ordinal in enumerate(row.ordinals(), row.base_offset):
        message = messages[ordinal]
        yield FoundMessage(offset, message.message_id or f"{row.batch_id}-{ordinal}", message)


def message_view(
    found: BlockMessage,
    message_id: str,
    topic: str,
    queue: int,
    stored_at_ms: int,
    offset: int | None,
    redelivery: Redelivery | None = None,
    *,
    transaction_id: str | None = None,
    added_properties: Mapping[str, str] | None = None,
) -> MessageView:
    body, encoding = body_text(found.body)
    return MessageView(
        message_id=message_id,
        topic=topic,
        queue=queue,
        offset=UNSET if offset is None else offset,
        body=body,
        encoding=encoding,
        tag=found.tag,
        keys=found.keys,
        properties=found.properties if added_properties is None else {**found.properties, **added_properties},
        sharding_key=found.sharding_key,
        born_at_ms=found.born_at_ms,
        stored_at_ms=stored_at_ms,
        attempt=UNSET if redelivery is None else redelivery.attempt,
        origin=origin_view(redelivery),
        history=_history(topic, redelivery),
        transaction_id=UNSET if transaction_id is None else transaction_id,
    )


def _history(topic: str, redelivery: Redelivery | None) -> tuple[AttemptView, ...] | UnsetType:
    if redelivery is None or not topic.startswith(DLQ_PREFIX):
        return UNSET
    return tuple(as_view(AttemptView, entry) for entry in redelivery.history)
