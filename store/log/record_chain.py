"""A hash chained over the records of the log: equal on two nodes exactly if all records since its origin are equal.

`value(i) = crc32c(identity of record i, seeded with value(i - 1))`. The identity of a record is the first 40 bytes of
its header: kind, length and CRC of the payload, index, term, position. For given bytes the step is a bijection of the
seed, so a difference never vanishes once it exists. Values are compared only if they have the same origin.
"""

from __future__ import annotations

import struct
from array import array
from typing import Final, NamedTuple

from store.log.record import HEADER_BYTES, MAGIC, VERSION, Header

CHAINED_BYTES: Final = 40
"""Length of the chained part of a header; the rest, the synced position, differs between nodes."""
_CHAINED: Final = struct.Struct("<4sBBHIIQQQ")
assert _CHAINED.size == CHAINED_BYTES < HEADER_BYTES


class Link(NamedTuple):
    """The chain value after some record, with the index and term of the chain's origin; (0, 0) is the beginning of the
    log.
    """

    origin_index: int
    origin_term: int
    value: int

    def differs(self, other: Link | None) -> bool:
        """Return whether the records before are known to differ; False also when the two links cannot be compared."""
        return other is not None and other[:2] == self[:2] and other.value != self.value


GENESIS: Final = Link(0, 0, 0)


def chained(kind: int, length: int, crc: int, index: int, term: int, position: int) -> bytes:
    """Return the chained part of a record: the beginning of its header."""
    return _CHAINED.pack(MAGIC, VERSION, kind, 0, length, crc, index, term, position)


def chained_of(header: Header) -> bytes:
    return chained(header.kind, header.payload_length, header.payload_crc, header.index, header.term, header.position)


class RecordChain:
    """The chain values of one segment's records, from the first known one on: 4 bytes each.

    Invariant: without an origin there are no values; with an origin there is a value for every record from `first` on.
    """

    __slots__ = ("first", "last", "origin", "seed", "values")

    def __init__(self) -> None:
        self.origin: tuple[int, int] | None = None
        self.first = 0
        """Index of the first record that has a value here."""
        self.seed = 0
        """The chain value before record `first`."""
        self.last = 0
        self.values = array("I")

    def begin(self, link: Link | None, first: int) -> None:
        """Forget all values and restart before record `first`.

        `link` is the chain before that record, None if unknown.
        """
        self.values = array("I")
        self.first = first
        self.origin = None if link is None else link[:2]
        self.seed = self.last = 0 if link is None else link.value

    def at(self, index: int) -> Link | None:
        """Return the chain after record `index`, or before record `first` for `first - 1`; None where the chain is not
        known.
        """
        if self.origin is None:
            return None
        ordinal = index - self.first
        if ordinal == -1:
            return Link(*self.origin, self.seed)
        if not 0 <= ordinal < len(self.values):
            return None
        return Link(*self.origin, self.values[ordinal])

    def truncate(self, index: int) -> None:
        """Forget record `index` and all after it; possibly no value is left."""
        if self.origin is None:
            return
        if index < self.first:
            self.begin(None, index)
            return
        del self.values[index - self.first :]
        self.last = self.values[-1] if self.values else self.seed
