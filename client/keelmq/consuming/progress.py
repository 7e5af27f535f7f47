"""Progress of a queue: only the end of the finished prefix may be committed."""

from collections import deque


class _Held:
    __slots__ = ("finished", "offset", "size")

    def __init__(self, offset: int, size: int) -> None:
        self.offset = offset
        self.size = size
        self.finished = False


class QueueProgress:
    """Tracks the messages of one queue between being fetched and being committed.

    Invariants: `position` never decreases and never passes an unfinished message; `count` and `bytes` cover all
    messages from `position` on, finished or not, so a message that cannot be finished bounds how much is fetched.
    """

    def __init__(self, position: int) -> None:
        self.position = position
        self._end = position
        self.bytes = 0
        self._held: deque[_Held] = deque()
        self._by_offset: dict[int, _Held] = {}

    @property
    def count(self) -> int:
        return len(self._held)

    def add(self, offset: int, size: int) -> None:
        """Add a fetched message; offsets ascend."""
        held = _Held(offset, size)
        self._held.append(held)
        self._by_offset[offset] = held
        self.bytes += size

    def reach(self, end: int) -> bool:
        """Record that everything before `end` was fetched; return True when `position` moved.

        Offsets before `end` that were not added have no message to process: it was filtered out, or has expired."""
        self._end = end
        return self._move()

    def finish(self, offset: int) -> bool:
        """Mark a message as processed; return True when `position` moved."""
        self._by_offset.pop(offset).finished = True
        while self._held and self._held[0].finished:
            first = self._held.popleft()
            self.bytes -= first.size
            self._end = max(self._end, first.offset + 1)
        return self._move()

    def _move(self) -> bool:
        before = self.position
        self.position = max(before, self._held[0].offset if self._held else self._end)
        return self.position > before
