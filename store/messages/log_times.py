"""Tells when the log reached each range of its positions, by the replicated clock.

From it follows how old a message must be to lie before the last so many bytes of the log: limits in bytes of the log
become limits in time, the same on every replica.
"""

from bisect import bisect_right

from store.index import keys, retention_keys
from store.index.index import Index
from store.limits import LOG_TIMES_FORGOTTEN_MAX


class LogTimes:
    """One time per range, in memory and written through to the index, from feature level 2 on."""

    def __init__(self, index: Index, range_bytes: int) -> None:
        self._index = index
        self._range_bytes = range_bytes
        self._positions: list[int] = []
        self._times_ms: list[int] = []
        for key, value in index.scan(retention_keys.LOG_TIMES, keys.after(retention_keys.LOG_TIMES)):
            self._positions.append(keys.read_u64(key[2:]))
            self._times_ms.append(keys.read_u64(value))

    def note(self, position: int, before_ms: int, clock_ms: int) -> None:
        """Note that the entry at `position` moves the replicated clock from `before_ms` to `clock_ms`.

        What is kept is the first entry in a range that moves the clock on: what is stored at a time is before it or
        behind it, and not both.
        """
        number = position // self._range_bytes
        if clock_ms > before_ms and (not self._positions or number > self._positions[-1] // self._range_bytes):
            self._positions.append(position)
            self._times_ms.append(before_ms)
            self._index.put(retention_keys.log_time(position), keys.u64(before_ms))

    def stored_until_ms(self, position: int) -> int | None:
        """Return a time until which all messages were stored by entries before `position`, the latest that is known;
        None when none is.
        """
        place = bisect_right(self._positions, position) - 1
        return self._times_ms[place] if place >= 0 else None

    def forget_before(self, position: int) -> None:
        """Forget the notes before `position`, except the last one: nothing is stored there any more."""
        count = min(bisect_right(self._positions, position) - 1, LOG_TIMES_FORGOTTEN_MAX)
        if count > 0:
            self._index.delete_all([retention_keys.log_time(each) for each in self._positions[:count]])
            del self._positions[:count], self._times_ms[:count]
