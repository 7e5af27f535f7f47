"""Frames of a backup, as `GET /v1/backups/{id}` delivers them and a file holds them; docs/backup.md has the bytes."""

import struct
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any, BinaryIO, Final, NamedTuple, Protocol

import msgspec
from crc32c import crc32c

from keelmq.errors import Corrupt
from keelmq.log.log_records import read_records

HEAD: Final = struct.Struct("<4sB3xIQII")
MAGIC: Final = b"KMQF"
BEGIN: Final = 1
STATE: Final = 2
LOG: Final = 3
END: Final = 4
KIND_NAMES: Final = {BEGIN: "begin", STATE: "state", LOG: "log", END: "end"}
FORMAT: Final = 1
FRAME_BYTES_MAX: Final = 80 * 1024 * 1024
_CRC_BYTES: Final = 4
_STATE_DIGEST_BYTES: Final = 16
_FILE_DIGEST_BYTES: Final = 32


class Readable(Protocol):
    """A stream whose `read` returns all that was asked for, except at the end."""

    def read(self, size: int, /) -> bytes: ...


class Frame(NamedTuple):
    kind: int
    number: int
    payload: bytes


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Summary of a backup, which is its first frame. Fields that only a newer broker writes are ignored."""

    format: int
    cluster_id: str
    cluster_uid: str
    node_id: int
    version: str
    created_ms: int
    index: int
    term: int
    state_hash: str
    base_index: int


class Findings(NamedTuple):
    """The result of a verification. The backup is whole if `damage` is empty."""

    summary: Summary | None
    frames: int
    bytes: int
    damage: tuple[str, ...]


def parse_frame(data: bytes, number: int) -> Frame:
    """Return the one frame that `data` holds. Raises Corrupt unless it is whole and has this number."""
    kind, length, payload_crc = _parse_head(data[: HEAD.size], number)
    payload = data[HEAD.size :]
    if len(payload) != length or crc32c(payload) != payload_crc:
        raise Corrupt("checksum_mismatch", f"the content of frame {number} does not match its CRC32C")
    return Frame(kind, number, payload)


def summary_of(frame: Frame) -> Summary:
    """Return the content of the first frame. Raises Corrupt."""
    if frame.kind != BEGIN:
        raise Corrupt("invalid_backup", f"the backup begins with a frame of kind {frame.kind}")
    try:
        summary = msgspec.json.decode(frame.payload, type=Summary)
    except ValueError as exc:
        raise Corrupt("invalid_backup", f"the first frame cannot be read: {exc}") from None
    if summary.format != FORMAT:
        raise Corrupt("invalid_backup", f"the backup has format {summary.format}; this version reads {FORMAT}")
    return summary


def read_summary(file: BinaryIO) -> Summary:
    """Return what the file says of itself, from its first frame alone. Raises Corrupt and OSError."""
    head = file.read(HEAD.size)
    _, length, _ = _parse_head(head, 0)
    return summary_of(parse_frame(head + file.read(length), 0))


def verify(file: Readable) -> Findings:
    """Read the whole file and compare all checksums. Damage within a frame does not end the reading."""
    return _Verification(file).run()


class _Verification:
    def __init__(self, file: Readable) -> None:
        self._file = file
        self._offset = self._number = 0
        self._summary: Summary | None = None
        self._state = blake2b(digest_size=_STATE_DIGEST_BYTES)
        self._all = blake2b(digest_size=_FILE_DIGEST_BYTES)
        self._index = 0
        self._kind = 0
        self._damage: list[str] = []

    def run(self) -> Findings:
        for frame in self._frames():
            if frame.kind < self._kind or (frame.kind == BEGIN) != (frame.number == 0):
                self._found(frame.number, frame.kind, "it is out of its order")
            self._kind = frame.kind
            try:
                self._look_into(frame)
            except Corrupt as exc:
                self._found(frame.number, frame.kind, exc.detail)
        return Findings(self._summary, self._number, self._offset, tuple(self._damage))

    def _frames(self) -> Iterator[Frame]:
        """Yield the intact frames up to the end, or up to a place behind which nothing can be read."""
        kind = 0
        while kind != END:
            begin = self._offset
            head = self._file.read(HEAD.size)
            try:
                kind, length, payload_crc = _parse_head(head, self._number)
            except Corrupt as exc:
                self._damage.append(f"frame {self._number} at byte {begin}: {exc.detail}; nothing behind it is read")
                return
            payload = self._file.read(length)
            if len(payload) < length:
                self._found(self._number, kind, "the file ends within it")
                return
            if crc32c(payload) != payload_crc:
                self._found(self._number, kind, "its content does not match its CRC32C")
            else:
                yield Frame(kind, self._number, payload)
            self._all.update(head)
            self._all.update(payload)
            self._offset += HEAD.size + length
            self._number += 1
        if self._file.read(1):
            self._damage.append(f"the file goes on behind its end, from byte {self._offset} on")

    def _look_into(self, frame: Frame) -> None:
        if frame.kind == BEGIN:
            self._summary = summary_of(frame)
            self._index = self._summary.base_index
        elif frame.kind == STATE:
            self._state.update(frame.payload)
        elif frame.kind == LOG:
            for record in read_records(frame.payload):
                if record.index != self._index + 1 and not self._damage:
                    raise Corrupt("invalid_backup", f"entry {record.index} follows entry {self._index}")
                self._index = record.index
        elif not self._damage:
            self._compare_end(frame)

    def _compare_end(self, frame: Frame) -> None:
        try:
            end: dict[str, Any] = msgspec.json.decode(frame.payload, type=dict[str, Any])
        except ValueError as exc:
            raise Corrupt("invalid_backup", f"it cannot be read: {exc}") from None
        if end.get("digest") != self._all.hexdigest() or end.get("frames") != frame.number:
            raise Corrupt("invalid_backup", "the frames before it are not those of this backup")
        if end.get("state_checksum") != self._state.hexdigest():
            raise Corrupt("invalid_backup", "the state does not match its checksum")
        if self._summary is not None and self._index != self._summary.index:
            raise Corrupt(
                "invalid_backup", f"the log ends with entry {self._index}, the state with entry {self._summary.index}"
            )

    def _found(self, number: int, kind: int, what: str) -> None:
        entry = f", after entry {self._index} of the log" if kind == LOG else ""
        self._damage.append(f"frame {number} ({KIND_NAMES[kind]}) at byte {self._offset}{entry}: {what}")


def _parse_head(head: bytes, number: int) -> tuple[int, int, int]:
    """Return kind, length and CRC of the frame's content. Raises Corrupt unless it is the head of frame `number`."""
    if len(head) < HEAD.size:
        raise Corrupt("invalid_backup", "the file ends before it: the backup was not finished, or was cut")
    magic, kind, length, found, payload_crc, head_crc = HEAD.unpack(head)
    if magic != MAGIC and not number:
        raise Corrupt("invalid_backup", "this is no backup, or its beginning is damaged")
    if magic != MAGIC or crc32c(head[:-_CRC_BYTES]) != head_crc:
        raise Corrupt("checksum_mismatch", "its header does not match its CRC32C")
    if kind not in KIND_NAMES or found != number or length > FRAME_BYTES_MAX:
        raise Corrupt("invalid_backup", f"its header is of frame {found}, kind {kind}, {length} bytes")
    return kind, length, payload_crc
