"""The backup file: the state as of one applied entry, and the records of the log up to it, in frames with checksums.

    begin | state ... | log ... | end

The node that is asked makes the frames one after the other, and whoever asks writes them into a file as they are
(docs/backup.md has the bytes). Every frame has its number and two CRCs, so that damage has a place; the end holds a
digest of all bytes before, which is the name of the backup.
"""

import struct
from collections.abc import Iterator
from hashlib import blake2b
from typing import BinaryIO, Final, NamedTuple, TypeVar

import msgspec
from crc32c import crc32c

from store.log.base import LogBase
from store.log.record import HEADER_BYTES, Header, UnsupportedRecord, parse_header

BEGIN: Final = 1
STATE: Final = 2
LOG: Final = 3
END: Final = 4
KIND_NAMES: Final = {BEGIN: "begin", STATE: "state", LOG: "log", END: "end"}
FORMAT: Final = 1
FRAME_BYTES_MAX: Final = 80 * 1024 * 1024
"""Maximum payload of a frame: one record of the largest size fits."""
_MAGIC: Final = b"KMQF"
_BODY: Final = struct.Struct("<4sB3xIQI")
_HEAD: Final = struct.Struct("<4sB3xIQII")
_DIGEST_BYTES: Final = 32

_Content = TypeVar("_Content", bound=msgspec.Struct)


class BackupDamaged(Exception):
    """The file is no whole backup, or one of another format; the text names the place. None of it may be used."""


class Begin(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the first frame. The log's records follow `base`, and end with `index`, which is also the last
    entry that the state holds.
    """

    format: int
    cluster_id: str
    cluster_uid: str
    node_id: int
    version: str
    feature_level: int
    feature_version: str
    created_ms: int
    index: int
    term: int
    state_hash: str
    state_format: str
    base_position: int
    base_index: int
    base_term: int
    estimated_pairs: int
    log_bytes: int

    @property
    def base(self) -> LogBase:
        return LogBase(self.base_position, self.base_index, self.base_term)


class End(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the last frame: what the frames before it must amount to."""

    pairs: int
    state_checksum: str
    frames: int
    digest: str


class Frame(NamedTuple):
    kind: int
    number: int
    payload: bytes
    offset: int
    """Place where the frame begins in the file."""

    def __str__(self) -> str:
        return f"frame {self.number} ({KIND_NAMES[self.kind]}) at byte {self.offset}"


class FrameEncoder:
    """Makes the frames of one backup, in their order."""

    def __init__(self) -> None:
        self._digest = blake2b(digest_size=_DIGEST_BYTES)
        self.frames = 0
        self.bytes = 0

    def frame(self, kind: int, payload: bytes) -> bytes:
        body = _BODY.pack(_MAGIC, kind, len(payload), self.frames, crc32c(payload))
        frame = b"".join((body, crc32c(body).to_bytes(4, "little"), payload))
        self._digest.update(frame)
        self.frames += 1
        self.bytes += len(frame)
        return frame

    def begin(self, begin: Begin) -> bytes:
        return self.frame(BEGIN, msgspec.json.encode(begin))

    def end(self, pairs: int, state_checksum: bytes) -> bytes:
        end = End(pairs=pairs, state_checksum=state_checksum.hex(), frames=self.frames, digest=self._digest.hexdigest())
        return self.frame(END, msgspec.json.encode(end))


class BackupReader:
    """Reads a backup from a file, frame by frame. Every frame that is returned is intact and in its place.

    Invariant: when `frames` has ended without BackupDamaged, all of the file was read, and it was whole.
    """

    def __init__(self, file: BinaryIO) -> None:
        """Read the first frame. Raises BackupDamaged, and OSError."""
        self._file = file
        self._digest = blake2b(digest_size=_DIGEST_BYTES)
        self._offset = self._number = 0
        first = self._next()
        if first.kind != BEGIN:
            raise BackupDamaged(f"{first}: a backup does not begin with it")
        self.begin = _decoded(first, Begin)
        if self.begin.format != FORMAT:
            raise BackupDamaged(f"its format is {self.begin.format}, this version reads {FORMAT}")
        self.end: End | None = None

    def frames(self) -> Iterator[Frame]:
        """Yield the frames of the state, then the frames of the log; `end` is known afterwards."""
        kind = STATE
        while True:
            digest = self._digest.hexdigest()
            frame = self._next()
            if frame.kind == END:
                end = _decoded(frame, End)
                if (end.frames, end.digest) != (frame.number, digest):
                    raise BackupDamaged(f"{frame}: the frames before it are not those of this backup")
                if self._file.read(1):
                    raise BackupDamaged(f"the file goes on behind its end, from byte {self._offset} on")
                self.end = end
                return
            if frame.kind not in (kind, LOG):
                raise BackupDamaged(f"{frame} is out of its order")
            kind = frame.kind
            yield frame

    def _next(self) -> Frame:
        where = f"frame {self._number} at byte {self._offset}"
        head = self._file.read(_HEAD.size)
        if len(head) < _HEAD.size:
            raise BackupDamaged(f"{where}: the file ends before it: the backup was not finished, or was cut")
        magic, kind, length, number, payload_crc, head_crc = _HEAD.unpack(head)
        if magic != _MAGIC and not self._number:
            raise BackupDamaged(f"{where}: this is no backup, or its beginning is damaged")
        if magic != _MAGIC or crc32c(head[: _BODY.size]) != head_crc:
            raise BackupDamaged(f"{where}: its header does not match its CRC32C")
        if kind not in KIND_NAMES or number != self._number or length > FRAME_BYTES_MAX:
            raise BackupDamaged(f"{where}: its header is of frame {number}, kind {kind}, {length} bytes")
        payload = self._file.read(length)
        if len(payload) < length:
            raise BackupDamaged(f"{where}: the file ends within it: the backup was not finished, or was cut")
        if crc32c(payload) != payload_crc:
            raise BackupDamaged(f"{where} ({KIND_NAMES[kind]}): its content does not match its CRC32C")
        self._digest.update(head)
        self._digest.update(payload)
        frame = Frame(kind, number, payload, self._offset)
        self._offset += len(head) + length
        self._number += 1
        return frame


def records_of(frame: Frame) -> Iterator[tuple[Header, bytes]]:
    """Yield the records of a frame of the log, each with its payload. Raises BackupDamaged."""
    data = frame.payload
    at = 0
    while at < len(data):
        try:
            header = parse_header(data, at)
        except UnsupportedRecord as error:
            raise BackupDamaged(f"{frame}: a record of a later version: {error}") from error
        payload = b"" if header is None else data[at + HEADER_BYTES : at + HEADER_BYTES + header.payload_length]
        if header is None or len(payload) != header.payload_length or crc32c(payload) != header.payload_crc:
            raise BackupDamaged(f"{frame}: the record at its byte {at} does not match its CRC32C")
        yield header, payload
        at += HEADER_BYTES + header.payload_length


def _decoded(frame: Frame, kind: type[_Content]) -> _Content:
    try:
        return msgspec.json.decode(frame.payload, type=kind)
    except ValueError as error:
        raise BackupDamaged(f"{frame}: {error}") from None
