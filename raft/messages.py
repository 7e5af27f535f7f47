"""The messages between peers and their encoding.

Every message but those of the handshake, `Vitals`, `Compare` and `Compared` carries its sender's current term (row 4 of
docs/safe-pysyncobj.md). A frame is

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

from raft.distrust import check_past
from raft.errors import ProtocolError
from raft.membership import decode_configuration
from store.features import FEATURES, FIRST_LEVEL, LEVEL_MAX, VERSION_LENGTH_MAX, UnknownFeatureLevel
from store.log.record import KIND_CONFIG, KIND_ENTRY, KIND_NOOP, MAX_PAYLOAD_BYTES, Entry

FRAME = struct.Struct("<III")
MAX_FRAME_BYTES = 96 * 1024 * 1024
"""Maximum bytes of a frame: a record's payload is at most 64 MiB (docs/log-format.md); a larger frame is refused."""
MAX_HEADER_BYTES = 8 * 1024 * 1024
CHUNK_BYTES_MAX = 1024 * 1024
"""Limit of a snapshot portion that a peer sends; this node sends smaller ones (store/snapshots/snapshot.py)."""
Natural = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
"""Range of indexes and terms on disk; a term received in this range can still be raised there."""

COMPARED_MAX = 4
"""Maximum number of entries in one request for hashes: each may cost the receiver the reading of a sidecar."""
AGREES_MAX = 64
Crc = Annotated[int, Meta(ge=0, lt=1 << 32)]
ChainLink = tuple[Natural, Natural, Crc]
"""Form of a `store.log.record_chain.Link`."""

Incarnation = Annotated[str, Meta(max_length=64)]
"""Incarnation of a data directory (cluster/process/data_directory.py)."""

NAME_BYTES_MAX = 100
Name = Annotated[str, Meta(max_length=NAME_BYTES_MAX)]
Nonce = Annotated[bytes, Meta(max_length=32)]
Digest = Annotated[bytes, Meta(max_length=32)]


class Build(msgspec.Struct, array_like=True, frozen=True):
    """The build of a process, as the process names it to its peers. A later version may append elements: in the
    handshake, unknown elements are ignored.
    """

    version: Annotated[str, Meta(max_length=64)] = ""
    level_min: Natural = 1
    """Lowest feature level that the build works at (raft/feature_levels.py); `level_max` is the highest."""
    level_max: Natural = 1
    commit: Annotated[str, Meta(max_length=64)] = ""
    """Commit that the build was made from; empty where it does not say. It is for people: proofs do not cover it."""

    def knows(self, level: int) -> bool:
        return self.level_min <= level <= self.level_max


class Hello(msgspec.Struct, array_like=True, tag=1, frozen=True):
    """The first frame of a connection, from its opener: names the opener and the node it means
    (raft/peers/handshake.py).

    The first five elements never change their places, so that nodes of any two versions can exchange their versions.
    """

    cluster_id: Name
    node_id: Natural
    target_node_id: Natural
    protocol: Natural
    incarnation: Incarnation
    """The opener's data directory, as in Welcome: messages of a disk that is gone no longer count."""
    address: Annotated[str, Meta(max_length=300)] = ""
    """HOST:PORT where the sender listens, for a receiver that does not know it yet."""
    configuration_index: Natural = 0
    """Index of the record that brought the configuration in force at the sender."""
    cluster_uid: Name = ""
    """Name of the cluster that the sender's disk belongs to; empty before the sender knows it."""
    lane: Natural = 0
    """The lane of this connection (raft/peers/lanes.py)."""
    nonce: Nonce = b""
    build: Build = Build()


class Challenge(msgspec.Struct, array_like=True, tag=17, frozen=True):
    """Answers every Hello: asks the opener to prove that it knows the cluster's secret."""

    nonce: Nonce


class Proof(msgspec.Struct, array_like=True, tag=18, frozen=True):
    """Answers a Challenge with the opener's proof."""

    proof: Digest


