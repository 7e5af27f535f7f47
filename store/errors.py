"""The store's exceptions: refusals of a command, and errors that make the node stop.

    Refused         A command cannot be carried out. Apply refuses it deterministically, alike on every replica, and
                    changes nothing. Refused is a *result* of apply, not a failure: the client is answered with `code`.
    IndexOutdated   An earlier version wrote the index; the index must be rebuilt from the log.
    IndexDamaged    The RocksDB index cannot be opened, or a later version wrote it: the node stops.
    IndexUnreadable Rows of the index are damaged, or the disk failed: the node stops. A query that lacks a file
                    descriptor fails alone.

Any other exception raised while applying is a bug and stops the node: a replica that skipped an entry would differ from
the others for ever.
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
"""Refuses commands that only the broker's own services propose; no client is answered with this code."""
USER_NOT_FOUND: Final = "user_not_found"
USER_CHANGED: Final = "user_changed"
CERTIFICATE_TAKEN: Final = "certificate_taken"
INVALID_REQUEST: Final = "invalid_request"


class Refused(Exception):
    """A command that changed nothing. `code` is stable, `detail` says what is wrong, `extra` goes into the problem
    document. The answer to a client also says what to do (cluster/problems.py).

    All three are part of the state hash when an entry is applied, and nodes of different versions compare it: the text
    of a refusal never changes, as tests/versions/golden/refusals.txt has it.
    """

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
    """The index cannot be opened or has an unknown format.

    The remedy depends on the log. A log that reaches back to its beginning rebuilds the index. For records removed
    before the log's base, the index alone holds their effects, so the whole node has to start anew.
    """


class IndexUnreadable(Exception):
    """Rows of the index cannot be read: a block is damaged, the disk failed, or a file descriptor was missing.

    Nobody goes on with what could be read: an entry applied without these rows would make this replica differ. In apply
    any of the three stops the node; for a query that lacks a descriptor, the next one may succeed.
    """

    def __init__(self, path: str, reason: str, *, lacks_descriptor: bool) -> None:
        super().__init__(f"the index {path} cannot be read: {reason}")
        self.lacks_descriptor = lacks_descriptor


class IndexOutdated(Exception):
    """An earlier version wrote the index, which lacks data that this version needs. A complete log can rebuild it."""
