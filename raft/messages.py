"""What peers say to each other, and its bytes.

Every message but those of the handshake, `Vitals`, `Compare` and `Compared` carries its sender's current term (row
4). A frame is

    u32 body_length | u32 header_length | u32 crc32c of the header | header (msgpack) | payloads

`body_length` covers header and payloads. An append's payloads are the entries' payloads one after the other, with
length and CRC32C of each in the header. Nothing is ever unpickled: headers are decoded by msgspec into these types or
refused.
"""

import contextlib
import struct
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import msgspec
from crc32c import crc32c
from msgspec import Meta

from raft.errors import ProtocolError
from raft.membership import decode_configuration
from store.features import FEATURES, FIRST_LEVEL, LEVEL_MAX, VERSION_LENGTH_MAX, UnknownFeatureLevel
from store.log.record import KIND_CONFIG, KIND_ENTRY, KIND_NOOP, MAX_PAYLOAD_BYTES, Entry

FRAME = struct.Struct("<III")
MAX_FRAME_BYTES = 96 * 1024 * 1024
"""A record's payload is at most 64 MiB (docs/log-format.md); a peer that announces more is cut off."""
MAX_HEADER_BYTES = 8 * 1024 * 1024
CHUNK_BYTES_MAX = 1024 * 1024
"""A peer that sends more of a snapshot at once is refused; this one sends less (store/snapshots/snapshot.py)."""
Natural = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
"""What indexes and terms can be on disk; a term that comes from here can still be raised there."""

COMPARED_MAX = 4
"""Entries that one message asks the hashes of: each may cost its receiver the reading of a sidecar."""
AGREES_MAX = 64
Crc = Annotated[int, Meta(ge=0, lt=1 << 32)]
ChainLink = tuple[Natural, Natural, Crc]
"""A `store.log.record_chain.Link`."""

Incarnation = Annotated[str, Meta(max_length=64)]
"""Identifies a data directory (cluster/process/data_directory.py)."""


NAME_BYTES_MAX = 100
Name = Annotated[str, Meta(max_length=NAME_BYTES_MAX)]
Nonce = Annotated[bytes, Meta(max_length=32)]
Digest = Annotated[bytes, Meta(max_length=32)]


class Build(msgspec.Struct, array_like=True, frozen=True):
    """What a process runs, as it names itself to its peers. A later version may say more: in the handshake, elements
    beyond those that are known are left alone.
    """

    version: Annotated[str, Meta(max_length=64)] = ""
    level_min: Natural = 1
    """The feature levels that it works at (raft/feature_levels.py)."""
    level_max: Natural = 1

    def knows(self, level: int) -> bool:
        return self.level_min <= level <= self.level_max


class Hello(msgspec.Struct, array_like=True, tag=1, frozen=True):
    """First frame of a connection, from its opener: who I am, and whom I mean (raft/handshake.py).

    The first five elements stay where they are for ever: so nodes of any two versions tell each other theirs.
    """

    cluster_id: Name
    node_id: Natural
    target_node_id: Natural
    protocol: Natural
    incarnation: Incarnation
    """As in Welcome: messages of a disk that is gone no longer count."""
    address: Annotated[str, Meta(max_length=300)] = ""
    """HOST:PORT where the sender listens: for a receiver that does not know it yet."""
    configuration_index: Natural = 0
    """Of the record that brought the configuration in force at the sender."""
    cluster_uid: Name = ""
    """Of the cluster the sender's disk belongs to; empty before it knows."""
    lane: Natural = 0
    """Which of the sender's connections this is (raft/lanes.py)."""
    nonce: Nonce = b""
    build: Build = Build()


class Challenge(msgspec.Struct, array_like=True, tag=17, frozen=True):
    """The answer to Hello, whatever it said: prove that you know the cluster's secret."""

    nonce: Nonce


class Proof(msgspec.Struct, array_like=True, tag=18, frozen=True):
    """The opener's answer to Challenge."""

    proof: Digest


