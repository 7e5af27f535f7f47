"""Requests and responses on the wire: structs, codecs and the contract's media types.

Unknown fields of a response are ignored (a newer broker may add some); wrong types are an error of code
`invalid_response`.
"""

from typing import Any, Final, Literal, TypeVar

import msgspec

from keelmq.errors import Corrupt
from keelmq.limits import no_text
from keelmq.message import Origin, Receipt

MSGPACK: Final = "application/msgpack"
JSON: Final = "application/json"

# Names of headers of answers, in lower case as the transport has them.
APPLIED_INDEX_HEADER: Final = "keelmq-applied-index"
DISK_BYTES_HEADER: Final = "keelmq-disk-bytes"
"""Header of a pull: bytes read from the node's disk for it. Without the header, all bytes came from memory."""
NEXT_INDEX_HEADER: Final = "keelmq-next-index"
NEXT_EVENT_HEADER: Final = "keelmq-next-event"
SPAN_INDEX_HEADER: Final = "keelmq-span-index"
CLUSTER_UID_HEADER: Final = "keelmq-cluster-uid"

T = TypeVar("T")

BlockEncoding = Literal["none", "zstd"]

NO_RECEIPT: Final = Receipt(0, 0, 0, ())


def _require_place(offset: int | None, deliver_at_ms: int | None) -> None:
    if offset is None and deliver_at_ms is None:
        raise ValueError("neither `offset` nor `deliver_at_ms` is given")


class ProduceBatch(msgspec.Struct, omit_defaults=True):
    batch_id: str
    crc32c: int
    block: bytes
    queue: int | None = None
    encoding: BlockEncoding = "none"
    uncompressed_bytes: int | None = None
    deliver_at_ms: int | None = None
    delay_ms: int | None = None


class ProduceRequest(msgspec.Struct, omit_defaults=True):
    batches: list[ProduceBatch]
    client_id: str | None = None


class PlacedMessage(msgspec.Struct):
    message_id: str
    queue: int
    offset: int | None = None
    duplicate: bool = False
    deliver_at_ms: int | None = None

    def __post_init__(self) -> None:
        _require_place(self.offset, self.deliver_at_ms)


class ProducedBatch(msgspec.Struct, kw_only=True):
    batch_id: str
    queue: int
    offset: int | None = None
    count: int
    duplicate: bool = False
    messages: list[PlacedMessage] | None = None
    deliver_at_ms: int | None = None

    def __post_init__(self) -> None:
        _require_place(self.offset, self.deliver_at_ms)


class ProduceResponse(msgspec.Struct):
    results: list[ProducedBatch]
    receipt: Receipt


class HalfBatch(msgspec.Struct, omit_defaults=True):
    topic: str
    batch_id: str
    crc32c: int
    block: bytes
    queue: int | None = None
    encoding: BlockEncoding = "none"
    uncompressed_bytes: int | None = None
    deliver_at_ms: int | None = None
    delay_ms: int | None = None


class HalfRequest(msgspec.Struct, omit_defaults=True):
    transaction_id: str
    producer_group: str
    batches: list[HalfBatch]
    client_id: str | None = None
    check_after_ms: int | None = None


class HalvesRequest(msgspec.Struct):
    """A request with several half transactions; each element is encoded as the HalfRequest of a single request."""

    transactions: list[msgspec.Raw]


class PartResult(msgspec.Struct, kw_only=True):
    """One of several results of a response; `problem` is set instead of a result when this part failed."""

    transaction_id: str
    problem: dict[str, Any] | None = None


class HalfResponse(PartResult, kw_only=True):
    """The result of one half transaction. `state` and `receipt` are set unless there is a `problem`."""

    state: str = ""
    receipt: Receipt = NO_RECEIPT
    duplicate: bool = False

    def __post_init__(self) -> None:
        if self.problem is None and not (self.state and self.receipt.term):
            raise ValueError("neither `state` and `receipt` nor `problem` are given")


class HalvesResponse(msgspec.Struct):
    results: list[HalfResponse]


class DecisionRequest(msgspec.Struct, omit_defaults=True):
    source: str
    producer_group: str | None = None
    client_id: str | None = None


class DecisionOfOne(msgspec.Struct, omit_defaults=True):
    transaction_id: str
    decision: str
    source: str
    producer_group: str | None = None
    client_id: str | None = None


class DecisionsRequest(msgspec.Struct):
    decisions: list[DecisionOfOne]


class Position(msgspec.Struct):
    topic: str
    queue: int
    offset: int | None = None
    count: int = 1
    deliver_at_ms: int | None = None

    def __post_init__(self) -> None:
        _require_place(self.offset, self.deliver_at_ms)


class DecisionResponse(PartResult, kw_only=True):
    """The result of one decision. `state` is set unless there is a `problem`."""

    state: str = ""
    positions: list[Position] = []

    def __post_init__(self) -> None:
        if self.problem is None and not self.state:
            raise ValueError("neither `state` nor `problem` is given")


class DecisionsResponse(msgspec.Struct):
    results: list[DecisionResponse]


class CheckMessage(msgspec.Struct):
    body: str
    encoding: str = "utf8"
    topic: str = ""
    queue: int | None = None
    message_id: str = ""
    tag: str | None = None
    keys: list[str] | None = None
    properties: dict[str, str] | None = None
    sharding_key: str | None = None
    born_at_ms: int | None = None


