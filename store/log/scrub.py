"""Reads sealed segments only to check that they still hold the bytes that were written.

The scrub does not run on the loop: its caller gives it a disk and runs it in a thread, in steps of any size. A segment
that is cut or removed meanwhile may look damaged: a finding counts only if the segment is unchanged afterwards.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple

from crc32c import crc32c

from store.log.disk import Disk, File
from store.log.errors import DiskError, DiskFull
from store.log.record import HEADER_BYTES, UnsupportedRecord
from store.log.record_chain import Link, RecordChain, chained_of
from store.log.scan import scan_records
from store.log.segment import sidecar_name
from store.log.sidecar import decode_sidecar


class SealedSegment(NamedTuple):
    """A segment that is no longer written to, as it is at this moment."""

    path: str
    start: int
    length: int
    first_index: int


class Damage(NamedTuple):
    """The first damage found in a segment."""

    path: str
    position: int
    raft_index: int
    detail: str


class SegmentScrub:
    """One pass over one segment. `damage` is None as long as all data read so far is sound.

    `before` is the chain that this pass found at the end of the previous segment; None if it is not known.
    """

    def __init__(self, disk: Disk, segment: SealedSegment, before: Link | None) -> None:
        self._disk = disk
        self._segment = segment
        self._before = before
        self.damage: Damage | None = None
        self.after: Link | None = None
        """The chain at the end of the segment, once the whole segment was read; None if it is not known."""

    def steps(self, step_bytes: int) -> Generator[int, None, None]:
        """Read the segment; after about every `step_bytes` yield the number of bytes read.

        A failure of the disk is reported in `damage`. Raises DiskFull when no file descriptor is left, which says
        nothing about the segment.
        """
        segment = self._segment
        at, index = segment.start, segment.first_index
        try:
            file = self._disk.open(segment.path)
        except DiskFull:
            raise
        except DiskError as error:
            self._found(at, index, f"the segment cannot be opened: {error}")
            return
        try:
            yield from self._read(file, step_bytes)
        except DiskFull:
            raise
        except DiskError as error:
            self._found(at, index, f"the segment cannot be read: {error}")
        finally:
            file.close()

    def _read(self, file: File, step_bytes: int) -> Generator[int, None, None]:
        segment, chain = self._segment, self._chain()
        begins = chain.at(segment.first_index - 1)
        if begins is not None and begins.differs(self._before):
            self._found(segment.start, segment.first_index, "the records before it are not those that were written")
            return
        offset, index, value, unreported = 0, segment.first_index, chain.seed, 0
        try:
            for header, _ in scan_records(file, segment.start):
                if header.index != index or offset >= segment.length:
                    break
                if chain.origin is not None and index >= chain.first:
                    value = crc32c(chained_of(header), value)
                    if value != chain.values[index - chain.first]:
                        self._found(header.position, index, "the record is not the one that was written, CRC or not")
                        return
                size = HEADER_BYTES + header.payload_length
                offset, index, unreported = offset + size, index + 1, unreported + size
                if unreported >= step_bytes:
                    yield unreported
                    unreported = 0
        except UnsupportedRecord as error:
            self._found(segment.start + offset, index, f"the record is of a kind that was never written: {error}")
            return
        if offset != segment.length:
            self._found(segment.start + offset, index, "the record does not match its CRC")
        elif chain.origin is not None:
            self.after = Link(*chain.origin, value)
        yield unreported

    def _chain(self) -> RecordChain:
        """Return the chain that the sidecar holds; an empty chain without a sidecar, or if an earlier build wrote the
        sidecar.
        """
        segment = self._segment
        path = f"{segment.path.rpartition('/')[0]}/{sidecar_name(segment.start)}"
        decoded = None
        if self._disk.exists(path):
            decoded = decode_sidecar(self._disk.read_bytes(path), segment.start, segment.length, segment.first_index)
        return RecordChain() if decoded is None else decoded[0].chain

    def _found(self, position: int, index: int, detail: str) -> None:
        self.damage = Damage(self._segment.path, position, index, detail)
