"""Every error the SDK raises.

    KeelMQError                     code, status, detail, retryable, outcome_unknown
    ├── InvalidRequest              the request can never succeed unchanged: fix the caller
    │   ├── InvalidName             topic or group name outside the allowed alphabet or length
    │   ├── InvalidFilter           not a valid expression, or beyond its limits: see .position
    │   ├── LimitExceeded           body, batch, properties or request beyond a documented limit
    │   └── Forbidden               no permission, system topic, another topic type, check URL, or transactions are off
    ├── Unauthenticated             no token, or one that is not valid: see docs/security.md
    ├── NotFound                    the named thing does not exist
    │   ├── TopicNotFound, QueueNotFound, GroupNotFound, MemberNotFound, TransactionNotFound,
    │   │   MessageNotFound, NotScheduled
    ├── Conflict                    the state of the cluster forbids the request
    │   ├── TransactionConflict     another decision was recorded first: see .state, .decided_at_ms
    │   ├── IdempotencyConflict     the same batch or transaction id with other content
    │   ├── StaleGeneration         the group moved on: fetch the assignment again, commit nothing
    │   ├── NotAssigned, OffsetMovesBack, AlreadyBegun
    ├── OffsetOutOfRange            see .max_offset
    ├── LogRangeRemoved             the log, or its retained part, begins later: see .first_index
    ├── Unavailable                 retryable, and certainly nothing was stored
    │   ├── NoLeader                no leader is known, or no node can be reached or is ready
    │   ├── Overloaded              too much in flight, in this client or at the broker: slow down
    │   │   └── QuotaExceeded       more than this client may ask for or hold: see .quota, .limit, .retry_after_ms
    │   ├── DiskFull                the leader has no log space; reads continue
    │   └── ChecksumMismatch        the data was damaged in transit
    ├── UnknownOutcome              the write may or may not be stored: retry with the same id
    │   └── SendTimeout             the time budget of the call ran out after the request was sent
    ├── Corrupt                     the broker's answer fails its checksum or does not follow the contract
    ├── BrokerFault                 code `internal`: a bug in the broker; `message_damaged`: a message is lost
    ├── ConsumeTimeout              a handler took longer than consume_timeout_ms and was cancelled
    ├── MessagesExpired             messages reached the end of their retention unread by the group: see .skipped
    ├── QueueLost                   a handler's queue belongs, or may belong, to another member by now
    ├── ServerNotTrusted            the certificate of a server, or of this client, is not accepted: see detail
    ├── SignatureRefused            a check that a webhook received is not signed by the cluster, or not lately
    └── Closed                      the client was closed

`retryable` says that the same call may succeed later without a change. `outcome_unknown` says that the call may have
taken effect; only repeating it with the same batch, message or transaction id finds out without storing it twice. An
error of any class has `outcome_unknown` set when an earlier try of its call may have taken effect.
"""

from collections.abc import Mapping
from typing import ClassVar, Final

RETRY_AFTER_MS_MAX: Final = 86_400_000
"""Longest time that an answer can ask a client to wait; every call ends by its own deadline anyway."""


class KeelMQError(Exception):
    """Base class of all errors of the SDK.

    `code` is stable (docs/http-api.md). `status` is the HTTP status, or 0 for an error found by the SDK itself. `extra`
    holds the further members of the broker's problem document. `request_id` names the request in the log of the node
    that answered with the error (docs/logs.md), or is None.
    """

    retryable: ClassVar[bool] = False
    outcome_unknown: bool = False
    """Class default; set to True on an instance whose call had an earlier try that may have taken effect."""
    request_id: str | None = None

    def __init__(self, code: str, detail: str, *, status: int = 0, extra: Mapping[str, object] | None = None) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail
        self.status = status
        self.extra: dict[str, object] = dict(extra or {})


class InvalidRequest(KeelMQError): ...


class InvalidName(InvalidRequest): ...


class InvalidFilter(InvalidRequest):
    @property
    def position(self) -> int | None:
        """Column of the error in the expression, counted from 1; `detail` shows the place."""
        value = self.extra.get("position")
        return value if isinstance(value, int) else None