class Welcome(msgspec.Struct, array_like=True, tag=2, frozen=True):
    """The answer to Proof; `refusal` says in words why the connection is closed, or is empty."""

    node_id: Natural
    refusal: Annotated[str, Meta(max_length=1024)]
    incarnation: Incarnation
    """Changes when the node's data directory is made anew: what it acknowledged before, it has lost. Empty in a
    refusal: it is nobody else's business.
    """
    removed: bool = False
    """Refused because a committed configuration, later than what the opener knows, does not have it."""
    proof: Digest = b""
    """Of the acceptor; empty in a refusal of an opener that has proven nothing."""
    build: Build = Build()
    feature_level: Annotated[int, Meta(ge=FIRST_LEVEL, le=LEVEL_MAX)] = FIRST_LEVEL
    """In force in the acceptor's cluster as far as it knows: an opener that does not work at it ends (exit code 7)."""
    feature_version: Annotated[str, Meta(max_length=VERSION_LENGTH_MAX)] = ""
    """The first version that knows that level."""


class PreVote(msgspec.Struct, array_like=True, forbid_unknown_fields=True, tag=3, frozen=True):
    """Would you vote for me in term + 1? Changes nothing on either side (Raft thesis 9.6)."""

    term: Natural
    last_index: Natural
    last_term: Natural
    first_election: bool
    """The asker's log is blank: only the first election of a cluster is for such candidates."""


class PreVoteReply(msgspec.Struct, array_like=True, forbid_unknown_fields=True, tag=4, frozen=True):
    term: Natural
    asked_term: Natural
    granted: bool


class RequestVote(msgspec.Struct, array_like=True, forbid_unknown_fields=True, tag=5, frozen=True):
    term: Natural
    last_index: Natural
    last_term: Natural
    first_election: bool


class VoteReply(msgspec.Struct, array_like=True, forbid_unknown_fields=True, tag=6, frozen=True):
    term: Natural
    granted: bool


