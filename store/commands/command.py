"""Commands: what a Raft entry asks the state machine to do, and how an entry's payload is laid out.

    u32 header_length (little-endian) | header (msgpack) | block 0 | block 1 | ...
    header = [timestamp_ms, [command, ...]]

A command is a msgpack array; its first element, the tag, is never reused. A field may be appended with a default, which
older entries then read as, and a feature level (features.py); a field is never removed, reordered or given another
meaning, and more elements than are known are an error. Blocks are opaque: headers say how long they are, in order.
"""

import struct
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

import msgspec

from store.features import FEATURES, LEVEL_MAX

Decision = Literal["commit", "rollback", "unknown"]
DecisionSource = Literal["producer", "check", "operator"]
CheckVia = Literal["poll", "webhook"]
LeaveReason = Literal["leave", "expired"]
TopicType = Literal["normal", "fifo", "delay", "transaction", "any"]
FilterType = Literal["tags", "sql"]
BlockEncoding = Literal["none", "zstd"]

_HEADER_LENGTH: Final = struct.Struct("<I")


class BatchHeader(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """One message block: `count` messages that stay together in one queue with consecutive offsets."""

    topic: str
    queue: int
    count: int
    batch_id: str
    message_ids: tuple[str | None, ...] | None
    """By ordinal in the block; None where the id is implicit (`<batch_id>-<ordinal>`). None when all are implicit."""
    crc32c: int
    length: int
    encoding: BlockEncoding = "none"
    """How the block is compressed; `crc32c` and `length` are those of the block as it is stored."""
    uncompressed_bytes: int | None = None
    """What a compressed block unpacks to, exactly; None when it is not compressed."""
    deliver_at_ms: int | None = None
    """Visible at this time; at once when it is past. Not together with `delay_ms`."""
    delay_ms: int | None = None
    """Visible so long after the produce is applied; in a transaction, after its commit is."""
    keys: tuple[bytes, ...] | None = None
    """By ordinal in the block, the hashes (message_index.py) of the message's keys, one after the other. None when no
    message has a key, and of entries that were written before keys could be looked up."""

    @property
    def is_delayed(self) -> bool:
        return self.deliver_at_ms is not None or self.delay_ms is not None


class _Command(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True, tag_field="command"):
    pass


class PutTopic(_Command, frozen=True, tag=1):
    """Create a topic, or change the given fields of an existing one."""

    topic: str
    queues: int | None = None
    retention_ms: int | None = None
    type: TopicType | None = None


class DeleteTopic(_Command, frozen=True, tag=2):
    topic: str


class Produce(_Command, frozen=True, tag=3):
    """Append batches to queues of one topic: all of them or none."""

    batches: tuple[BatchHeader, ...]
    client_id: str = ""
    """Who sent them, by its own word; nothing depends on it."""


class Prepare(_Command, frozen=True, tag=4):
    """Store a half transaction: its batches stay invisible until it is committed."""

    transaction_id: str
    producer_group: str
    client_id: str
    check_after_ms: int | None
    batches: tuple[BatchHeader, ...]


class Decide(_Command, frozen=True, tag=5):
    transaction_id: str
    decision: Decision
    source: DecisionSource = "producer"
    client_id: str = ""
    producer_group: str | None = None
    force: bool = False
    """Decide a discarded transaction too. Only of an operator, who gives a name and a reason."""
    reason: str = ""
    operator: str = ""


class RecordChecks(_Command, frozen=True, tag=6):
    """These transactions' checks were delivered to `client_id`; the next ones are due after `next_check_after_ms`."""

    transaction_ids: tuple[str, ...]
    client_id: str
    via: CheckVia
    next_check_after_ms: int


class Discard(_Command, frozen=True, tag=7):
    """Give up on transactions that nobody decided."""

    transaction_ids: tuple[str, ...]
    check_times: tuple[int, ...] = ()
    """How often each had been asked about when this was proposed: one that was resumed since is left alone. Empty in
    entries of before that was known: then all are given up."""


class SetCheckUrl(_Command, frozen=True, tag=8):
    producer_group: str
    url: str | None


class TopicFilter(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """Which messages of a topic a subscription is about: tags separated by ` || `, or an SQL92 expression."""

    topic: str
    type: FilterType
    expression: str


class JoinGroup(_Command, frozen=True, tag=9):
    group: str
    member_id: str
    client_id: str
    topics: tuple[str, ...]
    session_timeout_ms: int
    filters: tuple[TopicFilter, ...] = ()
    """At most one per topic; a topic without one is subscribed to as a whole. Nobody looks into the expressions here:
    they are the same when their text is."""


class LeaveGroup(_Command, frozen=True, tag=10):
    group: str
    member_id: str
    reason: LeaveReason = "leave"


class QueueOffset(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """`offset` is the next one to read."""

    topic: str
    queue: int
    offset: int


class CommitOffsets(_Command, frozen=True, tag=11):
    """All offsets or none. `member_id` and `generation` are both given, or both None for a group without members."""

    group: str
    member_id: str | None
    generation: int | None
    offsets: tuple[QueueOffset, ...]
    begins: bool = False
    """Where the group has no offset yet, it begins there: what is before was not processed."""


class ResetOffsets(_Command, frozen=True, tag=12):
    """Set offsets, backwards too, and move the generation on."""

    group: str
    offsets: tuple[QueueOffset, ...]


class GivenBack(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """A message that its group could not process, and when to try again: None for the group's back-off."""

    topic: str
    queue: int
    offset: int
    reason: str = ""
    delay_ms: int | None = None


class GiveBack(_Command, frozen=True, tag=13):
    """All messages or none; fenced like CommitOffsets. Given back once: again changes nothing."""

    group: str
    member_id: str | None
    generation: int | None
    messages: tuple[GivenBack, ...]


class FireTimers(_Command, frozen=True, tag=14):
    """Make what is due by the clock of this entry visible, the longest due first: at most `limit` timers."""

    limit: int


class CancelScheduled(_Command, frozen=True, tag=15):
    """Take back a message that is not due yet."""

    topic: str
    message_id: str


class ResumeTransaction(_Command, frozen=True, tag=16):
    """Ask about a discarded transaction again: it is prepared, its checks are counted anew."""

    transaction_id: str
    operator: str
    reason: str
    next_check_after_ms: int


class PutSettings(_Command, frozen=True, tag=17):
    """Change the given settings of the cluster."""

    reject_transactions: bool | None = None


class PutGroup(_Command, frozen=True, tag=18):
    """Create a group, or change the given settings of an existing one."""

    group: str
    retry_max_attempts: int | None = None
    retry_delays_ms: tuple[int, ...] | None = None
    """Of the first, second, … attempt; the last one also of all that follow."""


class ReplayDeadLetters(_Command, frozen=True, tag=19):
    """Let the group process these of its dead letters once more, with all attempts before them. All or none."""

    group: str
    offsets: tuple[int, ...]


class CloneOffsets(_Command, frozen=True, tag=20):
    """Set the offsets of a group without members to those of another: of one topic, or of all that it has read."""

    group: str
    source: str
    topic: str | None = None


class ExpireMessages(_Command, frozen=True, tag=21):
    """Remove what is older than its retention by the clock of this entry, at most `limit` rows: of deleted topics, of
    these queues from their starts on, and transactions that were decided long ago."""

    queues: tuple[tuple[str, int], ...]
    limit: int


class SweepIndex(_Command, frozen=True, tag=22):
    """Look at the next `limit` keys of what is kept for those who search, and remove what is about nothing any more."""

    limit: int


class PopPick(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """Messages of a queue that were looked at, `begin` to before `end`, and which of them are wanted."""

    queue: int
    begin: int
    end: int
    offsets: tuple[int, ...]


class Pop(_Command, frozen=True, tag=23):
    """Hand out what comes next in the topic's queues and in the group's retries, each message for `invisible_ms`."""

    group: str
    topic: str
    client_id: str
    max_messages: int
    invisible_ms: int
    from_end: bool = False
    """Where the group has no offset yet, it begins at the end."""
    filter: TopicFilter | None = None
    picks: tuple[PopPick, ...] = ()
    """With a filter, what of the topic matches it. A pick that does not begin at the group's offset is left alone."""


class PopHandle(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """One handing out of one message: of the entry at `raft_index`, its lease `number`."""

    raft_index: int
    number: int
    offset: int


class AckPopped(_Command, frozen=True, tag=24):
    """These messages are processed; each for itself."""

    group: str
    handles: tuple[PopHandle, ...]


class ChangeInvisible(_Command, frozen=True, tag=25):
    """Hold a message for so long from now on; 0 gives it back for at once, None by the group's back-off."""

    group: str
    handle: PopHandle
    invisible_ms: int | None
    reason: str = ""


class ExpirePopped(_Command, frozen=True, tag=26):
    """Give back what was not acknowledged in its time, by the clock of this entry: `limit` messages, or one lease."""

    limit: int


class DeleteGroup(_Command, frozen=True, tag=27):
    """Remove a group that nobody uses. `operator` and `reason` are for whoever reads the log."""

    group: str
    with_dead_letters: bool = False
    operator: str = ""
    reason: str = ""


class ReleaseMessages(_Command, frozen=True, tag=28):
    """Remove what nobody needs although its retention is not over, at most `limit` rows and timers: timers of deleted
    topics, and from the starts of these system topics on, rows that store/state/release.py lets go."""

    topics: tuple[str, ...]
    limit: int


Command = (
    PutTopic
    | DeleteTopic
    | Produce
    | Prepare
    | Decide
    | RecordChecks
    | Discard
    | SetCheckUrl
    | JoinGroup
    | LeaveGroup
    | CommitOffsets
    | ResetOffsets
    | FireTimers
    | CancelScheduled
    | ResumeTransaction
    | PutSettings
    | GiveBack
    | PutGroup
    | ReplayDeadLetters
    | CloneOffsets
    | ExpireMessages
    | SweepIndex
    | Pop
    | AckPopped
    | ChangeInvisible
    | ExpirePopped
    | DeleteGroup
    | ReleaseMessages
)


_WITH_BATCHES: Final = (Produce, Prepare)


class Proposal(NamedTuple):
    """A command with the message blocks of its batches, in their order."""

    command: Command
    blocks: tuple[bytes, ...] = ()


IRREVERSIBLE: Final = (ExpireMessages, ReleaseMessages, SweepIndex, FireTimers, Discard)
"""Done because time has passed, and never undone: refused in an entry that was stamped in doubt."""


class DecodedEntry(NamedTuple):
    timestamp_ms: int
    commands: tuple[Command, ...]
    block_offsets: tuple[tuple[int, ...], ...]
    """Per command, per batch: where the block begins in the payload."""
    header_bytes: int
    """Length of what comes before the first block."""
    in_doubt: bool = False
    """The leader was not sure of the time: nothing irreversible follows from this entry."""


class _Header(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    timestamp_ms: int
    commands: tuple[Command, ...]
    in_doubt: bool = False
    """Left out when False, as in every entry of before it was known."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Header)


def batches_of(command: Command) -> tuple[BatchHeader, ...]:
    """The batches whose blocks follow the header; empty for a command without messages."""
    return command.batches if isinstance(command, _WITH_BATCHES) else ()


def encode_entry(
    timestamp_ms: int, proposals: Sequence[Proposal], *, in_doubt: bool = False, level: int = LEVEL_MAX
) -> bytes:
    """One Raft entry's payload as feature level `level` has it; `in_doubt` when the leader is not sure of the time.
    ValueError when blocks and headers disagree, or a command is above the level: that is a bug of the caller."""
    blocks: list[bytes] = []
    for proposal in proposals:
        batches = batches_of(proposal.command)
        if len(batches) != len(proposal.blocks):
            raise ValueError(f"{len(batches)} batches but {len(proposal.blocks)} blocks")
        for batch, block in zip(batches, proposal.blocks, strict=True):
            if batch.length != len(block):
                raise ValueError(f"batch {batch.batch_id}: header says {batch.length} bytes, block has {len(block)}")
        blocks.extend(proposal.blocks)
    commands = FEATURES.at([proposal.command for proposal in proposals], level)
    header = _encoder.encode((timestamp_ms, commands, True) if in_doubt else (timestamp_ms, commands))
    return b"".join((_HEADER_LENGTH.pack(len(header)), header, *blocks))


def decode_entry(payload: bytes) -> DecodedEntry:
    """Read an entry's header; blocks stay where they are.

    ValueError (msgspec's errors are ValueErrors too) when it is not an entry: the log's CRC vouches for the bytes, so
    they were written by a newer version or by a bug.
    """
    if len(payload) < _HEADER_LENGTH.size:
        raise ValueError(f"an entry of {len(payload)} bytes has no header")
    (header_length,) = _HEADER_LENGTH.unpack_from(payload)
    position = header_bytes = _HEADER_LENGTH.size + header_length
    try:
        header = _decoder.decode(memoryview(payload)[_HEADER_LENGTH.size : header_bytes])
    except RecursionError:
        raise ValueError("the entry's header is nested too deeply") from None
    block_offsets: list[tuple[int, ...]] = []
    for command in header.commands:
        offsets: list[int] = []
        for batch in batches_of(command):
            offsets.append(position)
            position += batch.length
        block_offsets.append(tuple(offsets))
    if position != len(payload):
        raise ValueError(f"the entry's header accounts for {position} bytes, the payload has {len(payload)}")
    return DecodedEntry(header.timestamp_ms, header.commands, tuple(block_offsets), header_bytes, header.in_doubt)
