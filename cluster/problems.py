"""Errors as HTTP responses: one table maps each stable code to its status, its title and whether a retry may help.

A handler raises `Problem` (or `Refused`, or one of raft's errors). Only `problem_of` translates errors, and only
`Problem.response` renders `application/problem+json`. docs/http-api.md lists the same codes; a test compares the two.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec
from aiohttp import web

from cluster.filters.errors import InvalidFilter
from raft import errors as raft_errors
from store.errors import Refused

PROBLEM_JSON: Final = "application/problem+json"
RETRY_AFTER_S: Final = 1
CODE: Final = web.ResponseKey("code", str)
"""Key of a response under which its problem's code is kept, for those who count."""
RETRY_AFTER_MS: Final = "retry_after_ms"
"""Further member of a problem that knows when to send the request again."""


class ProblemKind(NamedTuple):
    """One row of the error table."""

    status: int
    title: str
    retry: bool = False
    """True when the same request may succeed later, unchanged."""


KINDS: Final[Mapping[str, ProblemKind]] = {
    "invalid_request": ProblemKind(400, "The request is not valid"),
    "invalid_topic": ProblemKind(400, "The topic name is not valid"),
    "invalid_group": ProblemKind(400, "The group name is not valid"),
    "invalid_filter": ProblemKind(400, "The filter is not an expression"),
    "checksum_mismatch": ProblemKind(400, "The block was damaged on its way", retry=True),
    "invalid_compression": ProblemKind(400, "A block does not unpack to its declared content"),
    "empty_body": ProblemKind(400, "A message has an empty body"),
    "too_many_properties": ProblemKind(400, "A message has too many properties"),
    "unauthenticated": ProblemKind(401, "The request does not show who sends it"),
    "forbidden": ProblemKind(403, "The permissions do not allow this"),
    "system_topic": ProblemKind(403, "System topics cannot be written"),
    "topic_type_mismatch": ProblemKind(403, "The topic is of another type"),
    "check_url_not_allowed": ProblemKind(403, "Checks may not be sent to this URL"),
    "transactions_rejected": ProblemKind(403, "The cluster takes no new transactions"),
    "cross_origin": ProblemKind(403, "A web page of another site sent the request"),
    "not_found": ProblemKind(404, "There is nothing at this path"),
    "topic_not_found": ProblemKind(404, "The topic does not exist"),
    "queue_not_found": ProblemKind(404, "The queue does not exist"),
    "group_not_found": ProblemKind(404, "The group does not exist"),
    "user_not_found": ProblemKind(404, "The user does not exist"),
    "member_not_found": ProblemKind(404, "The member is not in the group"),
    "transaction_not_found": ProblemKind(404, "The transaction does not exist"),
    "message_not_found": ProblemKind(404, "No message has this id"),
    "backup_not_found": ProblemKind(404, "The backup is not under way"),
    "not_scheduled": ProblemKind(404, "The message is not scheduled"),
    "method_not_allowed": ProblemKind(405, "The path does not support this method"),
    "request_timeout": ProblemKind(408, "The request was not sent in time", retry=True),
    "transaction_conflict": ProblemKind(409, "The transaction was decided otherwise"),
    "producer_group_mismatch": ProblemKind(409, "The transaction belongs to another producer group"),
    "idempotency_conflict": ProblemKind(409, "The id was used for other content"),
    "stale_generation": ProblemKind(409, "The group has moved to another generation"),
    "not_assigned": ProblemKind(409, "The queue is not assigned to this member"),
    "offset_moves_back": ProblemKind(409, "The offset is behind the committed one"),
    "already_begun": ProblemKind(409, "The group has an offset in the queue already"),
    "group_has_members": ProblemKind(409, "The group has members"),
    "group_is_popped": ProblemKind(409, "Pop consumers of the group hold messages"),
    "handle_expired": ProblemKind(409, "The consumer no longer holds the message"),
    "subscription_mismatch": ProblemKind(409, "The group's members have another subscription"),
    "user_changed": ProblemKind(409, "The user was changed at the same time"),
    "peer_secret_not_text": ProblemKind(409, "The peer secret is not text that an answer can hold"),
    "certificate_taken": ProblemKind(409, "The certificate name belongs to another user"),
    "too_many_tokens": ProblemKind(409, "The user has as many tokens as it may have"),
    "user_name_taken": ProblemKind(409, "A user's name differs from this one only in case"),
    "too_many_users": ProblemKind(409, "The cluster has as many users as it may have"),
    "too_many_topics": ProblemKind(409, "The cluster has as many topics as it may have"),
    "too_many_groups": ProblemKind(409, "The cluster has as many groups as it may have"),
    "too_many_members": ProblemKind(409, "The group has as many members as it may have"),
    "too_many_check_urls": ProblemKind(409, "As many producer groups have a check URL as may have one"),
    "topic_exists_with_more_queues": ProblemKind(409, "The topic has more queues"),
    "node_not_found": ProblemKind(404, "The node is not in the cluster"),
    "node_exists": ProblemKind(409, "The node, or its address, is in the cluster already"),
    "too_many_nodes": ProblemKind(409, "The cluster has as many nodes as it can have"),
    "address_unreachable": ProblemKind(409, "The node does not answer at that address"),
    "no_peer_address": ProblemKind(409, "The node serves no peers"),
    "change_in_progress": ProblemKind(409, "The cluster is not done with the last change of its nodes"),
    "not_caught_up": ProblemKind(409, "The node has not caught up"),
    "node_drained": ProblemKind(409, "The node is drained"),
    "last_voter": ProblemKind(409, "The last voter cannot be removed"),
    "feature_not_enabled": ProblemKind(409, "The cluster's feature level is too low"),
    "feature_level_not_known": ProblemKind(409, "Not every node knows the feature level"),
    "feature_level_in_force": ProblemKind(409, "The cluster is past that feature level"),
    "quorum_at_risk": ProblemKind(409, "The nodes that would remain are not a majority"),
    "log_range_removed": ProblemKind(410, "The log no longer holds this range"),
    "message_too_large": ProblemKind(413, "A message is too large"),
    "batch_too_large": ProblemKind(413, "A batch is too large"),
    "request_too_large": ProblemKind(413, "The request is too large"),
    "unsupported_media_type": ProblemKind(415, "The content type is missing or not supported"),
    "offset_out_of_range": ProblemKind(416, "The offset is beyond the end of the queue"),
    "wrong_listener": ProblemKind(421, "Another listener of this node serves the path"),
    "unknown_host": ProblemKind(421, "The Host is not a name of this node"),
    "overloaded": ProblemKind(429, "Too many bytes are in flight", retry=True),
    "quota_exceeded": ProblemKind(429, "The principal has used its quota", retry=True),
    "too_many_held": ProblemKind(429, "Too many messages are handed out", retry=True),
    "too_many_transactions": ProblemKind(429, "Too many transactions are undecided", retry=True),
    "too_many_timers": ProblemKind(429, "Too many messages wait for their time", retry=True),
    "message_damaged": ProblemKind(500, "A message was damaged before it was stored"),
    "internal": ProblemKind(500, "The broker has a bug"),
    "no_leader": ProblemKind(503, "The cluster has no leader at the moment", retry=True),
    "unknown_outcome": ProblemKind(503, "The write may or may not have happened", retry=True),
    "clock_in_doubt": ProblemKind(503, "The nodes' clocks do not agree on the time", retry=True),
    "signing_key_awaited": ProblemKind(503, "The issuer's keys are being fetched", retry=True),
    "not_ready": ProblemKind(503, "The node does not serve yet", retry=True),
    "disk_full": ProblemKind(507, "There is no room on the disks of a majority", retry=True),
}


