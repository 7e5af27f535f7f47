"""Records of the commit log as `GET /v1/log` delivers them; docs/log-format.md describes the byte layout."""

import struct
from collections.abc import Iterator
from typing import Any, Final

import msgspec
from crc32c import crc32c

from keelmq.errors import Corrupt

HEADER: Final = struct.Struct("<4sBBHIIQQQQI")
MAGIC: Final = b"KMQR"
VERSION: Final = 1
KIND_ENTRY: Final = 1
KIND_NOOP: Final = 2
KIND_CONFIG: Final = 3
KIND_NAMES: Final = {KIND_ENTRY: "entry", KIND_NOOP: "no-op", KIND_CONFIG: "config"}

COMMAND_NAMES: Final = {
    1: "put-topic",
    2: "delete-topic",
    3: "produce",
    4: "prepare",
    5: "decide",
    6: "record-checks",
    7: "discard",
    8: "set-check-url",
    9: "join-group",
    10: "leave-group",
    11: "commit-offsets",
    12: "reset-offsets",
    13: "give-back",
    14: "fire-timers",
    15: "cancel-scheduled",
    16: "resume-transaction",
    17: "put-settings",
    18: "put-group",
    19: "replay-dead-letters",
    20: "clone-offsets",
    21: "expire-messages",
    22: "sweep-index",
    23: "pop",
    24: "ack-popped",
    25: "change-invisible",
    26: "expire-popped",
    27: "delete-group",
    28: "release-messages",
    29: "put-user",
    30: "delete-user",
    31: "purge-topic",
    32: "count-bytes",
    33: "pause-group",
}


class LogRecord(msgspec.Struct, frozen=True):
    """One record of the commit log; `size` is its length in bytes, header included."""

    index: int
    term: int
    kind: int
    position: int
    size: int
    payload: bytes

    @property
    def kind_name(self) -> str:
        return KIND_NAMES.get(self.kind, str(self.kind))


class EntryHeader(msgspec.Struct, array_like=True, frozen=True):
    """Header of an entry: the leader's clock, and the commands, each a list that begins with its tag.

    `in_doubt` says that the leader was not sure of the time. `by` has each authenticated principal with the ordinals of
    the commands that it asked for; commands of messages and consumers have none.
    """

    timestamp_ms: int
    commands: list[list[Any]]
    in_doubt: bool = False
    by: list[tuple[str, list[int]]] = []

    @property
    def command_names(self) -> list[str]:
        return [COMMAND_NAMES.get(command[0], str(command[0])) for command in self.commands]

    @property
    def principals(self) -> list[str | None]:
        """The principal of each command; None without one."""
        named = {ordinal: principal for principal, ordinals in self.by for ordinal in ordinals}
        return [named.get(ordinal) for ordinal in range(len(self.commands))]


_decode_header = msgspec.msgpack.Decoder(EntryHeader).decode


def read_records(data: bytes) -> Iterator[LogRecord]:
    """Decode the records in `data`; header and payload are checked against their CRC32C. Raises Corrupt."""
    begin = 0
    while begin < len(data):
        record = _read_record(data, begin)
        yield record
        begin += record.size


def _read_record(data: bytes, begin: int) -> LogRecord:
    if len(data) - begin < HEADER.size:
        raise Corrupt("invalid_log", f"{len(data) - begin} bytes are left at {begin}, a header has {HEADER.size}")
    fields = HEADER.unpack_from(data, begin)
    magic, version, kind, _, length, payload_crc, index, term, position, _, header_crc = fields
    if magic != MAGIC or version != VERSION:
        raise Corrupt("invalid_log", f"no record of version {VERSION} at byte {begin}: {magic!r}, version {version}")
    if crc32c(data[begin : begin + HEADER.size - 4]) != header_crc:
        raise Corrupt("checksum_mismatch", f"the record header at byte {begin} does not match its CRC32C")
    payload = data[begin + HEADER.size : begin + HEADER.size + length]
    if len(payload) != length or crc32c(payload) != payload_crc:
        raise Corrupt("checksum_mismatch", f"the payload of the record with index {index} does not match its CRC32C")
    return LogRecord(index, term, kind, position, HEADER.size + length, payload)


def entry_header(record: LogRecord) -> EntryHeader | None:
    """Return the commands of an entry; None for a no-op and for a cluster configuration. Raises Corrupt."""
    if record.kind != KIND_ENTRY:
        return None
    try:
        (length,) = struct.unpack_from("<I", record.payload)
        header = _decode_header(record.payload[4 : 4 + length])
    except (struct.error, ValueError, RecursionError) as exc:
        raise Corrupt("invalid_log", f"the entry with index {record.index} has no readable header: {exc}") from exc
    if not all(command and isinstance(command[0], int) for command in header.commands):
        raise Corrupt("invalid_log", f"the entry with index {record.index} has a command without a tag")
    return header
