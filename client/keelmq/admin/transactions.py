"""Answers about transactions."""

from keelmq.admin.view import View


class HalfMessages(View, frozen=True, kw_only=True):
    """One batch of half messages. `position` is the position of its record in the commit log, in bytes."""

    topic: str
    queue: int
    count: int
    batch_id: str
    position: int


class CommittedBatch(View, frozen=True, kw_only=True):
    """Place of a committed batch of `count` messages. A delayed batch has no `offset` until it is visible."""

    topic: str
    queue: int
    offset: int | None = None
    deliver_at_ms: int | None = None
    count: int


class TimelineEvent(View, frozen=True, kw_only=True):
    """One event of a transaction, and the log entry `raft_index` that caused it.

    `event` is `prepared`, `check`, `answer`, `committed`, `rolled_back`, `discarded` or `resumed`. A field that does
    not apply to this kind is None or False.
    """

    at_ms: int
    event: str
    raft_index: int
    client_id: str | None = None
    via: str | None = None
    answer: str | None = None
    source: str | None = None
    operator: str | None = None
    reason: str | None = None
    forced: bool = False
    principal: str | None = None


class TransactionInfo(View, frozen=True, kw_only=True):
    """A transaction in a list. `state` is `prepared`, `committed`, `rolled_back` or `discarded`.

    `decided_at_ms` is None until the transaction is decided, `next_check_at_ms` when no check is due any more.
    """

    transaction_id: str
    state: str
    producer_group: str
    client_id: str = ""
    prepared_at_ms: int
    decided_at_ms: int | None = None
    check_times: int
    next_check_at_ms: int | None = None
    messages: tuple[HalfMessages, ...]
    positions: tuple[CommittedBatch, ...] = ()


class TransactionDetail(TransactionInfo, frozen=True, kw_only=True):
    """A transaction with its timeline, oldest event first."""

    timeline: tuple[TimelineEvent, ...]


class TransactionPage(View, frozen=True, kw_only=True):
    """One page of transactions, from the oldest on. `next` is the cursor of the following page, or None."""

    transactions: tuple[TransactionInfo, ...]
    next: str | None = None


class DecidedTransaction(View, frozen=True, kw_only=True):
    """The state of a transaction after a decision; `positions` are the places of its batches once it is committed."""

    transaction_id: str
    state: str
    positions: tuple[CommittedBatch, ...] = ()


class ResumedTransaction(View, frozen=True, kw_only=True):
    """The state of a transaction whose checks begin anew, and the time of the next check."""

    transaction_id: str
    state: str
    next_check_at_ms: int
