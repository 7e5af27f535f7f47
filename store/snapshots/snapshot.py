"""A snapshot of the state: every pair of the index as of one applied entry, as a stream of bytes in portions.

    u32 key_length | u32 value_length | key | value | ...

The log is not part of the snapshot, only its base: a node that installs a snapshot begins an empty log behind that
base. A portion may end in the middle of a pair, so that portions are bounded whatever the size of a pair.
"""

import struct
from hashlib import blake2b
from typing import Final

from store.errors import IndexDamaged, IndexUnreadable
from store.index.index import FORMAT, Index
from store.log.base import LogBase
from store.state.machine import applied_state

PORTION_BYTES: Final = 128 * 1024
"""Maximum size of a portion: the bytes that are read or written before the loop does other work."""
PAIR_BYTES_MAX: Final = 64 * 1024 * 1024
"""Maximum size of a pair; a larger length means damage, since a record of the log holds no more."""

_LENGTHS: Final = struct.Struct("<II")
_CHECKSUM_BYTES: Final = 16


class SnapshotRefused(Exception):
    """The received data is not the announced snapshot; none of it may be used."""


class SnapshotReader:
    """Reads the state as of the reader's creation, whatever is applied meanwhile. `base` is the base of the log at that
    moment.
    """

    def __init__(self, index: Index, base: LogBase) -> None:
        applied = applied_state(index)
        self.base = base
        self.index = applied.index
        self.state_hash = applied.state_hash
        self.format = FORMAT.decode()
        self.estimated_pairs = index.estimate_pairs()
        self.pairs_read = 0
        self._pairs = index.pairs()
        self._rest = bytearray()
        self._ended = False
        self._digest = blake2b(digest_size=_CHECKSUM_BYTES)

    @property
    def checksum(self) -> bytes:
        """Checksum of all portions so far."""
        return self._digest.digest()

    def next_portion(self) -> bytes:
        """Return up to PORTION_BYTES; empty when the whole state was read."""
        rest = self._rest
        while not self._ended and len(rest) < PORTION_BYTES:
            pair = next(self._pairs, None)
            if pair is None:
                self._ended = True
                break
            key, value = pair
            rest += _LENGTHS.pack(len(key), len(value))
            rest += key
            rest += value
            self.pairs_read += 1
        portion = bytes(rest[:PORTION_BYTES])
        del rest[:PORTION_BYTES]
        self._digest.update(portion)
        return portion


class SnapshotWriter:
    """Writes the portions of a snapshot into an index of its own, which must be empty at the beginning."""

    def __init__(self, index: Index) -> None:
        self.pairs_written = 0
        self.bytes_written = 0
        self._index = index
        self._rest = b""
        self._digest = blake2b(digest_size=_CHECKSUM_BYTES)
        self._is_flushing = False

    def add(self, portion: bytes) -> None:
        """Write a portion, not durably, or keep it in memory until `is_written`, which must be True before the next
        one. Raises SnapshotRefused when it holds no valid pairs, DiskError.
        """
        self._digest.update(portion)
        self.bytes_written += len(portion)
        data = self._rest + portion
        at, end, put = 0, len(data), self._index.put
        while end - at >= _LENGTHS.size:
            key_length, value_length = _LENGTHS.unpack_from(data, at)
            if not key_length or key_length + value_length > PAIR_BYTES_MAX:
                raise SnapshotRefused(f"a pair of {key_length} and {value_length} bytes")
            key_at = at + _LENGTHS.size
            following = key_at + key_length + value_length
            if following > end:
                break
            put(data[key_at : key_at + key_length], data[key_at + key_length : following])
            self.pairs_written += 1
            at = following
        self._rest = data[at:]
        self._index.try_commit()
        self._index.touched.clear()  # nobody hashes them here: they would be kept as long as the index is open

    def is_written(self) -> bool:
        """Return whether the index has what was added, and took it now if it had not; False while it takes no writes.
        Raises DiskError.
        """
        return self._index.try_commit()

    def is_durable(self) -> bool:
        """Return whether the added pairs are on disk; it is being brought there from the first call on, and nothing may
        be added after it. Raises DiskError or IndexUnreadable.
        """
        index = self._index
        if not self._is_flushing:
            self._is_flushing = index.try_commit() and index.begin_flush()
            return False
        if index.is_flushing:
            index.begin_flush()  # which begins none, and tells of one that has failed
            return False
        return True

    def check(self, pairs: int, checksum: bytes, index: int, state_hash: str) -> None:
        """Raise SnapshotRefused unless the written state is exactly the announced one."""
        if self._rest or self.pairs_written != pairs or self._digest.digest() != checksum:
            raise SnapshotRefused(f"{self.pairs_written} pairs of {pairs} with another checksum")
        try:
            applied = applied_state(self._index)
        except (ValueError, IndexDamaged, IndexUnreadable) as error:
            raise SnapshotRefused(f"its state cannot be read: {error}") from error
        if (applied.index, applied.state_hash) != (index, state_hash):
            raise SnapshotRefused(
                f"its state is {applied.state_hash} at entry {applied.index}, not {state_hash} at {index}"
            )
