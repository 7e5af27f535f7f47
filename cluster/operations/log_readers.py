"""Remembers which queries read the log at this node, and how far they are. A query says its name and position when it
plans what to read next; other nodes do not know them, and none of it is in the log.
"""

import asyncio
from typing import Final, NamedTuple

from cluster.http.responses import Response
from cluster.limits import LOG_READERS_MAX

FORGOTTEN_AFTER_S: Final = 3_600.0
"""Seconds after which a reader that is silent is not shown any more: longer than a job needs to be started again."""


class LogReaderView(Response, kw_only=True, frozen=True):
    """A query that reads the log, by the name that it gives itself. It has read the entries before `next_index`; `lag`
    is the number of entries that this node has applied since. `silent_ms` is the time since the query said so.
    """

    reader: str
    address: str
    principal: str | None
    next_index: int
    lag: int
    silent_ms: int


class _Position(NamedTuple):
    next_index: int
    noted_s: float


class LogReaders:
    """Remembers the LOG_READERS_MAX readers that were heard last. Use on the event loop only."""

    def __init__(self) -> None:
        self._positions: dict[tuple[str, str, str | None], _Position] = {}
        """Positions by reader, address and principal, the most recently heard reader at the end."""

    def note(self, reader: str, address: str, principal: str | None, next_index: int) -> None:
        key = reader, address, principal
        self._positions.pop(key, None)
        self._positions[key] = _Position(next_index, asyncio.get_running_loop().time())
        if len(self._positions) > LOG_READERS_MAX:
            del self._positions[next(iter(self._positions))]

    def views(self, applied_index: int) -> list[LogReaderView]:
        """Return the remembered readers, the reader that is furthest behind first."""
        now_s = asyncio.get_running_loop().time()
        kept = {key: each for key, each in self._positions.items() if now_s - each.noted_s < FORGOTTEN_AFTER_S}
        self._positions = kept
        views = [
            LogReaderView(
                reader=reader,
                address=address,
                principal=principal,
                next_index=each.next_index,
                lag=max(0, applied_index + 1 - each.next_index),
                silent_ms=round((now_s - each.noted_s) * 1000),
            )
            for (reader, address, principal), each in kept.items()
        ]
        return sorted(views, key=lambda view: (-view.lag, view.reader, view.address))
