"""Reads the messages of a queue's rows: their blocks from the log, their offsets, and their JSON form."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple

from crc32c import crc32c
from msgspec import UNSET, UnsetType

from cluster.budgets.pace import Pace
from cluster.core.core import Core
from cluster.core.log_reads import READ_BYTES_MAX, READ_STEP_BYTES
from cluster.http.responses import as_view
from cluster.messages.blocks import BlockMessage, body_text, read_block, read_pieces
from cluster.messages.message_views import AttemptView, MessageView, origin_view
from cluster.problems import Problem
from store.commands.views import HalfBatchView, Redelivery, Row
from store.log.errors import LogTruncated
from store.log.extents import BlockPlan
from store.messages.topics import DLQ_PREFIX

LOADED_PLACES_MAX: Final = 256
"""Maximum number of blocks loaded at a time; together they take at most the bytes of one step."""

READ_ERRORS: Final = ("overloaded", "message_damaged")
"""Codes with which every request that reads messages may be answered."""

Place = Row | HalfBatchView


class BlockReader:
    """Loads message blocks of the log for one request, and owns the blocks loaded last.

    `read_bytes` counts the bytes read from disk for the request, and `take_waited_s` returns the time waited for them.
    A `patient` reader is not refused when many clients read old messages, because its request has changed the state
    already.
    """

    def __init__(self, core: Core, *, patient: bool = False) -> None:
        self._core = core
        self._reads = core.reads
        self._blocks: dict[tuple[int, int], bytes] = {}
        self._unpacked_at: tuple[int, int] | None = None
        self._unpacked: Sequence[BlockMessage] = []
        self.read_bytes = 0
        self._waited_s = 0.0
        self._patient = patient

    @property
    def is_spent(self) -> bool:
        """True when the request has read the maximum number of bytes from disk."""
        return self.read_bytes >= READ_BYTES_MAX

    async def load(self, places: Sequence[Place], at: int = 0) -> None:
        """Load the block of `places[at]` if it is not in memory, together with the following blocks that fit one step.

        Raises Problem overloaded when the block was removed since it was looked up, or too many clients read from the
        disk, and Problem message_damaged when the block does not match the producer's checksum.
        """
        if self._has(places[at]):
            return
        held, self._blocks = self._blocks, {}
        plan, wanted, taken_bytes = BlockPlan(), list[Place](), 0
        for place in islice(places, at, at + LOADED_PLACES_MAX):
            key = place.position, place.block_offset
            if (isinstance(place, Row) and place.inline is not None) or key in self._blocks:
                continue
            taken_bytes += place.block_length
            if taken_bytes > READ_STEP_BYTES and (self._blocks or wanted):
                break
            try:
                block = held.get(key) or self._cached(place)
                if block is None:
                    stored = self._reads.stored_block(*key, place.block_length, place.crc32c)
            except LogTruncated:
                if not self._blocks and not wanted:
                    raise _removed() from None
                break
            if block is not None:
                self._blocks[key] = block
            elif wanted and plan.bytes_with(stored) > READ_STEP_BYTES:
                break
            else:
                plan.add(stored)
                wanted.append(place)
        if wanted:
            await self._read(plan, wanted, needed=places[at])

    def block(self, place: Place) -> bytes:
        """Return a block in memory, as it was produced. Its checksum is verified."""
        if isinstance(place, Row) and place.inline is not None:
            return place.inline
        return self._blocks[place.position, place.block_offset]

    async def unpack(self, place: Place, pace: Pace) -> None:
        """Unpack a block in memory piece by piece, so that `messages` returns at once."""
        if (isinstance(place, Row) and place.inline is not None) or not self.reads_anew(place):
            return
        unpacked: list[BlockMessage] = []
        for piece in read_pieces(self.block(place), place.uncompressed_bytes):
            unpacked.extend(piece)
            await pace.step()
        self._unpacked, self._unpacked_at = unpacked, (place.position, place.block_offset)

    def messages(self, place: Place) -> Sequence[BlockMessage]:
        """Return all messages of a block in memory. The block asked for last is not unpacked again."""
        if isinstance(place, Row) and place.inline is not None:
            return read_block(place.inline, None)
        at = (place.position, place.block_offset)
        if at != self._unpacked_at:
            self._unpacked = read_block(self.block(place), place.uncompressed_bytes)
            self._unpacked_at = at
        return self._unpacked

    def reads_anew(self, place: Place) -> bool:
        """Return whether `messages` has to unpack the block of this place."""
        return (place.position, place.block_offset) != self._unpacked_at

    def _has(self, place: Place) -> bool:
        key = place.position, place.block_offset
        return (isinstance(place, Row) and place.inline is not None) or key in self._blocks

    def _cached(self, place: Place) -> bytes | None:
        """Return the block if its record is in memory; None when it is not, or the block's checksum is wrong."""
        payload = self._reads.cached(place.position)
        if payload is None:
            return None
        block = payload[place.block_offset : place.block_offset + place.block_length]
        return block if crc32c(block) == place.crc32c else None

    async def _read(self, plan: BlockPlan, wanted: Sequence[Place], needed: Place) -> None:
        self.read_bytes += plan.read_bytes
        try:
            found = await self._timed(plan, min(place.position for place in wanted))
            for place, block in zip(wanted, found, strict=True):
                if block is not None:
                    self._blocks[place.position, place.block_offset] = block
                elif place is needed:
                    await self._reads.check(place.position)
                    # The record is sound, so the disk is not to blame, and every replica has the same damaged block.
                    raise self._reads.damages.note(place.position, place.block_offset, place.batch_id)
        except LogTruncated:
            raise _removed() from None

    async def _timed(self, plan: BlockPlan, oldest: int) -> list[bytes | None]:
        now_s = asyncio.get_running_loop().time
        begun_s = now_s()
        try:
            return await self._reads.blocks(plan, oldest, patient=self._patient)
        finally:
            self._waited_s += now_s() - begun_s

    def take_waited_s(self) -> float:
        """Return the seconds waited for the disk since the last call, for `Pace.exclude`."""
        waited_s, self._waited_s = self._waited_s, 0.0
        return waited_s


def _removed() -> Problem:
    return Problem("overloaded", "the messages found are just being removed; try again")


class FoundMessage(NamedTuple):
    """A message of a row, with its offset in the queue."""

    offset: int
    message_id: str
    message: BlockMessage


def delivered(row: Row, messages: Sequence[BlockMessage]) -> Iterator[FoundMessage]:
    """Yield the row's messages with their offsets. Skipped ordinals have no offset."""
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
