"""Damage that the shutdown ioctl cannot cause: tails that are only partly written, and flipped bits in synced data.

Tails are torn behind the end of the surviving log, where a real disk may leave any part of the writes that were under
way. Bits flip before that end, where nothing may change, and only on one node at a time.
"""

import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from crc32c import crc32c

from store.log.base import DAMAGED_BASE
from store.log.base import FILE_NAME as BASE_NAME
from store.log.record import HEADER_BYTES, KIND_ENTRY, Header, encode_header
from store.log.recovery import RecoveryCase
from tests.powerloss.log_on_disk import HARD_STATE, LOG_DIRECTORY, LogOnDisk, segment_path, segment_starts
from tests.powerloss.plan import Tear

_PAYLOAD_BYTES_MAX: Final = 3_000
_GARBAGE_BYTES_MAX: Final = 3_000
_SECTOR_BYTES: Final = 512
_HARD_STATE_PROBABILITY: Final = 0.1
_BASE_PROBABILITY: Final = 0.2
_REFUSED_PROBABILITY: Final = 0.6  # of the flips: in data that a start of the node checks


class LiveTail(NamedTuple):
    """The last segment as its node saw it in the page cache, without zeros at the end."""

    start: int
    data: bytes


class Flip(NamedTuple):
    """A bit that was flipped. `refused_with` is the message with which the node refuses to start; it is empty where
    only `keelmqd log verify` looks.
    """

    path: Path
    offset: int
    original: int
    refused_with: str

    def heal(self) -> None:
        """Put the byte back, as restoring a copy of the disk would."""
        _overwrite(self.path, self.offset, bytes([self.original]))


def live_tail(data_dir: Path) -> LiveTail | None:
    directory = data_dir / LOG_DIRECTORY
    starts = segment_starts(directory) if directory.is_dir() else []
    if not starts:
        return None
    return LiveTail(starts[-1], segment_path(directory, starts[-1]).read_bytes().rstrip(b"\0"))


def tear(kind: Tear, data_dir: Path, log: LogOnDisk, live: LiveTail | None, rng: random.Random) -> bool:
    """Leave a tail behind the end of the log. Returns False when there is no log to tear."""
    directory = data_dir / LOG_DIRECTORY
    if not log.records:
        return False
    start = segment_starts(directory)[-1]
    end = log.end_position
    unsynced = live.data[end - start :] if live is not None and live.start == start else b""
    last = log.records[max(log.records)]
    if kind == "prefix":
        lost = unsynced or _record(last, end, rng)[:-1]
        tail = lost[: rng.randint(1, len(lost))]
    elif kind == "hole":
        first = _record(last, end, rng)
        tail = _with_hole(first + _record(last, end + len(first), rng, ahead=2), HEADER_BYTES, len(first), rng)
        if len(unsynced) > 2 * _SECTOR_BYTES:
            tail = _with_hole(unsynced, 0, len(unsynced) - _SECTOR_BYTES, rng)
    elif kind == "header_only":
        tail = _record(last, end, rng)[:HEADER_BYTES]
    else:
        tail = rng.randbytes(rng.randint(1, _GARBAGE_BYTES_MAX))
    _overwrite(segment_path(directory, start), end - start, tail)
    return True


def flip_bit(data_dir: Path, log: LogOnDisk, rng: random.Random) -> Flip | None:
    """Flip one bit of data that is known to be synced; returns None when the node could not know of any yet."""
    hard_state = data_dir / HARD_STATE
    if hard_state.exists() and rng.random() < _HARD_STATE_PROBABILITY:
        return _flip(hard_state, rng.randrange(hard_state.stat().st_size), "hard state", rng)
    directory = data_dir / LOG_DIRECTORY
    base = directory / BASE_NAME
    if base.exists() and rng.random() < _BASE_PROBABILITY:
        return _flip(base, rng.randrange(base.stat().st_size), DAMAGED_BASE, rng)
    starts = segment_starts(directory, log.base) if log.records else []
    choices = _known_synced(list(log.records.values()), starts)
    if not choices:
        return None
    refused = [choice for choice in choices if choice.refused_with]
    choice = rng.choice(refused if refused and rng.random() < _REFUSED_PROBABILITY else choices)
    offset = rng.randrange(choice.begin, choice.end) - choice.start
    return _flip(segment_path(directory, choice.start), offset, choice.refused_with, rng)


class _Synced(NamedTuple):
    """Positions from `begin` to `end`, in the segment that starts at `start`, which are known to be synced."""

    begin: int
    end: int
    start: int
    refused_with: str


def _known_synced(headers: Sequence[Header], starts: Sequence[int]) -> list[_Synced]:
    """Return the synced parts record by record. A start checks the whole last segment and the first header of each
    sealed one.
    """
    refusal = RecoveryCase.CORRUPT_SYNCED_RECORD.value
    last_start = starts[-1] if starts else 0
    in_last = [header for header in headers if header.position >= last_start]
    # Evidence must come from behind the damaged record, whose own header may be the damaged part.
    synced = max((header.synced_position for header in in_last), default=0)
    known = [
        _Synced(header.position, header.end_position, last_start, refusal)
        for header in in_last
        if header.end_position <= synced
    ]
    for start, next_start in pairwise(starts):
        known.append(_Synced(start, start + HEADER_BYTES, start, refusal))
        known += [
            _Synced(header.position, header.end_position, start, "")
            for header in headers
            if start < header.position < next_start
        ]
    return known


def _record(last: Header, position: int, rng: random.Random, ahead: int = 1) -> bytes:
    """Return a record that could have been under way behind `last`."""
    payload = rng.randbytes(rng.randint(1, _PAYLOAD_BYTES_MAX))
    synced = rng.randint(0, last.end_position)
    index = last.index + ahead
    return encode_header(KIND_ENTRY, len(payload), crc32c(payload), index, last.term, position, synced) + payload


def _with_hole(data: bytes, first: int, last: int, rng: random.Random) -> bytes:
    """Return `data` with some bytes between `first` and `last` zeroed, at least one of them changed."""
    begin = rng.randrange(first, last)
    end = min(last, begin + rng.randint(1, _SECTOR_BYTES))
    holed = bytearray(data)
    holed[begin:end] = bytes(end - begin)
    if bytes(holed) == data:
        holed[begin] ^= 0xFF
    return bytes(holed)


def _flip(path: Path, offset: int, refused_with: str, rng: random.Random) -> Flip:
    with open(path, "rb") as file:
        file.seek(offset)
        (original,) = file.read(1)
    _overwrite(path, offset, bytes([original ^ (1 << rng.randrange(8))]))
    return Flip(path, offset, original, refused_with)


def _overwrite(path: Path, offset: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(data)
