"""Pages that answer one pull, filled row by row: with messages for JSON, with whole batches for the SDK.

JSON pages contain only the selected messages. msgpack pages contain every batch with a selected message; `filtered`
lists the ordinals to skip.
"""

from collections.abc import Mapping
from typing import Annotated, Final, Protocol

from crc32c import crc32c
from msgspec import UNSET, Meta, UnsetType

from cluster.budgets.pace import Pace
from cluster.filters.selection import Expression, Selects
from cluster.http.requests import Natural, Request, Tags, WaitMs
from cluster.http.responses import Response
from cluster.limits import PULL_BYTES_DEFAULT, PULL_BYTES_MAX, PULL_MESSAGES_DEFAULT, PULL_MESSAGES_MAX
from cluster.messages.block_reader import BlockReader, FoundMessage, delivered, message_view
from cluster.messages.blocks import BlockMessage, encode_block
from cluster.messages.half_topics import AddedProperties
from cluster.messages.message_views import MessageView, OriginView, origin_view
from store.commands.messages import BlockEncoding
from store.commands.views import Row


class PullQuery(Request, kw_only=True, frozen=True):
    offset: Natural
    max_messages: Annotated[int, Meta(ge=1, le=PULL_MESSAGES_MAX)] = PULL_MESSAGES_DEFAULT
    max_bytes: Annotated[int, Meta(ge=1, le=PULL_BYTES_MAX)] = PULL_BYTES_DEFAULT
    wait_ms: WaitMs = 0
    tags: Tags | None = None
    filter: str | None = None
    group: str | None = None
    """The group for which messages are read: while it is paused, there are none."""


class PulledBatch(Response, kw_only=True, frozen=True):
    """A batch as the SDK gets it. With `only`, `block` holds just that message of the batch, and `crc32c` is computed
    over the block as sent."""

    base_offset: int
    count: int
    batch_id: str
    stored_at_ms: int
    crc32c: int
    block: bytes
    transaction_id: str | None
    skip: tuple[int, ...]
    filtered: tuple[int, ...] | UnsetType = UNSET
    only: int | UnsetType = UNSET
    attempt: int | UnsetType = UNSET
    origin: OriginView | UnsetType = UNSET
    encoding: BlockEncoding | UnsetType = UNSET
    uncompressed_bytes: int | UnsetType = UNSET


