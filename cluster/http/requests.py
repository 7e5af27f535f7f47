"""What clients may send: one struct per request body and per query, decoded and validated in one step.

Unknown fields, wrong types and numbers out of range are `invalid_request` problems that name the field. The same
structs make /openapi.json, so the schema cannot say anything else than what is enforced.
"""

from collections.abc import Mapping
from typing import Annotated, Final, Literal, TypeVar

import msgspec
from msgspec import Meta

from cluster.limits import (
    BATCHES_MAX,
    CHECKS_MAX,
    CLIENT_ID_LENGTH_MAX,
    DELAY_LEVELS_S,
    DELAY_MAX_MS,
    GIVE_BACK_MESSAGES_MAX,
    GIVE_BACK_REASON_BYTES_MAX,
    GROUP_LENGTH_MAX,
    GROUP_TOPICS_MAX,
    ID_PATTERN,
    INT64_MAX,
    KEY_BYTES_MAX,
    KEYS_MAX,
    LIST_MAX,
    LOG_BYTES_DEFAULT,
    LOG_BYTES_MAX,
    MESSAGE_ID_PATTERN,
    NAME_REGEX,
    OFFSETS_MAX,
    PULL_BYTES_DEFAULT,
    PULL_BYTES_MAX,
    PULL_MESSAGES_DEFAULT,
    PULL_MESSAGES_MAX,
    QUEUES_MAX,
    REQUEST_MESSAGES_MAX,
    RETENTION_MS_MAX,
    RETRY_DELAYS_MAX,
    RETRY_MAX_ATTEMPTS_MAX,
    SESSION_TIMEOUT_MS_MAX,
    SESSION_TIMEOUT_MS_MIN,
    SHARDING_KEY_BYTES_MAX,
    TAG_BYTES_MAX,
    TAGS_LENGTH_MAX,
    TOPIC_LENGTH_MAX,
    URL_LENGTH_MAX,
    WAIT_MS_MAX,
)
from cluster.problems import Problem
from store.commands.command import BlockEncoding, Decision, DecisionSource, TopicType
from store.limits import CHECK_AFTER_MAX_MS, OPERATOR_BYTES_MAX, REASON_BYTES_MAX
from store.messages.topics import DLQ_PREFIX, RETRY_PREFIX

Natural = Annotated[int, Meta(ge=0, le=INT64_MAX)]
Queue = Annotated[int, Meta(ge=0, lt=QUEUES_MAX)]
Crc32c = Annotated[int, Meta(ge=0, lt=1 << 32)]
Id = Annotated[str, Meta(pattern=ID_PATTERN)]
ClientId = Annotated[str, Meta(max_length=CLIENT_ID_LENGTH_MAX)]
Operator = Annotated[str, Meta(max_length=OPERATOR_BYTES_MAX)]
Reason = Annotated[str, Meta(max_length=REASON_BYTES_MAX)]
CheckAfterMs = Annotated[int, Meta(ge=0, le=CHECK_AFTER_MAX_MS)]
Tags = Annotated[str, Meta(min_length=1, max_length=TAGS_LENGTH_MAX)]
WaitMs = Annotated[int, Meta(ge=0, le=WAIT_MS_MAX)]
_NAME_RULE: Final = "characters of % | a-z A-Z 0-9 _ -"
TransactionState = Literal["prepared", "committed", "rolled_back", "discarded"]