class LimitExceeded(InvalidRequest): ...


class Forbidden(InvalidRequest): ...


class Unauthenticated(KeelMQError): ...


class NotFound(KeelMQError): ...


class TopicNotFound(NotFound): ...


class QueueNotFound(NotFound): ...


class GroupNotFound(NotFound): ...


class MemberNotFound(NotFound): ...


class TransactionNotFound(NotFound): ...


class MessageNotFound(NotFound): ...


class NotScheduled(NotFound): ...


class Conflict(KeelMQError): ...


class TransactionConflict(Conflict):
    @property
    def state(self) -> str:
        """Recorded outcome: `committed`, `rolled_back` or `discarded`."""
        return str(self.extra.get("state", ""))

    @property
    def decided_at_ms(self) -> int | None:
        value = self.extra.get("decided_at_ms")
        return value if isinstance(value, int) else None


class IdempotencyConflict(Conflict): ...


class StaleGeneration(Conflict):
    @property
    def generation(self) -> int | None:
        value = self.extra.get("generation")
        return value if isinstance(value, int) else None


class NotAssigned(Conflict): ...


class OffsetMovesBack(Conflict): ...


class AlreadyBegun(Conflict): ...


class OffsetOutOfRange(KeelMQError):
    @property
    def max_offset(self) -> int | None:
        value = self.extra.get("max_offset")
        return value if isinstance(value, int) else None


class LogRangeRemoved(KeelMQError):
    @property
    def first_index(self) -> int | None:
        """First Raft index that the answering node can deliver; another node may reach further back."""
        value = self.extra.get("first_index")
        return value if isinstance(value, int) else None


class Unavailable(KeelMQError):
    retryable = True


class NoLeader(Unavailable): ...


class Overloaded(Unavailable): ...


class QuotaExceeded(Overloaded):
    """The principal has used its quota at this node; an administrator can raise it (docs/security.md)."""

    @property
    def quota(self) -> str:
        """The quota that is used up: `requests_per_s`, `in_bytes_per_s`, `out_bytes_per_s` or `filter_ms_per_s`, or of
        what is held at a time `connections`, `long_polls` or `held_bytes`.
        """
        return str(self.extra.get("quota", ""))

    @property
    def limit(self) -> int | None:
        value = self.extra.get("limit")
        return value if isinstance(value, int) else None

    @property
    def retry_after_ms(self) -> int:
        """Time after which the node wants to be asked again; 0 when it does not say."""
        value = self.extra.get("retry_after_ms")
        return min(max(value, 0), RETRY_AFTER_MS_MAX) if isinstance(value, int) else 0


class DiskFull(Unavailable): ...


class ChecksumMismatch(Unavailable): ...


class UnknownOutcome(KeelMQError):
    retryable = True
    outcome_unknown = True


class SendTimeout(UnknownOutcome): ...


class Corrupt(KeelMQError): ...


class BrokerFault(KeelMQError): ...


class ConsumeTimeout(KeelMQError): ...


class MessagesExpired(KeelMQError):
    """Reports messages that a consumer skips because their retention is over.

    The member itself is healthy: its group was too slow or was away.
    """

    @property
    def skipped(self) -> int:
        """Number of skipped offsets."""
        value = self.extra.get("skipped")
        return value if isinstance(value, int) else 0


class QueueLost(KeelMQError): ...


class ServerNotTrusted(KeelMQError): ...


class SignatureRefused(KeelMQError): ...


class Closed(KeelMQError): ...


def closed_in_flight(detail: str) -> Closed:
    """Return the error of a call that was under way when the client was closed."""
    error = Closed("closed", detail)
    error.outcome_unknown = True
    return error