class Welcome(msgspec.Struct, array_like=True, tag=2, frozen=True):
    """Answers a Proof; `refusal` says in words why the connection is closed, or is empty."""

    node_id: Natural
    refusal: Annotated[str, Meta(max_length=1024)]
    incarnation: Incarnation
    """Identifies the data directory of the acceptor: a new one means that everything it acknowledged before is lost.
    Empty in a refusal, since it concerns admitted peers only.
    """
    removed: bool = False
    """True when a committed configuration, later than the one the opener knows, does not have the opener."""
    proof: Digest = b""
    """The acceptor's proof; empty in a refusal of an opener that has proven nothing."""
    build: Build = Build()
    feature_level: Annotated[int, Meta(ge=FIRST_LEVEL, le=LEVEL_MAX)] = FIRST_LEVEL
    """Level in force in the acceptor's cluster by its log: an opener that cannot work at it ends (exit code 7)."""
    feature_version: Annotated[str, Meta(max_length=VERSION_LENGTH_MAX)] = ""
    """The first version that knows that level."""


class PreVote(msgspec.Struct, array_like=True, forbid_unknown_fields=True, tag=3, frozen=True):
    """Asks for the receiver's vote in term + 1, without any change on either side (Raft thesis 9.6)."""

    term: Natural
    last_index: Natural
    last_term: Natural
    first_election: bool
    """True when the sender's log is blank: only the first election of a cluster is open to such candidates."""


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
    """Carries entries after (prev_index, prev_term); without entries it is a heartbeat. Payloads follow the header."""

    term: Natural
    prev_index: Natural
    prev_term: Natural
    commit_index: Natural
    headers: tuple[EntryHeader, ...] = ()
    commit_term: Natural = 0
    """Term of the entry at `commit_index`, which identifies it also for a node whose log is shorter."""
    chain: ChainLink | None = None
    """Link of the sender's log after the last of these entries, or at `prev_index`; None if the sender has none."""


class AppendReply(msgspec.Struct, array_like=True, forbid_unknown_fields=True, tag=8, frozen=True):
    """Answers an append. `success`: the follower's fsynced log equals the leader's up to match_index.

    Otherwise the entry before `rejected_prev + 1` did not match, and the leader should go on from `hint`: the first
    index of the follower's conflicting term (row 12) or the end of its log.

    `counts`: this copy may be counted for a commit. It is False while the node's old disk, which is lost, may have
    voted in a later term than its new one knows of (raft/copies/rejoin.py).
    """

    term: Natural
    success: bool
    match_index: Natural
    rejected_prev: Natural = 0
    hint: Natural = 0
    counts: bool = True
    votes: bool = False
    """True when the follower would vote: its disk holds everything it ever acknowledged (raft/copies/rejoin.py)."""
    heartbeat: bool = False
    """True in an answer to an append without entries; it says nothing about entries under way."""


class TimeoutNow(msgspec.Struct, array_like=True, forbid_unknown_fields=True, tag=9, frozen=True):
    """Transfers leadership: asks the receiver to stand for election at once (Raft thesis 3.10)."""

    term: Natural


class SnapshotBegin(msgspec.Struct, array_like=True, forbid_unknown_fields=True, tag=10, frozen=True):
    """Message 0 of a transfer: announces the leader's state after entry `index`, for a peer behind the leader's log."""

    term: Natural
    transfer: Natural
    """Number that distinguishes the transfers of one leadership."""
    base_position: Natural
    base_index: Natural
    base_term: Natural
    index: Natural
    state_hash: Annotated[str, Meta(max_length=64)]
    format: Annotated[str, Meta(max_length=64)]
    """Format of the index; a receiver that uses another format cannot read it."""
    estimated_pairs: Natural


class SnapshotChunk(msgspec.Struct, array_like=True, forbid_unknown_fields=True, tag=11, frozen=True):
    """Message 1, 2, ... of a transfer: carries the next portion of the stream of pairs."""

    term: Natural
    transfer: Natural
    number: Annotated[int, Meta(ge=1, le=(1 << 63) - 1)]
    data: Annotated[bytes, Meta(max_length=CHUNK_BYTES_MAX)]


