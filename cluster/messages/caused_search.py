"""Finds the messages that a message caused: those sent while a handler processed it, which name it in their properties.

No index knows them. A caused message is later in the log than its cause, so the search reads the log forward, and looks
for the id of the cause in it. It reads beside the loop, and looks on the loop in short steps: for the bytes of the id
in a piece of the log first, and at headers, blocks and messages only where those bytes are, or blocks are compressed.
"""

from collections.abc import Callable, Sequence
from typing import Final, Literal, NamedTuple

from crc32c import crc32c
from msgspec import UNSET, UnsetType

from cluster.budgets.pace import Pace
from cluster.core.core import Core
from cluster.core.log_reads import READ_BYTES_MAX, READ_STEP_BYTES
from cluster.http.responses import Response, or_unset
from cluster.messages.blocks import BlockMessage, read_pieces
from cluster.messages.compression import unpack
from cluster.messages.message_finder import ID_PLACES_MAX
from cluster.problems import Problem
from store.commands.entry import batches_of, decode_entry
from store.commands.messages import BatchHeader, Produce
from store.commands.transactions import Prepare
from store.log.errors import LogTruncated
from store.log.record import HEADER_BYTES, KIND_ENTRY, parse_header
from store.state.message_search import MessagePlace, MessageState

CAUSATION_ID: Final = "causation_id"
"""Property: id of the message that the sender was processing, or ids with commas between."""
CAUSATION_TOPIC: Final = "causation_topic"
"""Property: the topic in which that message was first; one for all ids, or one for each."""
PRODUCER_GROUP: Final = "producer_group"
"""Property: the group whose handler sent the message; a transaction names its group itself."""
COMPRESSED: Final = b"zstd"
"""Bytes in the header of an entry with a compressed block, whose messages are seen only when it is unpacked."""
LOOK_BYTES: Final = 1024 * 1024
"""Maximum bytes of the log that are looked through in one step."""
_MAKES_MESSAGES: Final = frozenset({"HALF", "PUBLISH", "SCHEDULE"})

CausedState = MessageState | Literal["removed"]


class CausedMessageView(Response, kw_only=True, frozen=True):
    """A message that names the cause. `at_ms` and `raft_index` are of the log entry that holds it. `state` is that of
    now; `removed` when nothing but the log knows the message any more. `names_topic` is false when it names only the id
    of the cause, which a message of another topic may have, too."""

    message_id: str
    topic: str
    queue: int
    offset: int | UnsetType = UNSET
    state: CausedState
    at_ms: int
    raft_index: int
    names_topic: bool
    producer_group: str | None
    transaction_id: str | UnsetType = UNSET
    deliver_at_ms: int | UnsetType = UNSET


class Place(NamedTuple):
    """Place where a search goes on: at a log entry, behind the first `passed` of its messages."""

    index: int  # type: ignore[assignment]  # hides tuple.index
    passed: int


class _Batch(NamedTuple):
    """A batch of a log entry, with the offset of its block in the entry."""

    command: Produce | Prepare
    header: BatchHeader
    block_offset: int


