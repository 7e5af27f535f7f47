"""A hash chained over the records of the log: equal on two nodes exactly if all records since its origin are.

`value(i) = crc32c(what identifies record i, seeded with value(i - 1))`, where what identifies a record are the first 40
bytes of its header: kind, length and CRC of the payload, index, term, position. For given bytes the step is a bijection
of the seed, so a difference, once there, never vanishes. Values are compared only where they have the same origin.
"""

from __future__ import annotations

import struct
from array import array
from typing import Final, NamedTuple

from store.log.record import HEADER_BYTES, MAGIC, VERSION, Header

CHAINED_BYTES: Final = 40
"""Of the header; what follows, the synced position, differs between nodes."""
_CHAINED: Final = struct.Struct("<4sBBHIIQQQ")
assert _CHAINED.size == CHAINED_BYTES < HEADER_BYTES


class Link(NamedTuple):
    """The chain at some record, and where it began: behind that entry, (0, 0) for the beginning of the log."""

    origin_index: int
    origin_term: int
    value: int

    def differs(self, other: Link | None) -> bool:
        """Whether the records before are known to differ; False also when that cannot be told."""
        return other is not None and other[:2] == self[:2] and other.value != self.value


GENESIS: Final = Link(0, 0, 0)


def chained(kind: int, length: int, crc: int, index: int, term: int, position: int) -> bytes:
    """What of a record goes into the chain: the beginning of its header."""
    return _CHAINED.pack(MAGIC, VERSION, kind, 0, length, crc, index, term, position)


def chained_of(header: Header) -> bytes:
    return chained(header.kind, header.payload_length, header.payload_crc, header.index, header.term, header.position)


class RecordChain:
    """The values of one segment's records, from where they are known: 4 bytes each.

    Invariant: without an origin there are no values; with one, they are those of all records from `first` on.
    """

    __slots__ = ("first", "last", "origin", "seed", "values")

    def __init__(self) -> None:
        self.origin: tuple[int, int] | None = None
        self.first = 0
        """Index of the first record that has a value here."""
        self.seed = 0
        """The value before it."""
        self.last = 0
        self.values = array("I")

    def begin(self, link: Link | None, first: int) -> None:
        """Forget what there is; the next record is `first`, and `link` the chain before it, None if that is unknown."""
        self.values = array("I")
        self.first = first
        self.origin = None if link is None else link[:2]
        self.seed = self.last = 0 if link is None else link.value

    def at(self, index: int) -> Link | None:
        """Behind record `index`, or behind the one before the first; None where it is not known."""
        if self.origin is None:
            return None
        ordinal = index - self.first
        if ordinal == -1:
            return Link(*self.origin, self.seed)
        if not 0 <= ordinal < len(self.values):
            return None
        return Link(*self.origin, self.values[ordinal])

    def truncate(self, index: int) -> None:
        """Forget record `index` and all after it; what is left may be nothing."""
        if self.origin is None:
            return
        if index < self.first:
            self.begin(None, index)
            return
        del self.values[index - self.first :]
        self.last = self.values[-1] if self.values else self.seed