# problem+json `code` -> class. A code that is missing here (a newer broker) falls back on its HTTP status.
ERRORS_BY_CODE: Mapping[str, type[KeelMQError]] = {
    "invalid_request": InvalidRequest,
    "invalid_topic": InvalidName,
    "invalid_group": InvalidName,
    "invalid_filter": InvalidFilter,
    "unauthenticated": Unauthenticated,
    "forbidden": Forbidden,
    "system_topic": Forbidden,
    "topic_type_mismatch": Forbidden,
    "transactions_rejected": Forbidden,
    "check_url_not_allowed": Forbidden,
    "topic_not_found": TopicNotFound,
    "queue_not_found": QueueNotFound,
    "group_not_found": GroupNotFound,
    "member_not_found": MemberNotFound,
    "transaction_not_found": TransactionNotFound,
    "message_not_found": MessageNotFound,
    "not_scheduled": NotScheduled,
    "checksum_mismatch": ChecksumMismatch,
    "invalid_compression": InvalidRequest,
    "message_too_large": LimitExceeded,
    "batch_too_large": LimitExceeded,
    "request_too_large": LimitExceeded,
    "empty_body": LimitExceeded,
    "too_many_properties": LimitExceeded,
    "offset_out_of_range": OffsetOutOfRange,
    "log_range_removed": LogRangeRemoved,
    "transaction_conflict": TransactionConflict,
    "idempotency_conflict": IdempotencyConflict,
    "stale_generation": StaleGeneration,
    "not_assigned": NotAssigned,
    "offset_moves_back": OffsetMovesBack,
    "already_begun": AlreadyBegun,
    "group_has_members": Conflict,
    "group_is_popped": Conflict,
    "handle_expired": Conflict,
    "too_many_held": Overloaded,
    "too_many_transactions": Overloaded,
    "too_many_timers": Overloaded,
    "producer_group_mismatch": Conflict,
    "subscription_mismatch": Conflict,
    "topic_exists_with_more_queues": Conflict,
    "node_not_found": NotFound,
    "backup_not_found": NotFound,
    "node_exists": Conflict,
    "too_many_nodes": Conflict,
    "user_not_found": NotFound,
    "user_changed": Conflict,
    "certificate_taken": Conflict,
    "peer_secret_not_text": Conflict,
    "too_many_tokens": Conflict,
    "user_name_taken": Conflict,
    "too_many_users": Conflict,
    "too_many_topics": Conflict,
    "too_many_groups": Conflict,
    "too_many_members": Conflict,
    "too_many_check_urls": Conflict,
    "address_unreachable": Conflict,
    "no_peer_address": Conflict,
    "change_in_progress": Conflict,
    "feature_not_enabled": Conflict,
    "feature_level_not_known": Conflict,
    "feature_level_in_force": Conflict,
    "not_caught_up": Conflict,
    "node_drained": Conflict,
    "last_voter": Conflict,
    "quorum_at_risk": Conflict,
    "request_timeout": UnknownOutcome,
    "overloaded": Overloaded,
    "quota_exceeded": QuotaExceeded,
    "no_leader": NoLeader,
    "clock_in_doubt": Unavailable,
    "signing_key_awaited": Unavailable,
    "not_ready": NoLeader,
    "unknown_outcome": UnknownOutcome,
    "disk_full": DiskFull,
    "not_found": NotFound,
    "method_not_allowed": InvalidRequest,
    "unsupported_media_type": InvalidRequest,
    "cross_origin": InvalidRequest,
    "wrong_listener": InvalidRequest,
    "unknown_host": InvalidRequest,
    "message_damaged": BrokerFault,
    "internal": BrokerFault,
}

_PROBLEM_MEMBERS = frozenset({"type", "title", "status", "code", "detail"})


def error_from_problem(status: int, problem: Mapping[str, object]) -> KeelMQError:
    """Return the error for a response with `status` and a decoded problem+json body, which may be empty or foreign."""
    code = str(problem.get("code") or f"http_{status}")
    detail = str(problem.get("detail") or problem.get("title") or f"the broker answered HTTP {status}")
    extra = {name: value for name, value in problem.items() if name not in _PROBLEM_MEMBERS}
    cls = ERRORS_BY_CODE.get(code) or _class_for_status(status)
    return cls(code, detail, status=status, extra=extra)


def _class_for_status(status: int) -> type[KeelMQError]:
    if status == 404:
        return NotFound
    if status == 409:
        return Conflict
    if status == 429:
        return Overloaded
    if 400 <= status < 500:
        return InvalidRequest
    # A proxy's 502/504 or an unknown 5xx: the request may have reached the broker.
    return UnknownOutcome
