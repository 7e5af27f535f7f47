"""The history of a message, and what it caused."""

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
    """The history of one message, oldest event first. `offset` is None while the message is not visible.

    `groups_left_out` is true when the caller may not describe all consumer groups: what others did with the message was
    left out, whether they did anything or not. Brokers before 0.3 leave nothing out.
    """

    topic: str
    queue: int
    offset: int | None = None
    batch_id: str
    state: str
    groups_left_out: bool = False
    events: tuple[TraceEvent, ...]


class CausedMessage(View, frozen=True, kw_only=True):
    """A message that was sent while a handler processed another one. `offset` is None while it is not visible.

    `state` is that of a found message, or `removed` when only the log knows it any more. `at_ms` and `raft_index` are
    of the log entry that holds it. `names_topic` is false when it names only the id of the cause, which a message of
    another topic may have, too. `producer_group` is the group whose handler sent it, if it says so.
    """

    message_id: str
    topic: str
    queue: int
    offset: int | None = None
    state: str
    at_ms: int
    raft_index: int
    names_topic: bool
    producer_group: str | None = None
    transaction_id: str | None = None
    deliver_at_ms: int | None = None


class CausedPage(View, frozen=True, kw_only=True):
    """Messages that a message caused, as far as a part of the log holds them.

    The node looked through `looked_bytes` from the entry `from_index` on; `left_bytes` are left up to `applied_index`,
    the last entry that it has applied. `topics_left_out` is true when the caller may not read all topics: others were
    left out, whether they hold such messages or not. `log_removed` is true when the node no longer has entries behind
    the cause. `next` is the cursor of the following page, or None.
    """

    messages: tuple[CausedMessage, ...]
    topics_left_out: bool
    from_index: int
    applied_index: int
    looked_bytes: int
    left_bytes: int
    log_removed: bool
    next: str | None = None
