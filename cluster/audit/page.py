"""A page of the audit: the records of all streams merged, with the newest first."""

import re
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final, NamedTuple

from cluster.audit.record import AuditFilter, AuditRecord
from cluster.audit.stream import NAMES, AuditStream, Found, Look, Name, Place
from store.log.errors import DiskError

PIECES_MAX: Final = 64
"""Maximum number of pieces (PIECE_BYTES) that one page reads: 4 MiB. A page that ends for this has a next one."""
CURSOR_PATTERN: Final = "^([0-9]{1,18}[.][0-9]{1,18})?-([0-9]{1,18}[.][0-9]{1,18})?$(?!\n)"
_CURSOR: Final = re.compile(CURSOR_PATTERN)

Run = Callable[[Callable[[], Look]], Awaitable[Look]]


class Shown(NamedTuple):
    """A record, and what identifies it at its node: `calls-3.4096`, its file and the bytes before its line."""

    id: str
    record: AuditRecord


class Page(NamedTuple):
    records: list[Shown]
    next: str | None
    unreadable: int


class _Source:
    """One stream of a page: records that were found and not shown yet, and where the next piece ends."""

    def __init__(self, name: Name, stream: AuditStream, rest: Place | None, *, is_new: bool) -> None:
        self.name = name
        self._stream = stream
        self._rest = rest
        self._is_new = is_new
        """True before the first piece of a first page, which begins at the newest record."""
        self.found: deque[Found] = deque()
        self.pieces = 0

    @property
    def is_over(self) -> bool:
        return self._rest is None and not self._is_new

    @property
    def place(self) -> Place | None:
        """The place before which the next page goes on; None if there is nothing older."""
        return self.found[0].end if self.found else self._rest

    def look(self, wanted: AuditFilter) -> Look:
        """Read the next piece, in a thread."""
        try:
            place = self._stream.newest() if self._is_new else self._rest
        except DiskError:
            return Look([], None, 1)
        return Look([], None, 0) if place is None else self._stream.look(place, wanted.matches, wanted.since_ms)

    def take(self, look: Look) -> None:
        self._is_new = False
        self.pieces += 1
        self.found.extend(look.found)
        self._rest = look.rest


async def read_page(
    streams: Mapping[Name, AuditStream], wanted: AuditFilter, limit: int, after: str | None, run: Run
) -> Page:
    """Return up to `limit` records that are wanted, those before the cursor `after`. `run` carries out a step in the
    thread of the streams; the loop does other work between steps.

    Raises ValueError when `after` does not match CURSOR_PATTERN.
    """
    places = _places_of(after)
    sources = [_Source(name, streams[name], places.get(name), is_new=after is None) for name in NAMES]
    shown: list[Shown] = []
    unreadable = 0
    while len(shown) < limit:
        waiting = [each for each in sources if not each.found and not each.is_over]
        if waiting:  # of two streams, the newer record is known once both have shown one
            if sum(each.pieces for each in sources) == PIECES_MAX:
                break
            source = min(waiting, key=lambda each: each.pieces)
            look = await run(partial(source.look, wanted))
            source.take(look)
            unreadable += look.unreadable
            continue
        filled = [each for each in sources if each.found]
        if not filled:
            break
        newest = max(filled, key=lambda each: each.found[0].record.at_ms)
        found = newest.found.popleft()
        shown.append(Shown(f"{newest.name}-{found.begin.file}.{found.begin.end}", found.record))
    return Page(shown, _cursor_of(sources), unreadable)


def _places_of(after: str | None) -> dict[Name, Place]:
    if after is None:
        return {}
    found = _CURSOR.fullmatch(after)
    if found is None:
        raise ValueError(f"{after!r} is no cursor")
    parts = {name: found[at + 1] for at, name in enumerate(NAMES)}
    return {name: Place(*map(int, part.split("."))) for name, part in parts.items() if part}


def _cursor_of(sources: list[_Source]) -> str | None:
    places = [None if each.place is None else f"{each.place.file}.{each.place.end}" for each in sources]
    return "-".join(each or "" for each in places) if any(places) else None