class SnapshotEnd(msgspec.Struct, array_like=True, forbid_unknown_fields=True, tag=12, frozen=True):
    """The last message of a transfer: says how much must have arrived by then, and its checksum."""

    term: Natural
    transfer: Natural
    number: Annotated[int, Meta(ge=1, le=(1 << 63) - 1)]
    pairs: Natural
    checksum: Annotated[bytes, Meta(max_length=64)]


class SnapshotAck(msgspec.Struct, array_like=True, forbid_unknown_fields=True, tag=13, frozen=True):
    """Acknowledges the first `received` messages of the transfer; none after them were taken."""

    term: Natural
    transfer: Natural
    received: Natural


class SnapshotReject(msgspec.Struct, array_like=True, forbid_unknown_fields=True, tag=14, frozen=True):
    """Says that the transfer is not, or no longer, accepted; the reason is for operators."""

    term: Natural
    transfer: Natural
    reason: Annotated[str, Meta(max_length=1024)]


class Recall(msgspec.Struct, array_like=True, forbid_unknown_fields=True, tag=16, frozen=True):
    """First message of a connection: the terms and entries that the receiver's disk must know (raft/knowledge.py)."""

    term: Natural
    incarnation: Incarnation
    """Incarnation of the receiver's disk; the message concerns no other disk."""
    spoken_term: Natural
    acked_term: Natural
    acked_index: Natural
    superseded: bool = False
    """True when the receiver has had another disk since that one."""


