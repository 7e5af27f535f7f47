"""A segment: one file of the log, with the index of its records."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right

from crc32c import crc32c

from store.log.disk import File
from store.log.record_chain import CHAINED_BYTES, RecordChain

SEGMENT_SUFFIX = ".log"
SIDECAR_SUFFIX = ".idx"
PENDING_NAME = "next-segment.tmp"  # a segment that is allocated but not part of the log yet
_NAME_DIGITS = 20

SEGMENT_BYTES_MIN = 4 * 1024
SEGMENT_BYTES_MAX = 2 * 1024 * 1024 * 1024  # positions inside a segment are kept in 32 bits
SEGMENT_BYTES_DEFAULT = 128 * 1024 * 1024


def segment_name(start: int) -> str:
    return f"{start:0{_NAME_DIGITS}d}{SEGMENT_SUFFIX}"


def sidecar_name(start: int) -> str:
    return f"{start:0{_NAME_DIGITS}d}{SIDECAR_SUFFIX}"


def start_of(name: str, suffix: str) -> int | None:
    """Return the start position in the name of a segment or sidecar file, or None if `name` is no such name."""
    digits = name.removesuffix(suffix)
    if len(digits) != _NAME_DIGITS or digits + suffix != name or not (digits.isascii() and digits.isdigit()):
        return None
    return int(digits)


class SegmentIndex:
    """Offsets, terms and chain of a segment's records: 8 bytes per record, 16 per change of term.

    Invariant: `offsets` ascends and begins with 0; `run_firsts` (Raft indexes) and `run_terms` ascend together.
    """

    __slots__ = ("chain", "first_index", "length", "offsets", "run_firsts", "run_terms")

    def __init__(self, first_index: int) -> None:
        self.first_index = first_index
        self.length = 0  # file offset after the last record
        self.offsets = array("I")
        self.run_firsts = array("Q")
        self.run_terms = array("Q")
        self.chain = RecordChain()

    @property
    def next_index(self) -> int:
        return self.first_index + len(self.offsets)

    @property
    def memory_bytes(self) -> int:
        return 4 * (len(self.offsets) + len(self.chain.values)) + 16 * len(self.run_firsts)

    def append(self, size: int, term: int, header: bytes) -> None:
        """Notes a record of `size` bytes after the last one; `header` must begin with the chained part of the record's
        header.
        """
        if not self.run_terms or self.run_terms[-1] != term:
            self.run_firsts.append(self.next_index)
            self.run_terms.append(term)
        self.offsets.append(self.length)
        self.length += size
        chain = self.chain
        if chain.origin is not None:  # inlined: a method call would double the cost
            chain.last = value = crc32c(header[:CHAINED_BYTES], chain.last)
            chain.values.append(value)

    def offset_of(self, index: int) -> int:
        """Return the file offset of record `index`; for the index after the last record, that of the end."""
        ordinal = index - self.first_index
        return self.length if ordinal == len(self.offsets) else self.offsets[ordinal]

    def term_of(self, index: int) -> int:
        return self.run_terms[bisect_right(self.run_firsts, index) - 1]

    def index_at(self, offset: int) -> int | None:
        """Return the index of the record that begins at file offset `offset`, or None."""
        ordinal = bisect_left(self.offsets, offset)
        if ordinal == len(self.offsets) or self.offsets[ordinal] != offset:
            return None
        return self.first_index + ordinal

    def last_within(self, first: int, size: int) -> int:
        """Return the last record that ends within `size` bytes from the start of record `first`; at least `first`."""
        limit = self.offset_of(first) + size
        if self.length <= limit:
            return self.next_index - 1
        # offsets[k] is where record k - 1 ends
        return max(first, self.first_index + bisect_right(self.offsets, limit) - 2)

    def truncate(self, index: int) -> None:
        """Forget record `index` and all after it."""
        self.chain.truncate(index)
        self.length = self.offset_of(index)
        del self.offsets[index - self.first_index :]
        keep = bisect_left(self.run_firsts, index)
        del self.run_firsts[keep:]
        del self.run_terms[keep:]


class Segment:
    """A file of the log. A sealed segment is cut to its records and synced; only the last segment is not sealed.

    `index` and `file` of a sealed segment are loaded on demand and may be dropped at any time.
    """

    __slots__ = ("file", "first_index", "index", "length", "name", "path", "start")

    def __init__(self, directory: str, start: int, first_index: int, length: int = 0) -> None:
        self.name = segment_name(start)
        self.path = f"{directory}/{self.name}"
        self.start = start
        self.first_index = first_index
        self.length = length  # file length of a sealed segment
        self.index: SegmentIndex | None = None
        self.file: File | None = None
