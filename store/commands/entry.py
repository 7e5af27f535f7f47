"""Entries: the commands that a Raft entry hands to the state machine, and the layout of the entry's payload.

    u32 header_length (little-endian) | header (msgpack) | block 0 | block 1 | ...
    header = [timestamp_ms, [command, ...], in_doubt, [[principal, [ordinal of a command, ...]], ...]]

The modules beside this file define the commands, each with its result. Blocks are opaque: the headers give their
lengths, in order. The header ends with its last element that is not empty; the first two are always there. A principal
stands once in an entry, however many of its commands are the principal's.
"""

import struct
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta

from store.commands.cluster import PutSettings, SettingsPut
from store.commands.groups import (
    CloneOffsets,
    CommitOffsets,
    DeadLettersReplayed,
    DeleteGroup,
    GiveBack,
    GroupDeleted,
    GroupPauseSet,
    GroupPut,
    Joined,
    JoinGroup,
    LeaveGroup,
    Left,
    MessagesGivenBack,
    OffsetsCommitted,
    OffsetsReset,
    PauseGroup,
    PutGroup,
    ReplayDeadLetters,
    ResetOffsets,
)
from store.commands.messages import BatchHeader, Cancelled, CancelScheduled, Fired, FireTimers, Produce, Produced
from store.commands.pops import (
    AckPopped,
    ChangeInvisible,
    ExpirePopped,
    InvisibleChanged,
    Pop,
    Popped,
    PopsAcked,
    PopsExpired,
)
from store.commands.retention import (
    BytesCounted,
    CountBytes,
    Expired,
    ExpireMessages,
    Released,
    ReleaseMessages,
    SweepIndex,
    Swept,
)
from store.commands.topics import DeleteTopic, PurgeTopic, PutTopic, TopicDeleted, TopicPurged, TopicPut
from store.commands.transactions import (
    ChecksRecorded,
    CheckUrlSet,
    Decide,
    Decided,
    Discard,
    Discarded,
    Prepare,
    Prepared,
    RecordChecks,
    Resumed,
    ResumeTransaction,
    SetCheckUrl,
)
from store.commands.users import DeleteUser, PutUser, UserDeleted, UserPut
from store.features import FEATURES, LEVEL_MAX
from store.limits import PRINCIPAL_CHARACTERS_MAX

_HEADER_LENGTH: Final = struct.Struct("<I")

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
    | PutUser
    | DeleteUser
    | PurgeTopic
    | CountBytes
    | PauseGroup
)
"""Every command; applying a command gives its result, or a refusal."""

Result = (
    TopicPut
    | TopicDeleted
    | Produced
    | Prepared
    | Decided
    | ChecksRecorded
    | Discarded
    | Resumed
    | SettingsPut
    | CheckUrlSet
    | Joined
    | Left
    | OffsetsCommitted
    | OffsetsReset
    | Fired
    | Cancelled
    | MessagesGivenBack
    | GroupPut
    | DeadLettersReplayed
    | Expired
    | Released
    | Swept
    | Popped
    | PopsAcked
    | InvisibleChanged
    | PopsExpired
    | GroupDeleted
    | UserPut
    | UserDeleted
    | TopicPurged
    | BytesCounted
    | GroupPauseSet
)
_WITH_BATCHES: Final = (Produce, Prepare)


class Proposal(NamedTuple):
    """A command with the message blocks of its batches, in the order of the batches."""

    command: Command
    blocks: tuple[bytes, ...] = ()
    further_work_bytes: int = 0
    """Size of what the state holds for the command to carry out, such as the batches of a half transaction. It is not
    encoded: it bounds how many commands share an entry.
    """
    principal: str = ""
    """Name of the authenticated principal whose request the command is; empty without one."""


IRREVERSIBLE: Final = (ExpireMessages, ReleaseMessages, SweepIndex, FireTimers, Discard)
"""Commands that act because time has passed and cannot be undone: refused in an entry whose timestamp is in doubt."""


class DecodedEntry(NamedTuple):
    timestamp_ms: int
    commands: tuple[Command, ...]
    block_offsets: tuple[tuple[int, ...], ...]
    """Offsets in the payload where blocks begin, per command and batch."""
    header_bytes: int
    """Length in bytes of the payload before the first block."""
    in_doubt: bool = False
    """True when the leader was not sure of the time: irreversible commands are then refused."""
    principals: Mapping[int, str] = MappingProxyType({})
    """Principals whose requests the commands are, by the ordinal of the command. Other commands have none."""


_Principal = Annotated[str, Meta(min_length=1, max_length=PRINCIPAL_CHARACTERS_MAX)]


class _Header(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    timestamp_ms: int
    commands: tuple[Command, ...]
    in_doubt: bool = False
    """Left out when False, as in every entry written before the field existed."""
    principals: tuple[tuple[_Principal, tuple[int, ...]], ...] = ()
    """Left out when empty, and below its feature level."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Header)


def batches_of(command: Command) -> tuple[BatchHeader, ...]:
    """Return the batches whose blocks follow the header; empty for a command without messages."""
    return command.batches if isinstance(command, _WITH_BATCHES) else ()


def encode_entry(
    timestamp_ms: int, proposals: Sequence[Proposal], *, in_doubt: bool = False, level: int = LEVEL_MAX
) -> bytes:
    """Return one Raft entry's payload, encoded for feature level `level`. `in_doubt` says that the leader is not sure
    of the time. Raises ValueError when blocks and headers disagree, or a command is above the level: a bug of the
    caller.
    """
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
    principals = _principals_of(proposals) if FEATURES.knows("_Header.principals", level) else ()
    if principals:
        header = _encoder.encode((timestamp_ms, commands, in_doubt, principals))
    else:
        header = _encoder.encode((timestamp_ms, commands, True) if in_doubt else (timestamp_ms, commands))
    return b"".join((_HEADER_LENGTH.pack(len(header)), header, *blocks))


def decode_entry(payload: bytes) -> DecodedEntry:
    """Read an entry's header; the blocks are located, not copied.

    Raises ValueError (msgspec's errors are ValueErrors too) when `payload` is not an entry: the log's CRC vouches for
    the bytes, so a newer version or a bug wrote them.
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
    principals = {ordinal: name for name, ordinals in header.principals for ordinal in ordinals}
    if principals and not principals.keys() <= set(range(len(header.commands))):
        raise ValueError("the entry's header names a principal of a command that it does not have")
    return DecodedEntry(
        header.timestamp_ms, header.commands, tuple(block_offsets), header_bytes, header.in_doubt, principals
    )


def _principals_of(proposals: Sequence[Proposal]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return each principal with the ordinals of its commands."""
    ordinals: dict[str, list[int]] = {}
    for ordinal, proposal in enumerate(proposals):
        if proposal.principal:
            if len(proposal.principal) > PRINCIPAL_CHARACTERS_MAX:
                raise ValueError(f"the name of a principal has {len(proposal.principal)} characters")
            ordinals.setdefault(proposal.principal, []).append(ordinal)
    return tuple((name, tuple(of)) for name, of in ordinals.items())