class Request(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Base of everything that clients send."""


class WebhookAnswer(msgspec.Struct, frozen=True):
    """What a producer's webhook answers. Further members are left alone: the answer is foreign code's."""

    decision: Decision


class TopicSettings(Request, kw_only=True, frozen=True):
    queues: Annotated[int, Meta(ge=1, le=QUEUES_MAX)] | None = None
    retention_ms: Annotated[int, Meta(ge=-1, le=RETENTION_MS_MAX)] | None = None
    type: TopicType | None = None


class Delay(Request, kw_only=True, frozen=True):
    """When messages become visible; at most one of these is given."""

    delay_level: Annotated[int, Meta(ge=1, le=len(DELAY_LEVELS_S))] | None = None
    delay_ms: Annotated[int, Meta(ge=0, le=DELAY_MAX_MS)] | None = None
    deliver_at_ms: Natural | None = None


class JsonMessage(Delay, kw_only=True, frozen=True):
    body: str
    encoding: Literal["utf8", "base64"] = "utf8"
    message_id: Annotated[str, Meta(pattern=MESSAGE_ID_PATTERN)] | None = None
    keys: Annotated[tuple[Annotated[str, Meta(max_length=KEY_BYTES_MAX)], ...], Meta(max_length=KEYS_MAX)] = ()
    tag: Annotated[str, Meta(max_length=TAG_BYTES_MAX)] | None = None
    properties: dict[str, str] = {}
    queue: Queue | None = None
    sharding_key: Annotated[str, Meta(max_length=SHARDING_KEY_BYTES_MAX)] | None = None
    born_at_ms: Natural = 0


class JsonProduce(Request, kw_only=True, frozen=True):
    messages: Annotated[tuple[JsonMessage, ...], Meta(min_length=1, max_length=REQUEST_MESSAGES_MAX)]


class BlockBatch(Delay, kw_only=True, frozen=True):
    queue: Queue | None = None
    batch_id: Id
    crc32c: Crc32c
    block: bytes
    encoding: BlockEncoding = "none"
    uncompressed_bytes: Annotated[int, Meta(ge=1, le=INT64_MAX)] | None = None

    def __post_init__(self) -> None:
        if (self.encoding == "none") != (self.uncompressed_bytes is None):
            raise ValueError("`uncompressed_bytes` belongs to a compressed block, and to no other")

    @property
    def unpacked_bytes(self) -> int:
        """What the block takes once it is unpacked, by its own word."""
        return len(self.block) if self.uncompressed_bytes is None else self.uncompressed_bytes


class BlockProduce(Request, kw_only=True, frozen=True):
    batches: Annotated[tuple[BlockBatch, ...], Meta(min_length=1, max_length=BATCHES_MAX)]
    client_id: ClientId = ""


class JsonHalfMessage(JsonMessage, kw_only=True, frozen=True):
    topic: str


class JsonHalf(Request, kw_only=True, frozen=True):
    transaction_id: Id | None = None
    producer_group: str
    client_id: ClientId = ""
    check_after_ms: CheckAfterMs | None = None
    messages: Annotated[tuple[JsonHalfMessage, ...], Meta(min_length=1, max_length=REQUEST_MESSAGES_MAX)]


class BlockHalfBatch(BlockBatch, kw_only=True, frozen=True):
    topic: str


class BlockHalf(Request, kw_only=True, frozen=True):
    transaction_id: Id | None = None
    producer_group: str
    client_id: ClientId = ""
    check_after_ms: CheckAfterMs | None = None
    batches: Annotated[tuple[BlockHalfBatch, ...], Meta(min_length=1, max_length=BATCHES_MAX)]


class DecisionRequest(Request, kw_only=True, frozen=True):
    producer_group: str | None = None
    client_id: ClientId = ""
    source: DecisionSource = "producer"
    force: bool = False
    operator: Operator = ""
    reason: Reason = ""


class ResumeRequest(Request, kw_only=True, frozen=True):
    operator: Operator
    reason: Reason


class SettingsRequest(Request, kw_only=True, frozen=True):
    reject_transactions: bool | None = None


class CheckUrl(Request, kw_only=True, frozen=True):
    check_url: Annotated[str, Meta(max_length=URL_LENGTH_MAX)] | None


class JoinRequest(Request, kw_only=True, frozen=True):
    topics: Annotated[tuple[str, ...], Meta(min_length=1, max_length=GROUP_TOPICS_MAX)]
    client_id: ClientId = ""
    session_timeout_ms: Annotated[int, Meta(ge=SESSION_TIMEOUT_MS_MIN, le=SESSION_TIMEOUT_MS_MAX)] = 30_000
    member_id: Id | None = None
    tags: dict[str, Tags] = {}
    filters: dict[str, str] = {}


class HeartbeatRequest(Request, kw_only=True, frozen=True):
    """With `wait_ms`, it is answered when the group is not at `generation` any more, or the time is over."""

    generation: Natural | None = None
    wait_ms: WaitMs = 0


class OffsetEntry(Request, kw_only=True, frozen=True):
    topic: str
    queue: Queue
    offset: Natural


class OffsetsRequest(Request, kw_only=True, frozen=True):
    member_id: Id | None = None
    generation: Natural | None = None
    offsets: Annotated[tuple[OffsetEntry, ...], Meta(min_length=1, max_length=OFFSETS_MAX)]
    begins: bool = False


class GivenBackEntry(OffsetEntry, kw_only=True, frozen=True):
    reason: Annotated[str, Meta(max_length=GIVE_BACK_REASON_BYTES_MAX)] = ""
    delay_ms: Annotated[int, Meta(ge=0, le=DELAY_MAX_MS)] | None = None


class GiveBackRequest(Request, kw_only=True, frozen=True):
    member_id: Id | None = None
    generation: Natural | None = None
    messages: Annotated[tuple[GivenBackEntry, ...], Meta(min_length=1, max_length=GIVE_BACK_MESSAGES_MAX)]


class GroupSettings(Request, kw_only=True, frozen=True):
    retry_max_attempts: Annotated[int, Meta(ge=0, le=RETRY_MAX_ATTEMPTS_MAX)] | None = None
    retry_delays_ms: (
        Annotated[
            tuple[Annotated[int, Meta(ge=0, le=DELAY_MAX_MS)], ...], Meta(min_length=1, max_length=RETRY_DELAYS_MAX)
        ]
        | None
    ) = None


class CloneRequest(Request, kw_only=True, frozen=True):
    source: str
    topic: str | None = None


class ReplayRequest(Request, kw_only=True, frozen=True):
    offsets: Annotated[tuple[Natural, ...], Meta(min_length=1, max_length=GIVE_BACK_MESSAGES_MAX)]


class DeadLettersQuery(Request, kw_only=True, frozen=True):
    offset: Natural = 0
    limit: Annotated[int, Meta(ge=1, le=LIST_MAX)] = 100


class ResetRequest(Request, kw_only=True, frozen=True):
    topic: str
    queue: Queue | None = None
    to: Literal["earliest", "latest"] | None = None
    offset: Natural | None = None
    timestamp_ms: Natural | None = None


class TopicsQuery(Request, kw_only=True, frozen=True):
    system: bool = False
    limit: Annotated[int, Meta(ge=1, le=LIST_MAX)] = LIST_MAX
    after: str | None = None


class PullQuery(Request, kw_only=True, frozen=True):
    offset: Natural
    max_messages: Annotated[int, Meta(ge=1, le=PULL_MESSAGES_MAX)] = PULL_MESSAGES_DEFAULT
    max_bytes: Annotated[int, Meta(ge=1, le=PULL_BYTES_MAX)] = PULL_BYTES_DEFAULT
    wait_ms: WaitMs = 0
    tags: Tags | None = None
    filter: str | None = None


class MessagesQuery(Request, kw_only=True, frozen=True):
    key: Annotated[str, Meta(min_length=1, max_length=KEY_BYTES_MAX)] | None = None
    from_ms: Natural = 0
    to_ms: Natural | None = None
    limit: Annotated[int, Meta(ge=1, le=LIST_MAX)] = 100
    after: str | None = None


class MessageIdQuery(Request, kw_only=True, frozen=True):
    topic: str | None = None


class OffsetQuery(Request, kw_only=True, frozen=True):
    at: Literal["earliest", "latest"] | Natural


class TransactionsQuery(Request, kw_only=True, frozen=True):
    state: TransactionState | None = None
    older_than_ms: Natural | None = None
    limit: Annotated[int, Meta(ge=1, le=LIST_MAX)] = 100
    after: str | None = None


class ScheduledQuery(Request, kw_only=True, frozen=True):
    limit: Annotated[int, Meta(ge=1, le=LIST_MAX)] = 100
    after: str | None = None


class ChecksQuery(Request, kw_only=True, frozen=True):
    wait_ms: WaitMs = 0
    max: Annotated[int, Meta(ge=1, le=CHECKS_MAX)] = 32
    client_id: ClientId = ""


class ReadyQuery(Request, kw_only=True, frozen=True):
    purpose: Literal["reads", "writes"] = msgspec.field(default="reads", name="for")


class LogQuery(Request, kw_only=True, frozen=True):
    from_index: Annotated[int, Meta(ge=1, le=INT64_MAX)]
    max_bytes: Annotated[int, Meta(ge=1, le=LOG_BYTES_MAX)] = LOG_BYTES_DEFAULT
    wait_ms: WaitMs = 0


class LogEventsQuery(LogQuery, kw_only=True, frozen=True):
    """Entries `from_index` <= index < `to_index`, of the first one the events from `from_event` on."""

    from_event: Natural = 0
    to_index: Natural | None = None
    blocks: bool = True


_Struct = TypeVar("_Struct", bound=msgspec.Struct)


def parse_msgpack(decoder: "msgspec.msgpack.Decoder[_Struct]", body: bytes) -> _Struct:
    try:
        return decoder.decode(body)
    except (ValueError, RecursionError) as error:
        raise Problem("invalid_request", reason_of(error)) from None


def parse_query(kind: type[_Struct], query: Mapping[str, str]) -> _Struct:
    """The query of a URL; a parameter that is given twice is refused like an unknown one."""
    values = dict(query)
    if len(values) != len(query):
        raise Problem("invalid_request", "a query parameter is given twice")
    try:
        return msgspec.convert(values, kind, strict=False)
    except ValueError as error:
        raise Problem("invalid_request", reason_of(error)) from None


def check_topic(name: str) -> str:
    """A group's own topic is its prefix and the name of the group, which may be longer than that of a topic."""
    group = name.removeprefix(RETRY_PREFIX).removeprefix(DLQ_PREFIX)
    length_max = TOPIC_LENGTH_MAX if group == name else GROUP_LENGTH_MAX + len(name) - len(group)
    if len(name) > length_max or not NAME_REGEX.fullmatch(name):
        raise Problem(
            "invalid_topic",
            f"a topic has 1 to {TOPIC_LENGTH_MAX} characters of % | a-z A-Z 0-9 _ -, not {_shown(name)}",
        )
    return name


def check_group(name: str) -> str:
    if len(name) > GROUP_LENGTH_MAX or not NAME_REGEX.fullmatch(name):
        raise Problem(
            "invalid_group",
            f"a group has 1 to {GROUP_LENGTH_MAX} characters of % | a-z A-Z 0-9 _ -, not {_shown(name)}",
        )
    return name


def check_queue(text: str) -> int:
    """The queue number of a path."""
    if not text.isascii() or not text.isdigit() or len(text) > len(str(QUEUES_MAX)):
        raise Problem("invalid_request", f"queue: a number from 0 to {QUEUES_MAX - 1}, not {_shown(text)}")
    return int(text)


def _shown(name: str) -> str:
    return repr(name if len(name) <= 40 else name[:40] + "…")


def reason_of(error: Exception) -> str:
    """A decoder's error, as a problem tells it."""
    if isinstance(error, RecursionError):
        return "the request is nested too deeply"
    return str(error).replace("$.", "").replace(" - at `$`", "")
