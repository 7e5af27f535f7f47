"""Bodies of the requests of `Admin`. A field that is None and has a default is left out of the request."""

from collections.abc import Sequence

import msgspec


class PutTopic(msgspec.Struct, omit_defaults=True, kw_only=True):
    queues: int | None = None
    retention_ms: int | None = None
    type: str | None = None
    retention_bytes: int | None = None


class PurgeTopic(msgspec.Struct, omit_defaults=True):
    queue: int | None = None


class PutGroup(msgspec.Struct, omit_defaults=True, kw_only=True):
    retry_max_attempts: int | None = None
    retry_delays_ms: Sequence[int] | None = None


class ResetGroup(msgspec.Struct, omit_defaults=True, kw_only=True):
    topic: str
    queue: int | None = None
    to: str | None = None
    offset: int | None = None
    timestamp_ms: int | None = None


class CloneOffsets(msgspec.Struct, omit_defaults=True):
    source: str
    topic: str | None = None


class ReplayDeadLetters(msgspec.Struct):
    offsets: list[int]


class OperatorNote(msgspec.Struct):
    """The operator who pauses or resumes something, and the reason; both are always sent."""

    operator: str
    reason: str


class OperatorDecision(msgspec.Struct, omit_defaults=True, kw_only=True):
    source: str
    force: bool = False
    operator: str | None = None
    reason: str | None = None


class SetCheckUrl(msgspec.Struct):
    """The URL of a producer group; null removes it."""

    check_url: str | None


class PutSettings(msgspec.Struct, omit_defaults=True, kw_only=True):
    reject_transactions: bool | None = None
    log_retention_bytes: int | None = None


class AddNode(msgspec.Struct):
    node_id: int
    peer_address: str
    http_address: str


class MakeJoinToken(msgspec.Struct, omit_defaults=True):
    node_id: int
    expires_in_ms: int | None = None


class SetAddress(msgspec.Struct, omit_defaults=True, kw_only=True):
    peer_address: str | None = None
    http_address: str | None = None


class RaiseFeatureLevel(msgspec.Struct, omit_defaults=True):
    level: int | None = None


class SetLogLevel(msgspec.Struct):
    """The level of a node, or of a logger; null has the logger follow the node. Both fields are always sent."""

    level: str | None
    logger: str | None


class Drain(msgspec.Struct):
    drained: bool


class NoFields(msgspec.Struct):
    """The empty object, for a request about which there is nothing to say."""
