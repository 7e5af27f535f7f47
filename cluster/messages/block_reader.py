"""Messages of a queue's rows: their blocks from the log, their offsets, and how JSON shows them."""

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
"""Blocks that are brought into memory at a time; few or many, together they take a step's bytes."""

Place = Row | HalfBatchView


class BlockReader:
    """Brings message blocks of the log into memory, and has those it has brought last.

    For one request: `read_bytes` is what was read of the disk for it, `take_waited_s` how long it waited for that. A
    `patient` one is not refused when many read old messages: what it reads for was done already.
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
        """Whether as much was read for the request as may be."""
        return self.read_bytes >= READ_BYTES_MAX

    async def load(self, places: Sequence[Place], at: int = 0) -> None:
        """Sees to it that the block of `places[at]` is in memory; of those that follow, it brings with it what one step
        reads. Problem overloaded when the block was removed since it was looked up, or the disk is read by too many;
        Problem message_damaged when it is not what was produced.
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
        """A block in memory, as it was produced, its checksum verified."""
        if isinstance(place, Row) and place.inline is not None:
            return place.inline
        return self._blocks[place.position, place.block_offset]

    async def unpack(self, place: Place, pace: Pace) -> None:
        """Unpack a block in memory piece by piece, so that `messages` has it at hand."""
        if (isinstance(place, Row) and place.inline is not None) or not self.reads_anew(place):
            return
        unpacked: list[BlockMessage] = []
        for piece in read_pieces(self.block(place), place.uncompressed_bytes):
            unpacked.extend(piece)
            await pace.step()
        self._unpacked, self._unpacked_at = unpacked, (place.position, place.block_offset)

    def messages(self, place: Place) -> Sequence[BlockMessage]:
        """All messages of a block in memory; asked for one after the other, those of one block are unpacked once."""
        if isinstance(place, Row) and place.inline is not None:
            return read_block(place.inline, None)
        at = (place.position, place.block_offset)
        if at != self._unpacked_at:
            self._unpacked = read_block(self.block(place), place.uncompressed_bytes)
            self._unpacked_at = at
        return self._unpacked

    def reads_anew(self, place: Place) -> bool:
        """Whether `messages` has to unpack a block for this."""
        return (place.position, place.block_offset) != self._unpacked_at

    def _has(self, place: Place) -> bool:
        key = place.position, place.block_offset
        return (isinstance(place, Row) and place.inline is not None) or key in self._blocks

    def _cached(self, place: Place) -> bytes | None:
        """The block of a record that is in memory; None when it is not, or not what was produced."""
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
                    # The record is what was written, so the disk is innocent, and every replica would say the same.
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
        """What was waited since this was asked last; for `Pace.exclude`."""
        waited_s, self._waited_s = self._waited_s, 0.0
        return waited_s


def _removed() -> Problem:
    return Problem("overloaded", "what was found is just being removed; try again")


class FoundMessage(NamedTuple):
    """A message of a row, with the offset it is delivered at."""

    offset: int
    message_id: str
    message: BlockMessage


def delivered(row: Row, messages: Sequence[BlockMessage]) -> Iterator[FoundMessage]:
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
