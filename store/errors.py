"""What the store refuses, and what makes it stop.

    Refused         a command that cannot be carried out: deterministic, the same on every replica, changed nothing.
                    It is a *result* of apply, not a failure: the client is answered with `code`.
    IndexOutdated   an earlier version wrote the index, and it has to be made anew from the log.
    IndexDamaged    the RocksDB index cannot be opened or was written by a later version: the node stops.

Everything else that is raised while applying is a bug and stops the node: a replica that skipped an entry would
differ from the others for ever.
"""

from collections.abc import Mapping
from typing import Any, Final

# Codes of docs/http-api.md that the state machine can answer with.
TOPIC_NOT_FOUND: Final = "topic_not_found"
QUEUE_NOT_FOUND: Final = "queue_not_found"
GROUP_NOT_FOUND: Final = "group_not_found"
MEMBER_NOT_FOUND: Final = "member_not_found"
TRANSACTION_NOT_FOUND: Final = "transaction_not_found"
SYSTEM_TOPIC: Final = "system_topic"
TOPIC_TYPE_MISMATCH: Final = "topic_type_mismatch"
TOPIC_EXISTS_WITH_MORE_QUEUES: Final = "topic_exists_with_more_queues"
IDEMPOTENCY_CONFLICT: Final = "idempotency_conflict"
TRANSACTION_CONFLICT: Final = "transaction_conflict"
TRANSACTIONS_REJECTED: Final = "transactions_rejected"
PRODUCER_GROUP_MISMATCH: Final = "producer_group_mismatch"
STALE_GENERATION: Final = "stale_generation"
NOT_ASSIGNED: Final = "not_assigned"
OFFSET_MOVES_BACK: Final = "offset_moves_back"
OFFSET_OUT_OF_RANGE: Final = "offset_out_of_range"
GROUP_HAS_MEMBERS: Final = "group_has_members"
GROUP_IS_POPPED: Final = "group_is_popped"
HANDLE_EXPIRED: Final = "handle_expired"
TOO_MANY_HELD: Final = "too_many_held"
SUBSCRIPTION_MISMATCH: Final = "subscription_mismatch"
NOT_SCHEDULED: Final = "not_scheduled"
CLOCK_IN_DOUBT: Final = "clock_in_doubt"
"""Of what only the broker's own services propose: no client is answered with it."""
INVALID_REQUEST: Final = "invalid_request"


class Refused(Exception):
    """A command that changed nothing. `code` is stable, `detail` says what to do, `extra` goes into the problem."""

    def __init__(self, code: str, detail: str, extra: Mapping[str, Any] | None = None) -> None:
        super().__init__(code, detail)
        self.code = code
        self.detail = detail
        self.extra: dict[str, Any] = dict(extra) if extra else {}

    def __repr__(self) -> str:
        return f"Refused({self.code!r}, {self.detail!r}, {self.extra!r})"

    def __str__(self) -> str:
        return f"{self.code}: {self.detail}"


class IndexDamaged(Exception):
    """The index cannot be opened or has another format.

    What makes up for it depends on the log: one that goes back to its beginning makes the index anew. Of what was
    removed before a base the index alone holds the effects, so the node has to begin anew as a whole.
    """


class IndexOutdated(Exception):
    """The index is of an earlier version, which lacks what this one needs. It can be made anew from a complete log."""