class CausedSearch:
    """Fills one page. The cause has `message_id` and was first in `topic`; topics that the caller may not read are left
    out before they are looked at, so that nothing tells what they hold.
    """

    def __init__(self, core: Core, topic: str, message_id: str, limit: int, may_read: Callable[[str], bool]) -> None:
        self.found: list[CausedMessageView] = []
        self.looked_bytes = 0
        self.is_cut = False
        """True when entries that were to be looked through are removed from the log."""
        self._core = core
        self._topic = topic
        self._message_id = message_id
        self._needle = message_id.encode()
        self._limit = limit
        self._may_read = may_read
        self._readable: dict[str, bool] = {}
        self._pace = Pace()

    async def look(self, begin: Place, last_index: int) -> Place | None:
        """Look through the entries from `begin` to `last_index`, until the page is full, has read the maximum number of
        bytes, or its time is over. Return where to go on; None when all was looked through.

        Raises Problem overloaded when the share of the disk does not come in time for the first step.
        """
        reads, log = self._core.reads, self._core.log
        index, passed = begin
        while index <= last_index:
            if index < log.first_index:
                index, passed, self.is_cut = log.first_index, 0, True
                continue
            try:
                data, following = await reads.records(index, last_index, READ_STEP_BYTES)
            except LogTruncated:  # just now
                continue
            except Problem:
                if not self.looked_bytes:
                    raise
                break
            stopped_at = await self._through(data, passed)
            if stopped_at is not None:
                index, passed = stopped_at
                break
            index, passed = following, 0
            if self._pace.is_over or self.looked_bytes >= READ_BYTES_MAX:
                break
            await self._pace.step()
        return Place(index, passed) if index <= last_index else None

    async def _through(self, data: bytes, passed: int) -> Place | None:
        """Look through whole records; `passed` is about the first one. Return where the page ended, if it did."""
        at = 0 if await self._may_tell(data, 0, len(data)) else len(data)
        stopped_at = None
        while at < len(data) and stopped_at is None:
            header = parse_header(data, at)
            assert header is not None, "the reader has verified the records"
            begin, end = at + HEADER_BYTES, at + HEADER_BYTES + header.payload_length
            if header.kind == KIND_ENTRY and await self._may_tell(data, begin, end):
                entry = _Entry(self._core, data[begin:end], header.index, header.position)
                stopped_at = await self._entry(entry, passed)
                if stopped_at is None and self._pace.is_over:
                    stopped_at = Place(header.index + 1, 0)
            if stopped_at is None or stopped_at.index > header.index:
                at = end
            passed = 0
            await self._pace.step()
        self.looked_bytes += at
        return stopped_at

    async def _may_tell(self, data: bytes, begin: int, end: int) -> bool:
        """Return whether the bytes from `begin` to `end` have the id, or may have compressed blocks."""
        return await self._has((self._needle, COMPRESSED), data, begin, end)

    async def _has(self, sought: Sequence[bytes], data: bytes, begin: int, end: int) -> bool:
        """Return whether one of the texts is in the bytes from `begin` to `end`."""
        for at in range(begin, end, LOOK_BYTES):
            if any(data.find(each, at, min(end, at + LOOK_BYTES + len(each))) >= 0 for each in sought):
                return True
            await self._pace.step()
        return False

    async def _entry(self, entry: "_Entry", passed: int) -> Place | None:
        before, batches = 0, entry.batches()
        for batch in batches:
            count = batch.header.count
            begin, before = passed - before, before + count
            if begin >= count:
                continue
            stopped_at = await self._batch(entry, batch, max(begin, 0))
            if stopped_at is not None:
                return Place(entry.index, before - count + stopped_at)
            if self._pace.is_over and batch is not batches[-1]:
                return Place(entry.index, before)
            await self._pace.step()
        return None

    async def _batch(self, entry: "_Entry", batch: _Batch, begin: int) -> int | None:
        """Look at the messages from ordinal `begin` on. Return the ordinal at which the page ended, if it did."""
        if not self._reads(batch.header.topic):
            return None
        block = await self._block(entry, batch)
        first = 0
        for piece in () if block is None else read_pieces(block):
            for ordinal, message in enumerate(piece, first):
                causes = message.properties.get(CAUSATION_ID)
                if ordinal < begin or causes is None or self._message_id not in causes:
                    continue
                if len(self.found) == self._limit or (ordinal > begin and self._pace.is_over):
                    return ordinal
                names_topic = self._names(causes, message.properties.get(CAUSATION_TOPIC, ""))
                if names_topic is not None:
                    self._tell(entry, batch, ordinal, message, names_topic=names_topic)
                await self._pace.step()
            first += len(piece)
            await self._pace.step()
        return None

    async def _block(self, entry: "_Entry", batch: _Batch) -> bytes | None:
        """Return the unpacked block if it has the id; None also for a block that is damaged, which nobody can read."""
        header, offset = batch.header, batch.block_offset
        is_compressed, end = header.uncompressed_bytes is not None, offset + header.length
        if not is_compressed and not await self._has((self._needle,), entry.payload, offset, end):
            return None
        block = entry.payload[offset:end]
        if crc32c(block) != header.crc32c:
            self._core.reads.damages.note(entry.position, offset, header.batch_id)
            return None
        if header.uncompressed_bytes is not None:
            block = unpack(block, header.uncompressed_bytes)
            await self._pace.step()
            if not await self._has((self._needle,), block, 0, len(block)):
                return None
        return block

    def _names(self, causes: str, topics: str) -> bool | None:
        """Return whether the properties of a message name the topic of the cause, too; None unless they name the cause.
        Topics that are not one for all ids, or one for each, name nothing.
        """
        ids, named = causes.split(","), topics.split(",")
        if self._message_id not in ids:
            return None
        if len(named) == 1:
            named *= len(ids)
        if len(named) != len(ids) or not all(named):
            return False
        return True if (self._message_id, self._topic) in zip(ids, named, strict=True) else None

    def _tell(self, entry: "_Entry", batch: _Batch, ordinal: int, message: BlockMessage, *, names_topic: bool) -> None:
        command, header = batch.command, batch.header
        is_accepted = entry.accepts(batch.block_offset, ordinal)
        if is_accepted is False:  # refused, or a repetition of what was stored before
            return
        message_id = message.message_id or f"{header.batch_id}-{ordinal}"
        place = self._place_of(entry, batch, ordinal, message_id)
        if place is None and is_accepted is None:
            return
        half = command if isinstance(command, Prepare) else None
        self.found.append(
            CausedMessageView(
                message_id=message_id,
                topic=header.topic,
                queue=header.queue,
                offset=or_unset(place.offset if place else None),
                state=place.state if place else "removed",
                at_ms=entry.at_ms,
                raft_index=entry.index,
                names_topic=names_topic,
                producer_group=half.producer_group if half else message.properties.get(PRODUCER_GROUP),
                transaction_id=half.transaction_id if half else UNSET,
                deliver_at_ms=or_unset(place.deliver_at_ms if place else None),
            )
        )

    def _reads(self, topic: str) -> bool:
        known = self._readable.get(topic)
        if known is None:
            known = self._readable[topic] = self._may_read(topic)
        return known

    def _place_of(self, entry: "_Entry", batch: _Batch, ordinal: int, message_id: str) -> MessagePlace | None:
        """Return where the message of this very block is now; None if it is gone."""
        state, header = self._core.state, batch.header
        if state.topic(header.topic) is None:
            return None
        without_block = None
        for place in state.message_places(header.topic, message_id, ID_PLACES_MAX):
            block = place.block
            if (place.batch_id, place.ordinal) != (header.batch_id, ordinal):
                continue
            if block is None:
                without_block = place
            elif (block.position, block.block_offset) == (entry.position, batch.block_offset):
                return place
        return without_block


