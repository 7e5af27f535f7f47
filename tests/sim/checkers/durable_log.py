"""The log of a node that would be left after a power loss at this moment. It is read from the disk's synced bytes, by
docs/log-format.md.

This module deliberately shares no code with store/: a decoder with the same mistake would not notice that mistake.
"""

import struct
from collections.abc import Callable
from typing import NamedTuple, Protocol

from crc32c import crc32c

_RECORD = struct.Struct("<4sBBHIIQQQQI")
_HARD_STATE = struct.Struct("<4sBB2xQqI")
_BASE = struct.Struct("<4sBB2xQQQQI")
_NO_VOTE = -1
RECORD_HEADER_BYTES = _RECORD.size


class SyncedBytes(Protocol):
    """The disk's durable side. The reader takes (resets) `changed` and `names_changed`, which says that no name is what
    it was.
    """

    changed: dict[str, int]
    names_changed: bool

    def durable_bytes(self, path: str) -> bytearray | None: ...
    def durable_names(self, directory: str) -> list[str]: ...


class DurableRecord(NamedTuple):
    term: int
    payload_crc: int
    path: str
    offset: int  # in its file
    payload_bytes: int
    position: int  # in the log
    synced_position: int  # everything below was known to be synced when it was written


class Base(NamedTuple):
    """The log position and the index after which the first record comes."""

    position: int = 0
    index: int = 0  # type: ignore[assignment]  # hides tuple.index
    restarting: bool = False  # no segment belongs to this log


