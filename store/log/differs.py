"""The `differs` file: it records that this replica was found to differ from the others, until the replica is rebuilt.

The node writes the file before it acts on the finding, so that no restart forgets it: answers and votes of a node with
another state must not count.
"""

from __future__ import annotations

from typing import Final

import msgspec
from crc32c import crc32c

from store.log.disk import Disk

FILE_NAME: Final = "differs"
_MAGIC: Final = b"KMQD"
_CRC_BYTES: Final = 4


class Difference(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """Two replicas are known to be equal up to entry `agreed` and to differ at entry `index`; the entries between are
    unknown. With `records` their logs differ; otherwise equal logs produced different states.
    """

    index: int
    agreed: int
    records: bool

    @property
    def is_exact(self) -> bool:
        """True when `index` is the first entry that differs."""
        return self.index == self.agreed + 1

    def __str__(self) -> str:
        what = "its log" if self.records else "its state"
        if self.is_exact:
            return f"{what} differs from entry {self.index} on"
        return f"{what} differs at entry {self.index}, and not yet at entry {self.agreed}"


UNREADABLE: Final = Difference(0, 0, records=False)
"""Stands for a damaged file: the presence of the file alone proves that the replica differs."""


class DiffersMark:
    """The `differs` file of one node. Loop-only."""

    def __init__(self, disk: Disk, directory: str) -> None:
        """Read the file. Raises DiskError when reading fails."""
        self._disk = disk
        self._directory = directory
        self._path = f"{directory}/{FILE_NAME}"
        self.difference: Difference | None = self._read()
        """The recorded difference; None while the replica is not known to differ."""

    def note(self, difference: Difference) -> None:
        """Store the difference, durably on return. Raises DiskFull with nothing changed; DiskError."""
        if difference == self.difference:
            return
        body = _MAGIC + msgspec.msgpack.encode(difference)
        file = self._disk.open(self._path + ".tmp", create=True)
        try:
            file.truncate(0)
            file.pwrite(body + crc32c(body).to_bytes(_CRC_BYTES, "little"), 0)
            file.fdatasync()
        finally:
            file.close()
        self._disk.rename(self._path + ".tmp", self._path)
        self._disk.sync_directory(self._directory)
        self.difference = difference

    def _read(self) -> Difference | None:
        if not self._disk.exists(self._path):
            return None
        data = self._disk.read_bytes(self._path)
        body, crc = data[:-_CRC_BYTES], int.from_bytes(data[-_CRC_BYTES:], "little")
        if body[: len(_MAGIC)] != _MAGIC or crc32c(body) != crc:
            return UNREADABLE
        try:
            return msgspec.msgpack.decode(body[len(_MAGIC) :], type=Difference)
        except ValueError:
            return UNREADABLE
