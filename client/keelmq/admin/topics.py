"""Answers about topics."""

from keelmq.admin.view import View


class QueueInfo(View, frozen=True, kw_only=True):
    """The offsets of one queue: messages are stored from `min_offset` (inclusive) to `max_offset` (exclusive).

    `bytes` is the size of their blocks; None while a broker of an older feature level does not count them.

    The times at which the first and the last of them were stored are known to `Admin.topic` alone; they are None
    elsewhere, and for a queue that has no such message.
    """

    queue: int
    min_offset: int
    max_offset: int
    bytes: int | None = None
    first_stored_at_ms: int | None = None
    last_stored_at_ms: int | None = None


class TopicInfo(View, frozen=True, kw_only=True):
    """A topic with its settings and the offsets of its queues.

    `type` is `normal`, `fifo`, `delay`, `transaction` or `any`; `retention_ms` is -1 when messages are kept for ever,
    `retention_bytes` when they are kept whatever their size.
    """

    topic: str
    queues: int
    type: str
    retention_ms: int
    system: bool = False
    created_at_ms: int = 0
    queue_offsets: tuple[QueueInfo, ...] = ()
    retention_bytes: int = -1
    bytes: int | None = None


class PurgedQueue(View, frozen=True, kw_only=True):
    """A queue that had `messages`; it goes on at `min_offset`."""

    queue: int
    min_offset: int
    messages: int


class PurgedTopic(View, frozen=True, kw_only=True):
    """The number of messages that a purge removed, and the queues that had any."""

    topic: str
    messages: int
    queues: tuple[PurgedQueue, ...] = ()