SCAN_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of blocks after which a pull that looks into them answers, whether or not it has found messages."""


async def selected(selects: Selects, message: BlockMessage, pace: Pace) -> bool:
    """Return whether the message is selected. A costly expression is evaluated in steps."""
    if isinstance(selects, Expression) and selects.is_costly(message):
        return await pace.through(selects.steps(message)) is True
    return selects(message)


class Page(Protocol):
    """The content of one answer. The next pull continues at `next_offset`, whatever was found. `min_offset` is the
    start of the queue when its first row was read: everything before it is removed, and nothing behind it is missing on
    the page. `disk_bytes` counts the bytes read from disk for the page.
    """

    next_offset: int
    min_offset: int
    found: int
    size_bytes: int
    disk_bytes: int

    def wants(self, row: Row, reader: BlockReader) -> bool:
        """Return whether the page has room for the row, whose block is not in memory yet."""
        ...

    async def take(self, row: Row, reader: BlockReader, pace: Pace) -> bool:
        """Take the selected messages of a row, whose block `reader` has in memory. Return False when the page was full
        before the end of the row.
        """
        ...


class MessagePage:
    """A page of selected messages for JSON."""

    def __init__(
        self,
        topic: str,
        queue: int,
        query: PullQuery,
        selects: Selects | None,
        added_properties: AddedProperties | None = None,
    ) -> None:
        self._added_properties = added_properties
        self.next_offset = query.offset
        self.min_offset = 0
        self.found = 0
        self.size_bytes = 0
        self.disk_bytes = 0
        self.messages: list[MessageView] = []
        self._topic = topic
        self._queue = queue
        self._query = query
        self._selects = selects

    def wants(self, row: Row, reader: BlockReader) -> bool:
        return True

    async def take(self, row: Row, reader: BlockReader, pace: Pace) -> bool:
        added = None if self._added_properties is None else self._added_properties(row)
        await reader.unpack(row, pace)
        for found in delivered(row, reader.messages(row)):
            if found.offset < self.next_offset:
                continue
            if self._selects is None or await selected(self._selects, found.message, pace):
                size = self.size_bytes + len(found.message.body)
                if self.messages and size > self._query.max_bytes:
                    return False
                self._add(found, row, added)
                if self.found == self._query.max_messages:
                    return False
            self.next_offset = found.offset + 1
            if pace.is_tired:
                await pace.rest()
        self.next_offset = max(self.next_offset, row.next_offset)
        return True

    def _add(self, found: FoundMessage, row: Row, added_properties: Mapping[str, str] | None) -> None:
        self.messages.append(
            message_view(
                found.message,
                found.message_id,
                self._topic,
                self._queue,
                row.stored_at_ms,
                found.offset,
                row.redelivery,
                transaction_id=row.transaction_id,
                added_properties=added_properties,
            )
        )
        self.found += 1
        self.size_bytes += len(found.message.body)
        self.next_offset = found.offset + 1


class BlockPage:
    """A page of batches for the SDK: each has a selected message, and lists the messages that are not selected."""

    def __init__(self, query: PullQuery, selects: Selects) -> None:
        self.next_offset = query.offset
        self.min_offset = 0
        self.found = 0
        self.size_bytes = 0
        self.disk_bytes = 0
        self.batches: list[PulledBatch] = []
        self._query = query
        self._selects = selects

    def wants(self, row: Row, reader: BlockReader) -> bool:
        too_much = self.size_bytes + row.unpacked_bytes > self._query.max_bytes
        return not self.batches or not (too_much or self.found >= self._query.max_messages)

    async def take(self, row: Row, reader: BlockReader, pace: Pace) -> bool:
        await reader.unpack(row, pace)
        messages = reader.messages(row)
        filtered: list[int] = []
        wanted = 0
        for offset, ordinal in enumerate(row.ordinals(), row.base_offset):
            if not await selected(self._selects, messages[ordinal], pace):
                filtered.append(ordinal)
            elif offset >= self.next_offset:
                wanted += 1
            if pace.is_tired:
                await pace.rest()
        if wanted:
            self.batches.append(pulled_batch(row, reader, tuple(filtered)))
            self.found += wanted
            self.size_bytes += max(row.unpacked_bytes, len(self.batches[-1].block))
        self.next_offset = row.next_offset
        return True


class WholeBlockPage:
    """A page of batches for the SDK without a filter."""

    def __init__(self, query: PullQuery) -> None:
        self.next_offset = query.offset
        self.min_offset = 0
        self.found = 0
        self.size_bytes = 0
        self.disk_bytes = 0
        self.batches: list[PulledBatch] = []
        self._query = query
        self._row_bytes = 0  # memory that the rows take at the client, unpacked
        self._unpacked_bytes = 0  # size of the blocks out of which single messages are cut

    def wants(self, row: Row, reader: BlockReader) -> bool:
        if not self.batches:
            return True
        # A single message is cut out of its unpacked block, and its size is not known before.
        unpacked_bytes = row.block_bytes if row.redelivery is not None and reader.reads_anew(row) else 0
        if self._unpacked_bytes + unpacked_bytes > SCAN_BYTES_MAX:
            return False
        is_full = self.size_bytes >= self._query.max_bytes or self.found >= self._query.max_messages
        return not is_full and self._row_bytes + row.unpacked_bytes <= self._query.max_bytes

    async def take(self, row: Row, reader: BlockReader, pace: Pace) -> bool:
        if row.redelivery is not None and reader.reads_anew(row):
            self._unpacked_bytes += row.block_bytes
            await reader.unpack(row, pace)
        self.batches.append(pulled_batch(row, reader))
        self.found += self.batches[-1].count
        self.size_bytes += len(self.batches[-1].block)
        self._row_bytes += row.unpacked_bytes
        self.next_offset = row.next_offset
        return True


def pulled_batch(row: Row, reader: BlockReader, filtered: tuple[int, ...] = ()) -> PulledBatch:
    """Return a row, whose block is in memory, as a batch for the SDK. A row of a single message is sent as a block of
    this message alone, however large its original batch was; the checksum of the original block was verified before.
    """
    if row.redelivery is not None:
        block = encode_block([reader.messages(row)[row.redelivery.only]], row.batch_id)
        return PulledBatch(
            base_offset=row.base_offset,
            count=1,
            batch_id=row.batch_id,
            stored_at_ms=row.stored_at_ms,
            crc32c=crc32c(block),
            block=block,
            transaction_id=row.transaction_id,
            skip=(),
            only=row.redelivery.only,
            attempt=row.redelivery.attempt,
            origin=origin_view(row.redelivery),
        )
    return PulledBatch(
        base_offset=row.base_offset,
        count=row.count,
        batch_id=row.batch_id,
        stored_at_ms=row.stored_at_ms,
        crc32c=row.crc32c,
        block=reader.block(row),
        transaction_id=row.transaction_id,
        skip=row.skip,
        filtered=filtered or UNSET,
        encoding=UNSET if row.encoding == "none" else row.encoding,
        uncompressed_bytes=UNSET if row.uncompressed_bytes is None else row.uncompressed_bytes,
    )