class _Entry:
    """A log entry that may hold messages which name the cause."""

    def __init__(self, core: Core, payload: bytes, index: int, position: int) -> None:
        self.payload = payload
        self.index = index
        self.position = position
        self._core = core
        self._decoded = decode_entry(payload)
        self._accepted: dict[int, list[tuple[frozenset[int], int | None]]] | None = None
        """By the offset of a block: the messages that the entry stored, as its events have them."""

    @property
    def at_ms(self) -> int:
        return self._decoded.timestamp_ms

    def batches(self) -> list[_Batch]:
        return [
            _Batch(command, header, offset)
            for command, offsets in zip(self._decoded.commands, self._decoded.block_offsets, strict=True)
            if isinstance(command, Produce | Prepare)
            for header, offset in zip(batches_of(command), offsets, strict=True)
        ]

    def accepts(self, block_offset: int, ordinal: int) -> bool | None:
        """Return whether the entry stored the message; None when the effects of the entry are not known any more."""
        state = self._core.state
        if self._accepted is None:
            self._accepted = {}
            for _, outcome in state.outcomes(self.index, self.index, 1):
                for event in outcome.events:
                    of = event.messages
                    if event.type in _MAKES_MESSAGES and of is not None and of.position == self.position:
                        self._accepted.setdefault(of.block_offset, []).append((frozenset(of.skip), of.only))
        events = self._accepted.get(block_offset)
        if events is None:
            return None if self.index < state.first_outcome else False
        return any(ordinal == only if only is not None else ordinal not in skip for skip, only in events)
