"""The chain of a log's records (store/log/record_chain.py), across its segments."""

from __future__ import annotations

from store.log.reader import LogReader
from store.log.record_chain import Link
from store.log.scrub import SealedSegment
from store.log.segments import SegmentSet


class LogChain:
    """The record chain of a log, read from its segment indexes. Loop-only; a read may load a segment's sidecar from
    disk.
    """

    def __init__(self, segments: SegmentSet, reader: LogReader) -> None:
        self._segments = segments
        self._reader = reader

    def at(self, index: int) -> Link | None:
        """Return the chain after record `index`, or at the log's base; None where the chain is not known."""
        segments = self._segments
        segment = segments.with_index(max(index, segments.segments[0].first_index))
        if index < segment.first_index:
            return segments.base_link
        return segments.index_of(segment).chain.at(index)

    @property
    def last(self) -> Link | None:
        """The chain after the last record; None if it is not known."""
        active = self._segments.active.index
        assert active is not None
        return active.chain.at(active.next_index - 1)

    def sealed(self) -> list[SealedSegment]:
        """Return the sealed segments, which are no longer written to, in order."""
        return [
            SealedSegment(each.path, each.start, each.length, each.first_index) for each in self._segments.segments[:-1]
        ]

    def crc_of(self, index: int) -> int:
        """Return the payload CRC of record `index`, read from the record's header on disk. Raises as reading the record
        does.
        """
        return self._reader.header(index).payload_crc

    def begin(self, link: Link) -> None:
        """Continue from `link` as the chain after the last record. The active segment's earlier chain values are
        dropped.
        """
        active = self._segments.active.index
        assert active is not None
        active.chain.begin(link, active.next_index)
