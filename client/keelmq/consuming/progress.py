"""Progress of a queue: only the end of the finished prefix may be committed."""

from collections import deque
from collections.abc import Sequence


class QueueProgress:
    """Tracks the messages of one queue between being fetched and being committed.

    Messages are added and finished in portions, because a consumer pays for each message's part of a call.

    Invariants: `position` never decreases and never passes an unfinished message; `count` and `bytes` cover all
    messages from `position` on, finished or not, so a message that cannot be finished bounds how much is fetched.
    """

    def __init__(self, position: int) -> None:
        self.position = position
        self._end = position
        self.bytes = 0
        self._offsets: deque[int] = deque()
        self._sizes: deque[int] = deque()
        self._finished: set[int] = set()
        """Offsets that are finished behind an unfinished one."""

    @property
    def count(self) -> int:
        return len(self._offsets)

    def add(self, offsets: Sequence[int], sizes: Sequence[int]) -> None:
        """Add fetched messages with their sizes in bytes; offsets ascend, over all calls."""
        self._offsets.extend(offsets)
        self._sizes.extend(sizes)
        self.bytes += sum(sizes)

    def reach(self, end: int) -> bool:
        """Record that everything before `end` was fetched; return True when `position` moved.

        Offsets before `end` that were not added have no message to process: it was filtered out, or has expired."""
        self._end = end
        return self._move()

    def finish(self, offsets: Sequence[int]) -> bool:
        """Mark added messages as processed, each once; return True when `position` moved."""
        held, sizes, finished = self._offsets, self._sizes, self._finished
        finished.update(offsets)
        last = None
        while held and held[0] in finished:
            last = held.popleft()
            finished.discard(last)
            self.bytes -= sizes.popleft()
        assert len(finished) < len(held) or not finished, "only messages that were added are finished"
        if last is not None:
            self._end = max(self._end, last + 1)
        return self._move()

    def _move(self) -> bool:
        before = self.position
        self.position = max(before, self._offsets[0] if self._offsets else self._end)
        return self.position > before