class Check(msgspec.Struct):
    transaction_id: str
    producer_group: str
    check_times: int
    prepared_at_ms: int
    messages: list[CheckMessage]
    client_id: str | None = None


class ChecksResponse(msgspec.Struct):
    checks: list[Check]


class PulledBatch(msgspec.Struct):
    base_offset: int
    count: int
    batch_id: str
    stored_at_ms: int
    crc32c: int
    block: bytes
    transaction_id: str | None = None
    skip: list[int] = []
    filtered: list[int] = []
    only: int | None = None
    attempt: int = 0
    origin: Origin | None = None
    encoding: BlockEncoding = "none"
    uncompressed_bytes: int | None = None


class PullResponse(msgspec.Struct):
    batches: list[PulledBatch]
    next_offset: int
    max_offset: int
    min_offset: int = 0


class Assigned(msgspec.Struct, frozen=True):
    topic: str
    queue: int


class JoinRequest(msgspec.Struct, omit_defaults=True):
    topics: list[str]
    client_id: str
    session_timeout_ms: int
    member_id: str | None = None
    tags: dict[str, str] = {}
    filters: dict[str, str] = {}


class HeartbeatRequest(msgspec.Struct, omit_defaults=True):
    """Brokers that know no pauses of groups refuse `paused`."""

    generation: int
    wait_ms: int | None = None
    paused: bool | None = None


class GroupPause(msgspec.Struct):
    """Why the broker hands out nothing to a group."""

    since_ms: int
    operator: str = ""
    reason: str = ""
    principal: str | None = None


class Membership(msgspec.Struct):
    """The answer to a join or a heartbeat. `paused` is UNSET from nodes that know no pauses of groups, or may have
    neighbours that do not.
    """

    member_id: str
    generation: int
    assignment: list[Assigned]
    session_timeout_ms: int
    paused: GroupPause | msgspec.UnsetType | None = msgspec.UNSET


class GroupOffset(msgspec.Struct):
    topic: str
    queue: int
    offset: int
    max_offset: int = 0
    lag: int = 0


class GroupOffsetsResponse(msgspec.Struct):
    offsets: list[GroupOffset]


class GroupMember(msgspec.Struct):
    member_id: str
    joined_at_ms: int
    assignment: list[Assigned]


class GroupDetail(msgspec.Struct):
    generation: int
    members: list[GroupMember]
    offsets: list[GroupOffset]


class CommitOffset(msgspec.Struct):
    topic: str
    queue: int
    offset: int


class CommitRequest(msgspec.Struct, omit_defaults=True):
    offsets: list[CommitOffset]
    member_id: str | None = None
    generation: int | None = None
    begins: bool = False


class GivenBack(msgspec.Struct, omit_defaults=True):
    topic: str
    queue: int
    offset: int
    reason: str = ""
    delay_ms: int | None = None


class GiveBackRequest(msgspec.Struct, omit_defaults=True):
    messages: list[GivenBack]
    member_id: str | None = None
    generation: int | None = None


class GiveBackResult(msgspec.Struct):
    topic: str
    queue: int
    offset: int
    attempt: int
    outcome: str
    due_at_ms: int | None = None


class GiveBackResponse(msgspec.Struct):
    results: list[GiveBackResult]
    generation: int


class OffsetResponse(msgspec.Struct):
    offset: int
    timestamp_ms: int | None = None


class QueueOffsets(msgspec.Struct):
    queue: int
    min_offset: int
    max_offset: int


class NodeAddress(msgspec.Struct):
    """The address of a cluster node for clients."""

    url: str = ""


class LeaderView(msgspec.Struct):
    """The part of GET /v1/cluster that a client needs."""

    leader_url: str | None = None
    nodes: list["NodeAddress"] = []
    configuration_index: int = 0
    removed: bool = False


class TopicInfo(msgspec.Struct, kw_only=True):
    """A topic as the broker describes it."""

    topic: str
    queues: int
    type: str
    retention_ms: int
    system: bool = False
    created_at_ms: int = 0
    queue_offsets: list[QueueOffsets] = []


_pack = msgspec.msgpack.Encoder().encode
_json = msgspec.json.Encoder().encode
_decoders: dict[tuple[str, Any], Any] = {}


def encode_msgpack(value: msgspec.Struct) -> bytes:
    """Encode a request. Raises InvalidRequest for a string with half of a surrogate pair."""
    try:
        return _pack(value)
    except UnicodeEncodeError as exc:
        raise no_text(exc) from None


def encode_json(value: Any) -> bytes:
    """Encode a request. Raises InvalidRequest for a string with half of a surrogate pair."""
    try:
        return _json(value)
    except UnicodeEncodeError as exc:
        raise no_text(exc) from None


def decode(kind: type[T], body: bytes, content_type: str) -> T:
    """Decode the response `body` as `kind`. Raises Corrupt when it does not follow the contract."""
    media = content_type.partition(";")[0].strip()
    decoder = _decoders.get((media, kind))
    if decoder is None:
        if media == MSGPACK:
            decoder = msgspec.msgpack.Decoder(kind).decode
        elif media == JSON or media.endswith("+json"):
            decoder = msgspec.json.Decoder(kind).decode
        else:
            raise Corrupt("invalid_response", f"unexpected content type {content_type!r}: is this a KeelMQ node?")
        _decoders[media, kind] = decoder
    try:
        value: T = decoder(body)
    except (ValueError, RecursionError) as exc:
        raise Corrupt("invalid_response", f"the answer does not follow the contract: {exc}") from exc
    return value
