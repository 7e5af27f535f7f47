"""The frames of a backup: read back as they were made, and every changed byte is found and has a place."""

import io
from hashlib import blake2b

import pytest
from crc32c import crc32c

from store.log.record import KIND_ENTRY, encode_header
from store.snapshots.backup_frames import (
    FORMAT,
    LOG,
    STATE,
    BackupDamaged,
    BackupReader,
    Begin,
    FrameEncoder,
    records_of,
)

BEGIN = Begin(
    format=FORMAT,
    cluster_id="shop",
    cluster_uid="uid",
    node_id=1,
    version="0.3.0",
    feature_level=1,
    feature_version="",
    created_ms=1,
    index=8,
    term=1,
    state_hash="00",
    state_format="3",
    base_position=104,
    base_index=7,
    base_term=1,
    estimated_pairs=1,
    log_bytes=60,
)
RECORD = encode_header(KIND_ENTRY, 4, crc32c(b"body"), 8, 1, 104, 0) + b"body"


def backup(*kinds: int, state: bytes = b"pairs") -> bytes:
    encoder = FrameEncoder()
    parts = [encoder.begin(BEGIN)]
    parts += [encoder.frame(kind, RECORD if kind == LOG else state) for kind in kinds or (STATE, STATE, LOG)]
    return b"".join((*parts, encoder.end(2, b"\x01" * 16)))


def read(data: bytes) -> BackupReader:
    reader = BackupReader(io.BytesIO(data))
    for frame in reader.frames():
        if frame.kind == LOG:
            assert [(header.index, payload) for header, payload in records_of(frame)] == [(8, b"body")]
    return reader


def test_a_backup_is_read_as_it_was_made() -> None:
    reader = read(backup())
    assert reader.begin == BEGIN
    assert reader.end is not None
    assert (reader.end.pairs, reader.end.frames, reader.end.state_checksum) == (2, 4, "01" * 16)


def test_every_changed_byte_and_every_cut_is_found() -> None:
    whole = backup()
    for at in range(len(whole)):
        with pytest.raises(BackupDamaged, match="frame"):
            read(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        with pytest.raises(BackupDamaged, match="ends"):
            read(whole[:at])


def test_frames_of_another_backup_or_order_are_refused() -> None:
    with pytest.raises(BackupDamaged, match="out of its order"):
        read(backup(LOG, STATE))
    one, another = backup(STATE, LOG), backup(STATE, LOG, state=b"parts")
    end = one.rindex(b"KMQF")
    with pytest.raises(BackupDamaged, match="not those of this backup"):
        read(one[:end] + another[end:])
    with pytest.raises(BackupDamaged, match="goes on behind its end"):
        read(one + b"\0")


def test_a_record_that_does_not_match_its_checksum_is_found_behind_a_frame_that_does() -> None:
    encoder = FrameEncoder()
    data = encoder.begin(BEGIN) + encoder.frame(LOG, RECORD[:-1] + b"?") + encoder.end(0, b"")
    with pytest.raises(BackupDamaged, match=r"frame 1 .* record at its byte 0"):
        read(data)


def test_the_bytes_of_a_format_never_change() -> None:
    """A backup may be read years later. If this fails, the new form of the file needs a new FORMAT."""
    assert FORMAT == 1
    assert blake2b(backup(), digest_size=16).hexdigest() == "a1977267da1117803c8c0664e25ad4c5"
