"""The chain of a log's records (store/log/record_chain.py), across its segments."""

from __future__ import annotations

from store.log.reader import LogReader
from store.log.record_chain import Link
from store.log.scrub import SealedSegment
from store.log.segments import SegmentSet


class LogChain:
    """Loop-only. Reading it may load a segment's sidecar, as the positions of its records do."""

    def __init__(self, segments: SegmentSet, reader: LogReader) -> None:
        self._segments = segments
        self._reader = reader

    def at(self, index: int) -> Link | None:
        """Behind record `index` of the log, or behind its base; None where the chain is not known."""
        segments = self._segments
        segment = segments.with_index(max(index, segments.segments[0].first_index))
        if index < segment.first_index:
            return segments.base_link
        return segments.index_of(segment).chain.at(index)

    @property
    def last(self) -> Link | None:
        """Behind the last record."""
        active = self._segments.active.index
        assert active is not None
        return active.chain.at(active.next_index - 1)

    def sealed(self) -> list[SealedSegment]:
        """The segments that are written to no more, in order."""
        return [
            SealedSegment(each.path, each.start, each.length, each.first_index) for each in self._segments.segments[:-1]
        ]

    def crc_of(self, index: int) -> int:
        """Of the payload of record `index`, by its header on disk. Raises as reading the record does."""
        return self._reader.header(index).payload_crc

    def begin(self, link: Link) -> None:
        """From here on the chain behind the last record is `link`; what was known before counts no more in this
        segment."""
        active = self._segments.active.index
        assert active is not None
        active.chain.begin(link, active.next_index)
