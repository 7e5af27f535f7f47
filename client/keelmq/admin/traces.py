"""The history of a message."""

from keelmq.admin.view import View


class TraceEvent(View, frozen=True, kw_only=True):
    """One event of a message, and the log entry (`term`, `raft_index`) that caused it.

    `event` is the kind of the event, such as `produced`, `consumed` or `dead_lettered` (docs/http-api.md lists all). A
    field that does not apply to this kind is None or False.
    """

    at_ms: int
    event: str
    term: int
    raft_index: int
    topic: str | None = None
    queue: int | None = None
    offset: int | None = None
    transaction_id: str | None = None
    due_at_ms: int | None = None
    group: str | None = None
    member_id: str | None = None
    client_id: str | None = None
    committed_offset: int | None = None
    first_commit: bool = False
    attempt: int | None = None
    reason: str | None = None
    via: str | None = None
    answer: str | None = None
    source: str | None = None
    operator: str | None = None
    forced: bool = False
    principal: str | None = None


class MessageTrace(View, frozen=True, kw_only=True):
    """The history of one message, oldest event first. `offset` is None while the message is not visible."""

    topic: str
    queue: int
    offset: int | None = None
    batch_id: str
    state: str
    events: tuple[TraceEvent, ...]