class DurableLog:
    """The synced records of one node behind the base of its log. They are read anew only from where the disk changed.

    The node has the entries up to the base in its state: `committed_term` returns their terms.
    """

    def __init__(
        self,
        disk: SyncedBytes,
        directory: str,
        hard_state_path: str,
        committed_term: Callable[[int], int | None] = lambda index: None,
    ) -> None:
        self._committed_term = committed_term
        self._base = Base()
        self._disk = disk
        self._directory = directory
        self._hard_state_path = hard_state_path
        self._records: list[DurableRecord] = []
        self._end: tuple[str, int] | None = None  # file and offset where reading goes on
        self._hard_state: tuple[int, int | None] = (0, None)
        self._voter = False
        self._before_wipe: dict[int, int] = {}
        self.wipes = 0

    @property
    def last_index(self) -> int:
        self._refresh()
        return self._base.index + len(self._records)

    @property
    def last(self) -> tuple[int, int]:
        """Term and index of the last record."""
        return self.term_at(self.last_index) or 0, self.last_index

    @property
    def first_index(self) -> int:
        self._refresh()
        return self._base.index + 1

    def at(self, index: int) -> DurableRecord | None:
        """Return the record with that Raft index; None if it would not survive, or was removed from the front."""
        self._refresh()
        place = index - self._base.index
        return self._records[place - 1] if 0 < place <= len(self._records) else None

    def term_at(self, index: int) -> int | None:
        """Return the term of an entry; None behind the end."""
        record = self.at(index)
        if record is None and 0 < index <= self._base.index:
            return self._committed_term(index)
        return None if record is None else record.term

    def counts_for(self, index: int, term: int) -> bool:
        """Return whether the node's acknowledgement of the entry was true when it was given: its disk, or one wiped
        since, holds or held the entry.
        """
        return term in (self.term_at(index), self._before_wipe.get(index))

    def remember(self) -> None:
        """Keep the index and term of each record on the disk: acknowledgements of these records were true, whatever
        becomes of the disk.
        """
        self._refresh()
        held = ((index, self.term_at(index)) for index in range(1, self.last_index + 1))
        self._before_wipe |= {index: term for index, term in held if term is not None}

    def wiped(self, disk: SyncedBytes) -> None:
        """Go on with an empty `disk`. Earlier acknowledgements of the node were true, until it has caught up."""
        self.remember()
        self.wipes += 1
        self._disk = disk
        self._voter = False

    def put_back(self) -> None:
        """Go on with an older disk. Acknowledgements of the node since then were true."""
        self.wipes += 1

    @property
    def before_wipe(self) -> dict[int, int]:
        """Terms, by index, of the records on the disks before this one. The map is empty again once this disk has
        caught up.
        """
        return self._before_wipe

    @property
    def voter(self) -> bool:
        """True when the disk holds every record that the node ever acknowledged."""
        self._refresh()
        return self._voter

    @property
    def hard_state(self) -> tuple[int, int | None]:
        """The term and the vote on the disk."""
        self._refresh()
        return self._hard_state

    def _refresh(self) -> None:
        disk = self._disk
        if disk.names_changed:
            disk.names_changed = False
            disk.changed.clear()
            self._read_hard_state()
            self._read_all()
        elif disk.changed:
            changed, disk.changed = disk.changed, {}
            if self._hard_state_path in changed:
                self._read_hard_state()
            if self._base_path in changed:
                self._read_all()
                return
            for path, offset in changed.items():
                if path.endswith(".log") and int(path[-24:-4]) >= self._base.position:
                    self._forget_from(path, offset)
            self._read_on()

    @property
    def _base_path(self) -> str:
        return f"{self._directory}/base"

    def _read_all(self) -> None:
        content = self._disk.durable_bytes(self._base_path)
        if content is None or len(content) < _BASE.size:
            self._base = Base()
        else:
            _, _, restarting, position, index, _, _, _ = _BASE.unpack_from(content)
            self._base = Base(position, index, restarting == 1)
        self._records.clear()
        self._end = None
        self._read_on()

    def _forget_from(self, path: str, offset: int) -> None:
        """Read the record at `offset` of a changed file, and all later ones, again."""
        records = self._records
        keep = len(records)
        while keep and (records[keep - 1].path > path or self._ends_beyond(keep - 1, path, offset)):
            keep -= 1
        if keep < len(records):
            self._end = (records[keep].path, records[keep].offset)
            del records[keep:]

    def _ends_beyond(self, at: int, path: str, offset: int) -> bool:
        record = self._records[at]
        if record.path != path:
            return False
        following = self._records[at + 1] if at + 1 < len(self._records) else None
        if following is not None and following.path == path:
            return following.offset > offset
        return self._end is None or self._end[0] != path or self._end[1] > offset

    def _read_on(self) -> None:
        if self._base.restarting:
            return
        paths = [path for path in self._disk.durable_names(self._directory) if path.endswith(".log")]
        for path in paths:
            if int(path[-24:-4]) < self._base.position:
                continue
            start = 0
            if self._end is not None:
                if path < self._end[0]:
                    continue
                start = self._end[1] if path == self._end[0] else 0
            if int(path[-24:-4]) != self._base.position and not self._continues(path, start):
                return
            self._end = (path, self._read_file(path, start))

    def _continues(self, path: str, start: int) -> bool:
        """Return whether the file begins where the records before it end: a gap ends the log."""
        if self._end is None:
            return False
        if start or path == self._end[0]:
            return True
        return int(path[-24:-4]) == int(self._end[0][-24:-4]) + self._end[1]

    def _read_file(self, path: str, offset: int) -> int:
        content = self._disk.durable_bytes(path)
        assert content is not None
        with memoryview(content) as view:
            return self._read_records(path, view, offset)

    def _read_records(self, path: str, content: memoryview, offset: int) -> int:
        base = int(path[-24:-4])
        while len(content) - offset >= _RECORD.size:
            header = _RECORD.unpack_from(content, offset)
            magic, _, _, _, length, payload_crc, index, term, position, synced_position, header_crc = header
            if magic != b"KMQR" or crc32c(content[offset : offset + _RECORD.size - 4]) != header_crc:
                break
            if index != self._base.index + len(self._records) + 1 or position != base + offset:
                break
            payload = content[offset + _RECORD.size : offset + _RECORD.size + length]
            if len(payload) != length or crc32c(payload) != payload_crc:
                break
            self._records.append(DurableRecord(term, payload_crc, path, offset, length, position, synced_position))
            offset += _RECORD.size + length
        return offset

    def _read_hard_state(self) -> None:
        content = self._disk.durable_bytes(self._hard_state_path)
        if content is None or len(content) < _HARD_STATE.size:
            self._hard_state, self._voter = (0, None), False
            return
        _, _, voter, term, vote, _ = _HARD_STATE.unpack_from(content)
        if voter == 1 and not self._voter:  # a new disk has caught up
            self._before_wipe.clear()
        self._voter = voter == 1
        self._hard_state = (term, None if vote == _NO_VOTE else vote)
