"""File descriptors that are held in reserve, so that the log can open its next files when the process has none left."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
from typing import Final

NO_DESCRIPTOR: Final = (errno.EMFILE, errno.ENFILE)
"""Errors that say that the process, or the system, has as many open files as it may have."""
SPARES: Final = 32
"""Number of descriptors held for the log: a new segment takes four while it is made and two while it is written."""
KEPT_FREE: Final = 16
"""Number of descriptors that are kept free beside them, for what opens its files itself: RocksDB, and peers that
connect."""
_SPARES_MIN: Final = 8


def count_free(enough: int) -> int:
    """Return the number of files that this process can still open by its own limit, up to `enough`. Opens none of them
    to find out: threads of RocksDB may be about to. Costs 1 µs for each while the highest numbers are free, and some ms
    for 10,000 that are not.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return enough
    unused, number = 0, limit
    while number and unused < enough:
        number -= 1
        try:
            fcntl.fcntl(number, fcntl.F_GETFD)
        except OSError:
            unused += 1
    return unused


def are_free(count: int) -> bool:
    """Return whether this process can open `count` files, without any spare descriptor: first by its own limit, without
    opening any, and then whether the system has as many to give. Costs 2 µs for each.
    """
    if count_free(count) < count:
        return False
    held: list[int] = []
    try:
        while len(held) < count:
            held.append(_take())
    except OSError as error:
        if error.errno not in NO_DESCRIPTOR:
            raise
    finally:
        for each in held:
            os.close(each)
    return len(held) == count


def _take() -> int:
    return os.open("/", os.O_PATH | os.O_CLOEXEC)


class SpareDescriptors:
    """Open files without content, one of which is closed when the store opens a file and no descriptor is left.

    They take places in the table of the process and in that of the system. Not safe for use from several threads.
    """

    def __init__(self, wanted: int = 0) -> None:
        """Hold `wanted` descriptors, as many as there are."""
        self._wanted = wanted
        self._held: list[int] = []
        self._fill(wanted)

    def lend(self) -> bool:
        """Close one, so that a file can be opened in its place. Return False when none is held."""
        if not self._held:
            return False
        self._release(1)
        return True

    def take_back(self) -> None:
        """Hold one more again, because a file that was opened in its place is closed."""
        self._fill(min(len(self._held) + 1, self._wanted))

    def has(self, count: int) -> bool:
        """Return whether the store can open `count` more files."""
        self._drop_unusable()
        self._fill(count)
        found = len(self._held) >= count
        while len(self._held) > self._wanted:
            os.close(self._held.pop())
        return found

    def renew(self, free: int = KEPT_FREE) -> int:
        """Hold what was lent again, and leave `free` descriptors free. Return how many are missing for that; what there
        is, is shared then. Takes one of the free ones for a moment, to ask the system, and never all of them.
        """
        self._drop_unusable()
        needed = self._wanted + free
        there = len(self._held)
        if are_free(1):  # otherwise the system may have none to give
            there += count_free(needed - there)
        kept = min(self._wanted, max(there - free, min(there, _SPARES_MIN)))
        self._release(max(0, len(self._held) - kept))
        self._fill(kept)
        return needed - there

    def close(self) -> None:
        """Release all. No method may be called afterwards."""
        self._wanted = 0
        self._release(len(self._held))

    def _fill(self, count: int) -> None:
        while len(self._held) < count:
            try:
                self._held.append(_take())
            except OSError as error:
                if error.errno not in NO_DESCRIPTOR:
                    raise
                break
        self._held.sort()

    def _release(self, count: int) -> None:
        """Close the lowest: if the limit was lowered, higher ones are of no use to anybody."""
        for descriptor in self._held[:count]:
            os.close(descriptor)
        del self._held[:count]

    def _drop_unusable(self) -> None:
        """Close those beyond a limit that was lowered: nothing can be opened in their places."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        while self._held and soft != resource.RLIM_INFINITY and self._held[-1] >= soft:
            os.close(self._held.pop())
