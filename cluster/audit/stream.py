"""One stream of audit records on the disk: JSON lines in numbered files, the oldest of which is removed for a new one.

    audit/calls-00000001.jsonl     calls that were allowed, up to FILES files of equal size
    audit/denied-00000001.jsonl    calls that were denied, which anybody can cause: they push out no others

Nothing is synced: a killed process loses no line that was written, a power cut what the kernel had not written yet. A
line that was cut short is removed when the file is opened again.
"""

import contextlib
import errno
import re
from collections.abc import Callable, Sequence
from typing import Final, Literal, NamedTuple

import msgspec

from cluster.audit.record import AuditRecord, decoder, line_of
from store.log.disk import Disk, File
from store.log.errors import DiskError

Name = Literal["calls", "denied"]
NAMES: Final[tuple[Name, ...]] = ("calls", "denied")
DIRECTORY: Final = "audit"
FILES: Final = 4
"""Maximum number of files of a stream."""
PIECE_BYTES: Final = 64 * 1024
"""Maximum bytes that one step reads and decodes: about 300 records, 0.5 ms of the interpreter if none of them matches
and 1.1 ms if all do."""
CLOCK_STEP_MS: Final = 3_600_000
"""A search for records since some time ends at one that is older by more than this: a wall clock that was put back by
less hides nothing.
"""


class Place(NamedTuple):
    """A place between two lines: `end` bytes of the file with this number lie before it."""

    file: int
    end: int


class Found(NamedTuple):
    """A record, and the places before and after its line."""

    record: AuditRecord
    begin: Place
    end: Place


class Look(NamedTuple):
    """The result of one step: records with the newest first, where the next step goes on (None: nothing is older), and
    the number of lines and files that could not be read.
    """

    found: list[Found]
    rest: Place | None
    unreadable: int


class AuditStream:
    """Writes and reads one stream. Every method waits for the disk; one thread at a time may call them."""

    def __init__(self, disk: Disk, directory: str, name: Name, file_bytes_max: int) -> None:
        """Create it; the files are opened by the first use. A file is not larger than `file_bytes_max`, nor than one
        call of `append` is.
        """
        self._disk = disk
        self._directory = directory
        self._pattern = re.compile(rf"{name}-([0-9]{{8,18}})\.jsonl")
        self._name = name
        self._file_bytes_max = file_bytes_max
        self._numbers: list[int] = []
        """Numbers of the files, the oldest first; records are appended to the last one."""
        self._file: File | None = None
        self._end = 0

    def append(self, records: Sequence[AuditRecord]) -> None:
        """Write the records behind all others. Raises DiskError, and then none of them is in the file."""
        data = b"".join(map(line_of, records))
        file = self._open()
        if self._end and self._end + len(data) > self._file_bytes_max:
            file = self._begin_file()
        try:
            file.pwrite(data, self._end)
        except DiskError:
            with contextlib.suppress(DiskError):  # the next write replaces it in any case
                file.truncate(self._end)
            raise
        self._end += len(data)

    def newest(self) -> Place | None:
        """Return the place behind the last record; None without files. Raises DiskError."""
        self._open()
        return Place(self._numbers[-1], self._end) if self._numbers else None

    def look(self, place: Place, matches: Callable[[AuditRecord], bool], since_ms: int | None) -> Look:
        """Read up to PIECE_BYTES before the place. A place in a file that was removed has nothing before it."""
        try:
            self._open()
        except DiskError:
            return Look([], None, 1)
        if place.file not in self._numbers:
            return Look([], None, 0)
        try:
            begin, data = self._read_before(place)
        except DiskError:
            return Look([], self._before(place.file), 1)
        end = begin + len(data)
        if begin:  # the first line begins earlier, or is damaged if no line begins in the piece
            first = data.find(b"\n") + 1
            if not first:
                return Look([], Place(place.file, begin), 1)
            if first == len(data):  # the only line is longer than a piece: nobody wrote it
                return Look([], Place(place.file, end - 1), 1)
            begin, data = begin + first, data[first:]
        rest = Place(place.file, begin) if begin else self._before(place.file)
        return _look_at(data, place.file, begin, rest, matches, since_ms)

    def close(self) -> None:
        """Close the file to which records are appended; the next use opens it again."""
        if self._file is not None:
            with contextlib.suppress(DiskError):
                self._file.close()
            self._file = None

    def _before(self, number: int) -> Place | None:
        """Return the end of the file before this one; None if there is none, or no readable one."""
        older = [each for each in self._numbers if each < number]
        while older:
            path = self._path(older[-1])
            with contextlib.suppress(DiskError), contextlib.closing(self._disk.open(path)) as file:
                return Place(older[-1], file.size())
            older.pop()
        return None

    def _read_before(self, place: Place) -> tuple[int, bytes]:
        """Return where the piece before the place begins, and its bytes. Raises DiskError."""
        if place.file == self._numbers[-1]:
            file = self._open()
            end = min(place.end, self._end)
            return _piece(file, end)
        with contextlib.closing(self._disk.open(self._path(place.file))) as file:
            return _piece(file, min(place.end, file.size()))

    def _open(self) -> File:
        """Return the file to which records are appended, without what follows its last whole line. Raises DiskError."""
        if self._file is not None:
            return self._file
        self._disk.make_directory(self._directory)
        found = map(self._pattern.fullmatch, self._disk.list(self._directory))
        self._numbers = sorted(int(each[1]) for each in found if each is not None)
        if not self._numbers:
            return self._begin_file()
        file = self._disk.open(self._path(self._numbers[-1]))
        try:
            self._end = _end_of_lines(file)
            file.truncate(self._end)
        except DiskError:
            file.close()
            raise
        self._file = file
        return file

    def _begin_file(self) -> File:
        """Remove the oldest files beyond the bound, and begin a new one. Raises DiskError; nothing is begun then."""
        while len(self._numbers) >= FILES:
            try:
                self._disk.unlink(self._path(self._numbers[0]))
            except DiskError as error:
                if error.errno != errno.ENOENT:  # somebody has removed it already
                    raise
            del self._numbers[0]
        number = self._numbers[-1] + 1 if self._numbers else 1
        file = self._disk.open(self._path(number), create=True)
        self.close()
        self._numbers.append(number)
        self._file, self._end = file, 0
        return file

    def _path(self, number: int) -> str:
        return f"{self._directory}/{self._name}-{number:08d}.jsonl"


def _piece(file: File, end: int) -> tuple[int, bytes]:
    begin = max(end - PIECE_BYTES, 0)
    return begin, file.pread(end - begin, begin) if end else b""


def _end_of_lines(file: File) -> int:
    """Return the place behind the last line end of the file. Raises DiskError."""
    end = file.size()
    while end:
        begin, data = _piece(file, end)
        found = data.rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        end = begin
    return 0


def _look_at(
    data: bytes,
    number: int,
    begin: int,
    rest: Place | None,
    matches: Callable[[AuditRecord], bool],
    since_ms: int | None,
) -> Look:
    """Decode the lines of `data`, which begin at `begin`, from the last to the first."""
    found: list[Found] = []
    unreadable, end = 0, len(data)
    while end:
        start = data.rfind(b"\n", 0, end - 1) + 1
        try:
            record = decoder.decode(data[start:end])
        except (msgspec.MsgspecError, ValueError, RecursionError):
            unreadable += 1
        else:
            if since_ms is not None and record.at_ms < since_ms - CLOCK_STEP_MS:
                return Look(found, None, unreadable)
            if matches(record):
                found.append(Found(record, Place(number, begin + start), Place(number, begin + end)))
        end = start
    return Look(found, rest, unreadable)
