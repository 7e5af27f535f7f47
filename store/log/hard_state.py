"""Term and vote of this node, which Raft must never forget, and whether the node may vote; in a file of their own."""

from __future__ import annotations

import contextlib
import os.path
import struct

from crc32c import crc32c

from store.log.disk import Disk, require_descriptors
from store.log.errors import DiskError, DiskFull, HardStateCorruption, LogFailed

MAGIC = b"KMQH"
VERSION = 1
_BODY = struct.Struct("<4sBB2xQq")
FILE_BYTES = _BODY.size + 4
_NO_VOTE = -1
_TEMPORARY_SUFFIX = ".tmp"
_DESCRIPTORS = 2


class HardState:
    """The term this node is in and the candidate it voted for in that term.

    `voter` says that the node's disk holds everything the node ever acknowledged: the node began with the cluster, or
    has caught up since its data directory was new. `voter` stays true, unless the node learns that its disk was put
    back to an earlier state.

    Invariants: `term` never goes back; within a term the vote, once given, does not change. A missing file stands for
    term 0 without a vote. A temporary file left by a crash was never promised to anybody and is ignored.
    """

    def __init__(self, disk: Disk, path: str) -> None:
        """Read the file. Raises `HardStateCorruption` when it is damaged, `DiskError` when it cannot be read."""
        self._disk = disk
        self._path = path
        self._directory = os.path.dirname(path) or "."
        self._failed = False
        self._term, self._voted_for, self._voter = self._load()

    @property
    def term(self) -> int:
        return self._term

    @property
    def voted_for(self) -> int | None:
        return self._voted_for

    @property
    def voter(self) -> bool:
        return self._voter

    def set(self, term: int, voted_for: int | None) -> None:
        """Store term and vote, durably on return: a temporary file is written, synced, renamed, its directory synced.

        Raises `ValueError` for a term that goes back, a changed vote or a negative id; `DiskFull` when there is no
        space or no file descriptor (nothing was changed); `LogFailed` when the disk failed: the state on disk is then
        unknown and the process must stop.
        """
        self._check(term, voted_for)
        self._write(term, voted_for, self._voter)

    def become_voter(self) -> None:
        """Notes that the node may vote, durably on return. Raises as `set` does."""
        self._write(self._term, self._voted_for, True)

    def lose_vote(self) -> None:
        """Notes that the disk lacks acknowledged data and the node may not vote, durably on return. Raises as `set`
        does.
        """
        self._write(self._term, self._voted_for, False)

    def _write(self, term: int, voted_for: int | None, voter: bool) -> None:
        if self._failed:
            raise LogFailed(f"an earlier write of hard state {self._path} failed, so it is not written again")
        require_descriptors(self._disk, self._path, _DESCRIPTORS)
        temporary = self._path + _TEMPORARY_SUFFIX
        try:
            self._write_temporary(temporary, _encode(term, voted_for, voter))
            self._disk.rename(temporary, self._path)
            self._disk.sync_directory(self._directory)
            self._keep_room()
        except DiskFull:
            raise
        except DiskError as error:
            self._failed = True
            raise LogFailed(f"hard state could not be written: {error}") from error
        self._term, self._voted_for, self._voter = term, voted_for, voter

    def _check(self, term: int, voted_for: int | None) -> None:
        if term < self._term:
            raise ValueError(f"term {term} is older than {self._term}")
        if voted_for is not None and voted_for < 0:
            raise ValueError(f"a node id is not negative: {voted_for}")
        if term == self._term and self._voted_for is not None and voted_for != self._voted_for:
            raise ValueError(f"the vote of term {term} was given to {self._voted_for}, not {voted_for}")

    def _write_temporary(self, path: str, data: bytes) -> None:
        file = self._disk.open(path, create=True)
        try:
            if file.size() != len(data):  # a file of that size is the reserved one: its blocks are kept
                file.truncate(0)
            file.pwrite(data, 0)
            file.fdatasync()
        finally:
            file.close()

    def _keep_room(self) -> None:
        """Allocate the temporary file for the next write: a node has to follow a new term even on a disk that other
        files have filled meanwhile. The space that the rename has freed is enough; without space nothing is reserved.
        """
        with contextlib.suppress(DiskFull):
            file = self._disk.open(self._path + _TEMPORARY_SUFFIX, create=True)
            try:
                file.allocate(0, FILE_BYTES)
            finally:
                file.close()

    def _load(self) -> tuple[int, int | None, bool]:
        if not self._disk.exists(self._path):
            return 0, None, False
        self._disk.sync_directory(self._directory)  # a rename whose sync failed may be visible and not yet durable
        data = self._disk.read_bytes(self._path)
        if len(data) != FILE_BYTES:
            raise HardStateCorruption(self._path, f"the file has {len(data)} bytes instead of {FILE_BYTES}")
        magic, version, voter, term, vote = _BODY.unpack_from(data)
        if crc32c(data[: _BODY.size]) != int.from_bytes(data[_BODY.size :], "little"):
            raise HardStateCorruption(self._path, "its CRC does not match")
        if (magic, version) != (MAGIC, VERSION) or voter not in (0, 1):
            raise HardStateCorruption(self._path, f"its format {magic!r} version {version} is unknown")
        return term, None if vote == _NO_VOTE else vote, bool(voter)


def _encode(term: int, voted_for: int | None, voter: bool) -> bytes:
    body = _BODY.pack(MAGIC, VERSION, voter, term, _NO_VOTE if voted_for is None else voted_for)
    return body + crc32c(body).to_bytes(4, "little")