class DiskVitals(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """Health of the disk under the sender's log (raft/health/disk_health.py)."""

    free_bytes: Natural
    is_low: bool
    """True when there is no room for more: as leader this node would refuse writes."""
    sync_ms: Natural | None = None
    """Present duration of a sync in ms; None when there was no sync lately."""


class StateAt(NamedTuple):
    """Digest of a replica after an entry: its state (store/state/state_history.py), and the chain of its log."""

    index: Natural  # type: ignore[assignment]  # hides tuple.index
    state_hash: Annotated[bytes, Meta(max_length=64)]
    """Hash of the state; empty if only the chain is known."""
    rows_from: Annotated[int, Meta(ge=-1, le=(1 << 63) - 1)]
    rows_hash: Crc
    chain: ChainLink | None = None


class ReplicaState(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """State that the sender of `Vitals` has applied, and the results of its comparisons (raft/copies/replicas.py)."""

    kind: Natural
    """Identifies how the hashes are computed; hashes of different kinds are not compared."""
    at: StateAt
    votes: bool
    agrees: Annotated[tuple[tuple[Natural, Natural], ...], Meta(max_length=AGREES_MAX)]
    """Pairs of a node that was found equal to the sender, and the last entry at which it was."""
    differs_from: Natural = 0
    """Entry from about which on the sender itself is known to differ; 0 while it is not known to."""


class Compare(msgspec.Struct, array_like=True, forbid_unknown_fields=True, tag=19, frozen=True):
    """Asks for the receiver's hashes at these entries."""

    indexes: Annotated[tuple[Natural, ...], Meta(max_length=COMPARED_MAX)]


class Compared(msgspec.Struct, array_like=True, forbid_unknown_fields=True, tag=20, frozen=True):
    """Answers `Compare` with the states that are known."""

    kind: Natural
    states: Annotated[tuple[StateAt, ...], Meta(max_length=COMPARED_MAX)]


class Vitals(msgspec.Struct, array_like=True, forbid_unknown_fields=True, tag=15, frozen=True):
    """Vital signs of the sender, told to every other node once an interval. The message has no term and proves no
    leader alive: a receiver adopts nothing from it, it compares (raft/health/clock_agreement.py).
    """

    wall_ms: Natural
    """The sender's wall clock in milliseconds since 1970."""
    steady_ms: Natural
    """The sender's monotonic clock in milliseconds."""
    echo_ms: Natural | None = None
    """The last `steady_ms` that the receiver has sent, for measuring the round trip; None if there was none yet."""
    held_ms: Natural = 0
    """Milliseconds since the sender received the `steady_ms` that it echoes."""
    replica: ReplicaState | None = None
    """The sender's replica state; None if it has nothing to compare."""
    disk: DiskVitals | None = None
    unapplied: Natural = 0
    """Number of entries that the sender knows to be committed and has yet to apply."""
    is_drained: bool = False
    """True while an operator wants other nodes to lead."""


class Arrived(msgspec.Struct, array_like=True, forbid_unknown_fields=True, tag=21, frozen=True):
    """Reports how many bytes a data lane has received since its handshake, whole messages or not. It is sent back by
    the same connection, and proves that its sender is alive in this term.
    """

    term: Natural
    total_bytes: Natural


SnapshotMessage = SnapshotBegin | SnapshotChunk | SnapshotEnd
SnapshotAnswer = SnapshotAck | SnapshotReject
Comparison = Compare | Compared
Receipt = SnapshotAnswer | Arrived
Voting = PreVote | PreVoteReply | RequestVote | VoteReply | TimeoutNow
RaftMessage = Voting | AppendEntries | AppendReply | Recall | SnapshotMessage | Receipt | Vitals | Comparison
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
    """Return the parts of a frame for one vectored write, in the form that a peer of feature level `level` knows; no
    payload is copied. Raises ValueError for a message above that level.
    """
    payloads: list[bytes] = []
    if isinstance(message, Append):
        payloads = [entry.payload for entry in message.entries]
        message = message.message
    header = _encoder.encode(FEATURES.at(message, level))
    body_length = len(header) + sum(map(len, payloads))
    return [FRAME.pack(body_length, len(header), crc32c(header)) + header, *payloads]


def decode(body: memoryview, header_length: int, header_crc: int) -> Message | Append:
    """Return the message in a frame's body. Payloads are copied out of `body`, which stays the caller's.

    Raises ProtocolError when a CRC, a length or the form is wrong; then nothing of the frame may be used.
    """
    header = body[:header_length]
    if crc32c(header) != header_crc:
        raise ProtocolError("the checksum of the header does not match")
    try:
        message = _decoder.decode(header)
    except (ValueError, RecursionError) as error:  # invalid text, or endless nesting
        raise ProtocolError(f"malformed header: {error}") from error
    if not isinstance(message, AppendEntries):
        if len(body) != header_length:
            raise ProtocolError(f"{len(body) - header_length} bytes follow a message without payload")
        if isinstance(message, Recall):
            check_past(message.term, message.spoken_term, message.acked_term)
        return message
    check_past(message.term, message.prev_term, message.commit_term)
    return Append(message, _decode_entries(message, body[header_length:]))


def is_name(payload: bytes) -> bool:
    """Return whether the payload is valid for a no-op: empty, or the name of a cluster."""
    return len(payload) <= NAME_BYTES_MAX and payload.isascii()


def _decode_entries(message: AppendEntries, payloads: memoryview) -> list[Entry]:
    entries: list[Entry] = []
    start, expected, term = 0, message.prev_index + 1, message.prev_term
    for header in message.headers:
        if header.index != expected or not term <= header.term <= message.term:
            raise ProtocolError(
                f"entry {header.index} of term {header.term} is out of place: entry {expected} was expected"
            )
        payload = bytes(payloads[start : start + header.length])
        if len(payload) != header.length or crc32c(payload) != header.crc:
            raise ProtocolError(f"entry {header.index} was damaged on the way")
        if header.kind == KIND_CONFIG:
            with contextlib.suppress(UnknownFeatureLevel):  # the node that takes the entry reports it
                decode_configuration(payload)
        elif header.kind == KIND_NOOP and not is_name(payload):
            raise ProtocolError(f"the no-op of entry {header.index} names no cluster")
        entries.append(Entry(payload, header.index, header.term, header.kind, -1))
        start, expected, term = start + header.length, expected + 1, header.term
    if start != len(payloads):
        raise ProtocolError(f"{len(payloads) - start} bytes are left over behind the last entry")
    return entries
