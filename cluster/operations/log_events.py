"""Events of committed entries for `GET /v1/log/events`, with message blocks as they are stored.

The state machine keeps the outcome of each entry (store/messages/outcomes.py). Ids, producers and blocks are in the log
records of the original batches, which may be older than the entry: a commit makes messages visible that were prepared
before. docs/http-api.md describes the frames.
"""

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec
from crc32c import crc32c

from cluster.budgets.pace import Pace
from cluster.core.core import Core
from cluster.messages.blocks import BlockMessage, encode_block, read_block
from cluster.operations.event_selection import EventSelection
from cluster.problems import Problem
from store.commands.entry import batches_of, decode_entry
from store.commands.messages import BatchHeader, Produce
from store.commands.transactions import Prepare
from store.log.errors import LogTruncated
from store.messages.outcomes import Event, EventType, MessagesOf, Outcome

OUTCOMES_PER_READ: Final = 64
EVENTS_PER_READ: Final = 1_000
"""Number of events from which on no further entries are read at once. An entry has few, or up to some thousands."""
ORIGINS_BYTES_MAX: Final = 16 * 1024 * 1024
"""Maximum bytes of record payloads that one request keeps at a time. The payload read last is always kept."""

_BLOCK_REMOVED: Final = "the messages of this entry are in an older entry, which is removed"
_EVENTS_REMOVED: Final = "the events of this entry were removed just now: nothing points at them any more"
_FRAME: Final = struct.Struct("<II")


class EventMessages(msgspec.Struct, array_like=True, frozen=True):
    """The messages of an event: all messages of a batch except the ordinals in `skip`, or only the message with the
    ordinal `only`, which `block` holds alone then. `message_ids` has explicit ids only. `block_bytes` is the length of
    the batch's stored block."""

    batch_id: str
    count: int
    message_ids: tuple[str | None, ...] | None
    skip: tuple[int, ...]
    only: int | None
    block_bytes: int
    uncompressed_bytes: int | None
    block: bytes | None


class EventView(msgspec.Struct, array_like=True, frozen=True):
    type: EventType
    transaction_id: str | None
    topic: str | None
    queue: int | None
    offset: int | None
    offset_end: int | None
    group: str | None
    client_id: str | None
    attempt: int | None
    message_id: str | None
    messages: EventMessages | None
    filter: str | None
    principal: str | None


class EntryEvents(msgspec.Struct, array_like=True, frozen=True):
    """Events of one entry, each as it is encoded; `first_row` is the number of rows of the entry's events before."""

    index: int
    term: int
    timestamp_ms: int
    first_row: int
    events: list[msgspec.Raw]


_encode = msgspec.msgpack.Encoder().encode


class _Origin(NamedTuple):
    """The origin of a message block: its batch header, its command, and the record payload that holds the block."""

    command: Produce | Prepare
    header: BatchHeader
    payload: bytes
    block_offset: int

    @property
    def block(self) -> bytes:
        return self.payload[self.block_offset : self.block_offset + self.header.length]


class _Origins:
    """Finds message blocks by their place. Owns the records read last, up to ORIGINS_BYTES_MAX, so that blocks near
    each other are read and decoded once."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._records: dict[int, dict[int, _Origin]] = {}
        self._payload_bytes: dict[int, int] = {}
        self._unpacked_at: tuple[int, int] | None = None
        self._unpacked: Sequence[BlockMessage] = []

    async def find(self, messages: MessagesOf) -> _Origin:
        blocks = self._records.get(messages.position)
        if blocks is None:
            blocks = await self._read(messages.position)
        return blocks[messages.block_offset]

    def alone(self, messages: MessagesOf, origin: _Origin, only: int) -> bytes:
        """Return a block with the message of ordinal `only` alone, cut out of the origin's block."""
        at = (messages.position, messages.block_offset)
        if at != self._unpacked_at:
            self._unpacked = read_block(origin.block, origin.header.uncompressed_bytes)
            self._unpacked_at = at
        return encode_block([self._unpacked[only]], origin.header.batch_id)

    async def _read(self, position: int) -> dict[int, _Origin]:
        payload = await self._core.reads.payload(position)
        decoded = decode_entry(payload)
        blocks: dict[int, _Origin] = {}
        for command, offsets in zip(decoded.commands, decoded.block_offsets, strict=True):
            if isinstance(command, Produce | Prepare):
                for header, offset in zip(batches_of(command), offsets, strict=True):
                    blocks[offset] = _Origin(command, header, payload, offset)
        while self._records and sum(self._payload_bytes.values()) + len(payload) > ORIGINS_BYTES_MAX:
            oldest = next(iter(self._records))
            del self._records[oldest], self._payload_bytes[oldest]
        self._records[position] = blocks
        self._payload_bytes[position] = len(payload)
        return blocks


class _Run:
    """Encoded events of an entry without a gap between; `first_row` and `end_row` count the rows of the entry."""

    __slots__ = ("end_row", "events", "first_row")

    def __init__(self, first_row: int) -> None:
        self.first_row = self.end_row = first_row
        self.events: list[msgspec.Raw] = []

    def add(self, event: Event, encoded: bytes) -> None:
        self.events.append(msgspec.Raw(encoded))
        self.end_row += event.rows


