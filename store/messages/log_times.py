"""When the log reached each range of its positions, by the replicated clock.

From it follows how old a message must be to lie before the last so many bytes of the log: limits in bytes of the log
become limits in time, the same on every replica.
"""

from bisect import bisect_right

from store.index import keys
from store.index.index import Index
from store.limits import LOG_TIMES_FORGOTTEN_MAX


class LogTimes:
    """One time per range, in memory and written through to the index, from feature level 2 on."""

    def __init__(self, index: Index, range_bytes: int) -> None:
        self._index = index
        self._range_bytes = range_bytes
        self._numbers: list[int] = []
        self._times_ms: list[int] = []
        for key, value in index.scan(keys.LOG_TIMES, keys.after(keys.LOG_TIMES)):
            self._numbers.append(keys.read_u64(key[2:]))
            self._times_ms.append(keys.read_u64(value))

    def note(self, position: int, clock_ms: int) -> None:
        """Note that an entry begins at `position`; `clock_ms` is the replicated clock before it."""
        number = position // self._range_bytes
        if not self._numbers or number > self._numbers[-1]:
            self._numbers.append(number)
            self._times_ms.append(clock_ms)
            self._index.put(keys.log_time(number), keys.u64(clock_ms))

    def stored_before_ms(self, position: int) -> int | None:
        """Return a time before which all messages were stored by entries before `position`, the latest that is known;
        None when none is. What is stored later, or at that time, may lie behind.
        """
        place = bisect_right(self._numbers, position // self._range_bytes) - 1
        return self._times_ms[place] if place >= 0 and position >= 0 else None

    def forget_before(self, position: int) -> None:
        """Forget ranges that end before `position`, apart from the last of them: nothing is stored there any more."""
        count = min(bisect_right(self._numbers, position // self._range_bytes) - 1, LOG_TIMES_FORGOTTEN_MAX)
        if count > 0:
            self._index.delete_all([keys.log_time(number) for number in self._numbers[:count]])
            del self._numbers[:count], self._times_ms[:count]
