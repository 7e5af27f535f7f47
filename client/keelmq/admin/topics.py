"""Answers about topics."""

from keelmq.admin.view import View


class QueueInfo(View, frozen=True, kw_only=True):
    """The offsets of one queue: messages are stored from `min_offset` (inclusive) to `max_offset` (exclusive).

    The times at which the first and the last of them were stored are known to `Admin.topic` alone; they are None
    elsewhere, and for a queue that has no such message.
    """

    queue: int
    min_offset: int
    max_offset: int
    first_stored_at_ms: int | None = None
    last_stored_at_ms: int | None = None


class TopicInfo(View, frozen=True, kw_only=True):
    """A topic with its settings and the offsets of its queues.

    `type` is `normal`, `fifo`, `delay`, `transaction` or `any`; `retention_ms` is -1 when messages are kept for ever.
    """

    topic: str
    queues: int
    type: str
    retention_ms: int
    system: bool = False
    created_at_ms: int = 0
    queue_offsets: tuple[QueueInfo, ...] = ()
