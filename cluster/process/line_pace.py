"""Bounds the log lines of each place in the code, so that nobody fills a disk by what a node says about him.

Most lines that a stranger can provoke, with a request, a connection or a member that falls silent, come from a place
that logs each of them. The bound holds for every place alike, so that no place can be forgotten.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple

LINES_PER_PLACE_MAX: Final = 60
"""Maximum number of lines that one place in the code logs, at one level, in LINE_INTERVAL_S; further ones are counted.
"""
LINE_INTERVAL_S: Final = 60.0
AUDIT_LOGGER: Final = "keelmq.audit"
"""Name of the logger of administrative calls, whose lines are never left out: only principals who were allowed to do
what the line says cause one.
"""


class _Place(NamedTuple):
    path: str
    line: int
    level: int


class _Count:
    def __init__(self, begun_s: float) -> None:
        self.begun_s = begun_s
        self.logged = 0
        self.left_out = 0


class LinePace:
    """A filter of log records. Any thread may call it. It never leaves out `critical` lines and the audit log."""

    def __init__(self, steady_s: Callable[[], float] = time.monotonic) -> None:
        self._steady_s = steady_s
        self._lock = threading.Lock()
        self._counts: dict[_Place, _Count] = {}

    def __call__(self, record: logging.LogRecord) -> bool:
        """Return whether to log the record. The first line after some that were left out tells how many they were."""
        if record.levelno >= logging.CRITICAL or record.name == AUDIT_LOGGER:
            return True
        with self._lock:
            left_out = self._count(_Place(record.pathname, record.lineno, record.levelno))
        if left_out:
            record.msg, record.args = (
                "%s (%d such lines before this one were left out)",
                (record.getMessage(), left_out),
            )
        return left_out is not None

    def _count(self, place: _Place) -> int | None:
        """Count a line. Return how many were left out before it, or None if it is to be left out itself."""
        now_s = self._steady_s()
        count = self._counts.get(place)
        left_out = 0
        if count is None or now_s - count.begun_s >= LINE_INTERVAL_S:
            left_out = count.left_out if count is not None else 0
            count = self._counts[place] = _Count(now_s)
        if count.logged >= LINES_PER_PLACE_MAX:
            count.left_out += 1
            return None
        count.logged += 1
        return left_out
