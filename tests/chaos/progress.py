"""Tracks the messages that a consumer group processed, and checks that no commit goes beyond them."""

from tests.chaos.reads import TopicQueue
from tests.chaos.violations import Kind, Violations


class _Queue:
    __slots__ = ("committed", "done", "prefix")

    def __init__(self) -> None:
        self.done = bytearray()  # 1 by offset: a handler finished it
        self.prefix = 0  # every offset below is done
        self.committed = 0  # the highest offset that any node reported


class GroupProgress:
    """Collects finished messages from handlers and committed offsets from nodes. No commit may pass the processed
    prefix.
    """

    def __init__(self, group: str, violations: Violations) -> None:
        self.group = group
        self.processed = 0
        self.redelivered = 0
        self._violations = violations
        self._queues: dict[TopicQueue, _Queue] = {}

    def finished(self, place: TopicQueue, offset: int) -> None:
        """Note that a handler has finished the message. Call this before the consumer can know, and commit."""
        queue = self._queues.setdefault(place, _Queue())
        done = queue.done
        if offset >= len(done):
            done.extend(bytes(offset + 1 - len(done)))
        if done[offset]:
            self.redelivered += 1
            return
        done[offset] = 1
        self.processed += 1
        if offset == queue.prefix:
            following = done.find(0, offset)
            queue.prefix = len(done) if following < 0 else following

    def committed(self, place: TopicQueue, offset: int) -> None:
        """Note that a node reports `offset` as the group's next one. A node that lags may report an older one."""
        queue = self._queues.setdefault(place, _Queue())
        queue.committed = max(queue.committed, offset)
        if offset > queue.prefix:
            self._violations.add(
                Kind.GROUP_SKIP,
                f"group {self.group}, {place[0]}/{place[1]}: {offset} is committed, offset {queue.prefix} was never "
                "processed",
            )

    def drained(self, place: TopicQueue, end: int) -> bool:
        """Return whether every message before `end` is processed and committed."""
        queue = self._queues.get(place)
        return end == 0 or (queue is not None and queue.prefix >= end and queue.committed >= end)

    def position(self, place: TopicQueue) -> tuple[int, int]:
        """Return the processed prefix and the committed offset."""
        queue = self._queues.get(place)
        return (queue.prefix, queue.committed) if queue is not None else (0, 0)