NEXT_STEPS: Final[Mapping[str, str]] = {
    "topic_type_mismatch": "choose a topic of another type",
    "transaction_not_found": "`keelmq transaction list` lists the transactions that exist",
    "transaction_conflict": "`keelmq transaction show` tells how it was decided",
    "producer_group_mismatch": "send the request for that group",
    "transactions_rejected": "`keelmq cluster settings --accept-transactions` switches them on again",
    "not_assigned": "ask for the assignment, and go on with its queues alone",
    "offset_out_of_range": "choose an offset that the queue has",
    "handle_expired": "end its handling",
    "certificate_taken": "take it from that user first, or give another name",
}
"""Next step by code, for refusals whose own text does not name it. Apply cannot: the text of a refusal is part of the
state hash, so each version has to give the same one (store/errors.py)."""


class Problem(Exception):
    """The error that answers a request. `extra` holds further members of the problem document."""

    def __init__(self, code: str, detail: str, extra: Mapping[str, Any] | None = None) -> None:
        super().__init__(code, detail)
        self.code = code
        self.detail = detail
        self.extra = dict(extra) if extra else {}

    @property
    def kind(self) -> ProblemKind:
        return KINDS[self.code]

    def document(self) -> dict[str, Any]:
        return {
            **self.extra,
            "type": "about:blank",
            "title": self.kind.title,
            "status": self.kind.status,
            "code": self.code,
            "detail": self.detail,
        }

    def response(self) -> web.Response:
        headers = {}
        if self.kind.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        elif self.kind.retry and self.kind.status in (429, 503, 507):
            after_ms = self.extra.get(RETRY_AFTER_MS)
            headers["Retry-After"] = str(RETRY_AFTER_S if after_ms is None else max(-(-after_ms // 1000), 1))
        response = web.Response(
            status=self.kind.status,
            body=msgspec.json.encode(self.document()),
            content_type=PROBLEM_JSON,
            headers=headers,
        )
        response[CODE] = self.code
        return response


def problem_of(error: Exception) -> Problem | None:
    """Return the problem for a known error; None for NotLeader, which is a redirect, and for unexpected errors."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, Refused):
        step = NEXT_STEPS.get(error.code)
        return Problem(error.code, error.detail if step is None else f"{error.detail}; {step}", error.extra)
    if isinstance(error, InvalidFilter):
        return Problem("invalid_filter", error.detail, {"position": error.position})
    if isinstance(error, raft_errors.MembershipRefused):
        return Problem(error.code, str(error))
    if isinstance(error, raft_errors.FeatureNotEnabled):
        return Problem("feature_not_enabled", str(error))
    if isinstance(error, raft_errors.Overloaded):
        return Problem("overloaded", f"{error}; send again after Retry-After seconds, with the same ids")
    if isinstance(error, raft_errors.NoRoom):
        return Problem("disk_full", str(error))
    if isinstance(error, raft_errors.ProposalTooLarge):
        return Problem("request_too_large", f"{error}; send it in parts")
    if isinstance(error, raft_errors.UnknownOutcome):
        return Problem("unknown_outcome", f"{error}; send again with the same ids: it is then done once")
    if isinstance(error, raft_errors.NoLeader | raft_errors.NodeStopped):
        return Problem("no_leader", f"{error}; send again after Retry-After seconds")
    return None