class EventsPage:
    """Fills one response, frame by frame. The next request continues at `next_index` and `next_event`."""

    def __init__(
        self,
        core: Core,
        first_index: int,
        first_event: int,
        max_bytes: int,
        selection: EventSelection | None = None,
        *,
        blocks: bool,
    ) -> None:
        self.next_index = first_index
        self.next_event = first_event
        self.frames: list[bytes] = []
        self._core = core
        self._origins = _Origins(core)
        self._max_bytes = max_bytes
        self._selection = selection
        self._blocks = blocks
        self._size_bytes = 0

    async def fill(self, last_index: int) -> None:
        """Add the events of the entries up to `last_index`, until the response is full or the time limit is reached.

        A page that selects events may end without any of them, further on. Raises Problem log_range_removed when the
        first event is removed, or its messages from the log.
        """
        pace = Pace()
        while self.next_index <= last_index:
            first_index = self._core.state.first_outcome
            if self.next_index < first_index:  # the outcomes were removed while this waited
                if self.frames:
                    return  # the next request gets the error
                raise Problem("log_range_removed", _EVENTS_REMOVED, {"first_index": first_index})
            found = self._core.state.outcomes(self.next_index, last_index, OUTCOMES_PER_READ, EVENTS_PER_READ)
            for raft_index, outcome in found:
                if raft_index != self.next_index:
                    self.next_index, self.next_event = raft_index, 0
                if not await self._take(outcome, pace):
                    return
                self.next_index, self.next_event = raft_index + 1, 0
            if not found:
                self.next_index, self.next_event = last_index + 1, 0
            if pace.is_over:
                return
            await pace.step()

    async def _take(self, outcome: Outcome, pace: Pace) -> bool:
        """Add one entry's events from `next_event` on. Return False when the response ends within or before the entry.

        Raises as `fill` does.
        """
        run = _Run(sum(event.rows for event in outcome.events[: self.next_event]))
        complete = True
        for ordinal, event in enumerate(outcome.events[self.next_event :], start=self.next_event):
            is_first = not run.events and not self.frames
            try:
                if not await self._is_selected(event):
                    self._close(run, outcome)
                    run = _Run(run.end_row + event.rows)
                    self.next_event = ordinal + 1
                    if pace.is_over:  # further on than it began, also without a frame
                        if self.next_event == len(outcome.events):
                            self.next_index, self.next_event = self.next_index + 1, 0
                        return False
                    if pace.is_tired:
                        await pace.rest()
                    continue
                encoded = _encode(await self._view(event, outcome.filters, outcome.principal_of(ordinal)))
            except LogTruncated:
                if is_first:
                    raise Problem("log_range_removed", _BLOCK_REMOVED, {"first_index": self.next_index + 1}) from None
                complete = False
                break
            if not is_first and (self._size_bytes + len(encoded) > self._max_bytes or pace.is_over):
                complete = False
                break
            run.add(event, encoded)
            self._size_bytes += len(encoded)
            self.next_event = ordinal + 1
            if pace.is_tired:
                await pace.rest()
        self._close(run, outcome)
        return complete

    def _close(self, run: "_Run", outcome: Outcome) -> None:
        """Add the frame of the run, if it has events."""
        if run.events:
            body = _encode(EntryEvents(self.next_index, outcome.term, outcome.clock_ms, run.first_row, run.events))
            self.frames.append(_FRAME.pack(len(body), crc32c(body)))
            self.frames.append(body)
            self._size_bytes += _FRAME.size

    async def _is_selected(self, event: Event) -> bool:
        """Return whether the event is wanted. Only of one without a topic of its own the record is read for that."""
        selection = self._selection
        if selection is None:
            return True
        if not selection.has_type(event.type):
            return False
        topic = event.topic
        if topic is None and event.messages is not None and selection.names_topics:
            topic = (await self._origins.find(event.messages)).header.topic
        return selection.has_topic(topic)

    async def _view(self, event: Event, filters: tuple[str, ...], principal: str | None) -> EventView:
        of = event.messages
        if of is None:
            return _view(event, None, None, principal, None if event.filter is None else filters[event.filter])
        origin = await self._origins.find(of)
        header = origin.header
        block = None
        if self._blocks:
            block = origin.block if of.only is None else self._origins.alone(of, origin, of.only)
        messages = EventMessages(
            header.batch_id,
            of.count,
            header.message_ids if of.only is None else _id_of(header, of.only),
            of.skip,
            of.only,
            header.length,
            header.uncompressed_bytes if of.only is None else None,
            block,
        )
        return _view(event, origin, messages, principal)


def _id_of(header: BatchHeader, only: int) -> tuple[str | None, ...] | None:
    return None if header.message_ids is None else (header.message_ids[only],)


def _view(
    event: Event,
    origin: _Origin | None,
    messages: EventMessages | None,
    principal: str | None,
    filter: str | None = None,
) -> EventView:
    transaction_id, topic, group, client_id = event.transaction_id, event.topic, event.group, event.client
    if origin is not None:
        command = origin.command
        if topic is None:
            topic = origin.header.topic
        if isinstance(command, Prepare):
            transaction_id = command.transaction_id
        if group is None:
            group = command.producer_group if isinstance(command, Prepare) else None
            client_id = command.client_id or None
    return EventView(
        event.type,
        transaction_id,
        topic,
        event.queue,
        event.offset,
        event.offset_end,
        group,
        client_id,
        event.attempt,
        event.message_id,
        messages,
        filter,
        principal,
    )
