"""A stopped node's commit log as its disk holds it, read with the store's own readers and never changed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from cluster.messages.compression import unpack
from store.commands.entry import batches_of, decode_entry
from store.commands.transactions import Decide
from store.log.base import BEGINNING, LogBase, StoredBase, read_base
from store.log.disk import PosixDisk
from store.log.dump import Finding, verify_log
from store.log.hard_state import HardState
from store.log.record import KIND_ENTRY, Header
from store.log.scan import scan_records
from store.log.segment import SEGMENT_SUFFIX, start_of
from store.snapshots.install import read_decision
from tests.powerloss.ledger import Decided
from tests.powerloss.messages import number_in

LOG_DIRECTORY: Final = "log"
HARD_STATE: Final = "hard_state"

_decode_block = msgspec.msgpack.Decoder(list[list[object]]).decode


class EntryKey(NamedTuple):
    """Identifies an entry: in Raft, entries of one index and term are the same entry everywhere."""

    index: int  # type: ignore[assignment]  # hides tuple.index
    term: int


class Contents(NamedTuple):
    """The content of an entry, as far as it concerns the writer's messages."""

    payload_crc: int
    numbers: frozenset[int]
    foreign_bodies: int  # bodies that no writer made
    decisions: tuple[tuple[str, Decided], ...]


class LogOnDisk(NamedTuple):
    records: Mapping[int, Header]  # intact and in order, by index
    contents: Mapping[EntryKey, Contents]
    damage: tuple[Finding, ...]  # damage that opening the log would not repair
    end_position: int
    term: int  # of the hard state
    base: LogBase  # entries up to it were removed, or are in a snapshot to start with
    differing: tuple[EntryKey, ...]  # entries that another disk holds with another payload

    def has(self, index: int, term: int) -> bool:
        header = self.records.get(index)
        return header is not None and header.term == term


class LogReader:
    """Reads logs of one cluster; the contents of entries are decoded once for all nodes."""

    def __init__(self) -> None:
        self._contents: dict[EntryKey, Contents] = {}
        self._disk = PosixDisk()

    def read(self, data_dir: Path) -> LogOnDisk:
        """Return the log in `data_dir`; it is empty when the node never came to making one."""
        directory = data_dir / LOG_DIRECTORY
        term = HardState(self._disk, str(data_dir / HARD_STATE)).term
        if not directory.is_dir():
            return LogOnDisk({}, self._contents, (), 0, term, BEGINNING, ())
        stored = self._stored_base(data_dir)
        records: dict[int, Header] = {}
        differing = []
        end = stored.base.position
        for start in [] if stored.restarting else segment_starts(directory, stored.base):
            for header, payload in self._records(segment_path(directory, start), start):
                records[header.index] = header
                end = header.end_position
                key = EntryKey(header.index, header.term)
                known = self._contents.get(key)
                if known is None:
                    self._contents[key] = _contents(header, bytes(payload))
                elif known.payload_crc != header.payload_crc:
                    differing.append(key)
        damage = tuple(f for f in verify_log(self._disk, str(directory)).findings if not f.harmless)
        return LogOnDisk(records, self._contents, damage, end, term, stored.base, tuple(differing))

    def _stored_base(self, data_dir: Path) -> StoredBase:
        """Return the base of the next start: a decision for a snapshot is carried out before anything else."""
        decision = read_decision(self._disk, str(data_dir))
        if decision is not None:
            return StoredBase(decision.base, decision.index, restarting=True)
        return read_base(self._disk, str(data_dir / LOG_DIRECTORY))

    def _records(self, path: Path, start: int) -> list[tuple[Header, bytes]]:
        file = self._disk.open(str(path))
        try:
            return [(header, bytes(payload)) for header, payload in scan_records(file, start)]
        finally:
            file.close()


def segment_starts(directory: Path, base: LogBase = BEGINNING) -> list[int]:
    """Return the positions of the segments in a log directory, in order, without those before the base, which are not
    removed yet.
    """
    starts = (start_of(path.name, SEGMENT_SUFFIX) for path in directory.iterdir())
    return sorted(start for start in starts if start is not None and start >= base.position)


def segment_path(directory: Path, start: int) -> Path:
    return directory / f"{start:020d}{SEGMENT_SUFFIX}"


def _contents(header: Header, payload: bytes) -> Contents:
    if header.kind != KIND_ENTRY:
        return Contents(header.payload_crc, frozenset(), 0, ())
    entry = decode_entry(payload)
    numbers: list[int] = []
    foreign = 0
    decisions: list[tuple[str, Decided]] = []
    for command, offsets in zip(entry.commands, entry.block_offsets, strict=True):
        if isinstance(command, Decide) and command.decision != "unknown":
            decisions.append((command.transaction_id, command.decision))
        for batch, offset in zip(batches_of(command), offsets, strict=True):
            block = payload[offset : offset + batch.length]
            if batch.uncompressed_bytes is not None:
                block = unpack(block, batch.uncompressed_bytes)
            for message in _decode_block(block):
                number = number_in(message[0]) if isinstance(message[0], bytes) else None
                if number is None:
                    foreign += 1
                else:
                    numbers.append(number)
    return Contents(header.payload_crc, frozenset(numbers), foreign, tuple(decisions))