class EntryHeader(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    index: Natural
    term: Natural
    kind: Annotated[int, Meta(ge=KIND_ENTRY, le=KIND_CONFIG)]
    length: Annotated[int, Meta(ge=0, le=MAX_PAYLOAD_BYTES)]
    crc: Annotated[int, Meta(ge=0, lt=1 << 32)]


class AppendEntries(msgspec.Struct, array_like=True, forbid_unknown_fields=True, tag=7, frozen=True):
    """Entries after (prev_index, prev_term), or none: a heartbeat. `payloads` travel behind the header."""

    term: Natural
    prev_index: Natural
    prev_term: Natural
    commit_index: Natural
    headers: tuple[EntryHeader, ...] = ()
    commit_term: Natural = 0
    """Of the entry at `commit_index`: also a node whose log does not reach that far knows then which one it is."""
    chain: ChainLink | None = None
    """Of the sender's log behind the last of these entries, or at `prev_index`; None where it does not know it."""


class AppendReply(msgspec.Struct, array_like=True, forbid_unknown_fields=True, tag=8, frozen=True):
    """`success`: the follower's fsynced log equals the leader's up to match_index.

    Otherwise: the entry before `rejected_prev + 1` did not match; the leader should go on from `hint`, the first
    index of the follower's conflicting term (row 12) or the end of its log.

    `counts`: this copy may be counted for a commit; not so while the node's old disk, which is lost, may have voted
    in a later term than its new one knows of (raft/rejoin.py).
    """

    term: Natural
    success: bool
    match_index: Natural
    rejected_prev: Natural = 0
    hint: Natural = 0
    counts: bool = True
    votes: bool = False
    """The follower would vote: its disk holds everything it ever acknowledged (raft/rejoin.py)."""
    heartbeat: bool = False
    """To an append without entries: it says nothing of entries that are on their way."""


class TimeoutNow(msgspec.Struct, array_like=True, forbid_unknown_fields=True, tag=9, frozen=True):
    """Leadership transfer: stand for election at once (Raft thesis 3.10)."""

    term: Natural


class SnapshotBegin(msgspec.Struct, array_like=True, forbid_unknown_fields=True, tag=10, frozen=True):
    """Message 0 of a transfer: the leader's state after entry `index`, for a peer that its log no longer reaches."""

    term: Natural
    transfer: Natural
    """Tells the transfers of one leadership apart."""
    base_position: Natural
    base_index: Natural
    base_term: Natural
    index: Natural
    state_hash: Annotated[str, Meta(max_length=64)]
    format: Annotated[str, Meta(max_length=64)]
    """Of the index; another one cannot be read."""
    estimated_pairs: Natural


class SnapshotChunk(msgspec.Struct, array_like=True, forbid_unknown_fields=True, tag=11, frozen=True):
    """Messages 1, 2, ... of a transfer: the next portion of the stream of pairs."""

    term: Natural
    transfer: Natural
    number: Annotated[int, Meta(ge=1, le=(1 << 63) - 1)]
    data: Annotated[bytes, Meta(max_length=CHUNK_BYTES_MAX)]


class SnapshotEnd(msgspec.Struct, array_like=True, forbid_unknown_fields=True, tag=12, frozen=True):
    """The last message of a transfer: what must have arrived by then."""

    term: Natural
    transfer: Natural
    number: Annotated[int, Meta(ge=1, le=(1 << 63) - 1)]
    pairs: Natural
    checksum: Annotated[bytes, Meta(max_length=64)]


class SnapshotAck(msgspec.Struct, array_like=True, forbid_unknown_fields=True, tag=13, frozen=True):
    """The first `received` messages of the transfer were taken, none after them."""

    term: Natural
    transfer: Natural
    received: Natural


class SnapshotReject(msgspec.Struct, array_like=True, forbid_unknown_fields=True, tag=14, frozen=True):
    """The transfer is not, or no longer, taken; the reason is for operators."""

    term: Natural
    transfer: Natural
    reason: Annotated[str, Meta(max_length=1024)]


class Recall(msgspec.Struct, array_like=True, forbid_unknown_fields=True, tag=16, frozen=True):
    """First message of a connection: what the sender knows the receiver's disk to have held (raft/knowledge.py)."""

    term: Natural
    incarnation: Incarnation
    """Of the receiver: of no other disk than that is anything said."""
    spoken_term: Natural
    acked_term: Natural
    acked_index: Natural
    superseded: bool = False
    """The receiver has had another disk since that one."""


class DiskVitals(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """How the disk under the sender's log is (raft/disk_health.py)."""

    free_bytes: Natural
    is_low: bool
    """There is no room for more: as leader this node would refuse writes."""
    sync_ms: Natural | None = None
    """How long a sync takes at the moment; None while there was none lately."""


class StateAt(NamedTuple):
    """A replica behind an entry: its state (store/state/state_history.py), and the chain of its log."""

    index: Natural  # type: ignore[assignment]  # hides tuple.index
    state_hash: Annotated[bytes, Meta(max_length=64)]
    """Empty if only the chain is known."""
    rows_from: Annotated[int, Meta(ge=-1, le=(1 << 63) - 1)]
    rows_hash: Crc
    chain: ChainLink | None = None


class ReplicaState(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """What the sender of `Vitals` has applied, and how it compares with others (raft/replicas.py)."""

    kind: Natural
    """How its hashes are computed; those of another kind are not compared."""
    at: StateAt
    votes: bool
    agrees: Annotated[tuple[tuple[Natural, Natural], ...], Meta(max_length=AGREES_MAX)]
    """The nodes that it has found to be equal to it, and at which entry last."""
    differs_from: Natural = 0
    """It knows that it is the one that differs, from about this entry on; 0 while it does not."""


class Compare(msgspec.Struct, array_like=True, forbid_unknown_fields=True, tag=19, frozen=True):
    """What are your hashes at these entries?"""

    indexes: Annotated[tuple[Natural, ...], Meta(max_length=COMPARED_MAX)]


class Compared(msgspec.Struct, array_like=True, forbid_unknown_fields=True, tag=20, frozen=True):
    """The answer, as far as they are known."""

    kind: Natural
    states: Annotated[tuple[StateAt, ...], Meta(max_length=COMPARED_MAX)]


class Vitals(msgspec.Struct, array_like=True, forbid_unknown_fields=True, tag=15, frozen=True):
    """How the sender is, told to every other node once an interval. It has no term, and proves no leader alive: a node
    adopts nothing from it, it compares (raft/clock_agreement.py).
    """

    wall_ms: Natural
    """Milliseconds since 1970."""
    steady_ms: Natural
    """The sender's monotonic clock."""
    echo_ms: Natural | None = None
    """The last `steady_ms` that the receiver has sent, so that it knows the round trip; None before it has."""
    held_ms: Natural = 0
    """How long the sender has had that."""
    replica: ReplicaState | None = None
    """None from a node that has nothing to compare."""
    disk: DiskVitals | None = None
    unapplied: Natural = 0
    """Entries that the sender knows to be committed and has yet to apply."""


class Arrived(msgspec.Struct, array_like=True, forbid_unknown_fields=True, tag=21, frozen=True):
    """The number of bytes that came by a data lane since its handshake, whole messages or not. Goes back by the same
    connection, and is an answer: the sender lives, in this term.
    """

    term: Natural
    total_bytes: Natural


SnapshotMessage = SnapshotBegin | SnapshotChunk | SnapshotEnd
SnapshotAnswer = SnapshotAck | SnapshotReject
Comparison = Compare | Compared
Receipt = SnapshotAnswer | Arrived
RaftMessage = (
    PreVote
    | PreVoteReply
    | RequestVote
    | VoteReply
    | AppendEntries
    | AppendReply
    | TimeoutNow
    | Recall
    | SnapshotMessage
    | Receipt
    | Vitals
    | Comparison
)
Handshake = Hello | Challenge | Proof | Welcome
Message = Handshake | RaftMessage


class Append(NamedTuple):
    """An AppendEntries with its entries, as handlers see it on both sides."""

    message: AppendEntries
    entries: Sequence[Entry]


_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)
_encoder = msgspec.msgpack.Encoder()


def make_append(
    term: int,
    prev_index: int,
    prev_term: int,
    commit_index: int,
    entries: Sequence[Entry],
    commit_term: int = 0,
    chain: ChainLink | None = None,
) -> Append:
    headers = tuple(
        EntryHeader(entry.index, entry.term, entry.kind, len(entry.payload), crc32c(entry.payload)) for entry in entries
    )
    return Append(AppendEntries(term, prev_index, prev_term, commit_index, headers, commit_term, chain), entries)


def encode(message: Message | Append, level: int = LEVEL_MAX) -> list[bytes]:
    """The frame's parts, for one vectored write, as a peer of feature level `level` knows them; no payload is copied.
    ValueError for a message above that level.
    """
    payloads: list[bytes] = []
    if isinstance(message, Append):
        payloads = [entry.payload for entry in message.entries]
        message = message.message
    header = _encoder.encode(FEATURES.at(message, level))
    body_length = len(header) + sum(map(len, payloads))
    return [FRAME.pack(body_length, len(header), crc32c(header)) + header, *payloads]


def decode(body: memoryview, header_length: int, header_crc: int) -> Message | Append:
    """The message in a frame's body. Payloads are copied out of `body`, which stays the caller's.

    Raises ProtocolError when a CRC, a length or the form is wrong; then nothing of the frame may be used.
    """
    header = body[:header_length]
    if crc32c(header) != header_crc:
        raise ProtocolError("header checksum does not match")
    try:
        message = _decoder.decode(header)
    except (ValueError, RecursionError) as error:  # not text where text belongs, or nested without end
        raise ProtocolError(f"malformed header: {error}") from error
    if not isinstance(message, AppendEntries):
        if len(body) != header_length:
            raise ProtocolError("payload behind a message that has none")
        return message
    return Append(message, _decode_entries(message, body[header_length:]))


def is_name(payload: bytes) -> bool:
    """Whether that is what a no-op says: nothing, or the name of a cluster."""
    return len(payload) <= NAME_BYTES_MAX and payload.isascii()


def _decode_entries(message: AppendEntries, payloads: memoryview) -> list[Entry]:
    entries: list[Entry] = []
    start, expected, term = 0, message.prev_index + 1, message.prev_term
    for header in message.headers:
        if header.index != expected or not term <= header.term <= message.term:
            raise ProtocolError(f"entry {header.index} out of place")
        payload = bytes(payloads[start : start + header.length])
        if len(payload) != header.length or crc32c(payload) != header.crc:
            raise ProtocolError(f"entry {header.index} was damaged on the way")
        if header.kind == KIND_CONFIG:
            with contextlib.suppress(UnknownFeatureLevel):  # no fault of the connection: who takes the entry says so
                decode_configuration(payload)
        elif header.kind == KIND_NOOP and not is_name(payload):
            raise ProtocolError(f"the no-op of entry {header.index} names no cluster")
        entries.append(Entry(payload, header.index, header.term, header.kind, -1))
        start, expected, term = start + header.length, expected + 1, header.term
    if start != len(payloads):
        raise ProtocolError("bytes left over behind the last entry")
    return entries
