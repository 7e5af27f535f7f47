"""Fuzzes the small files beside the log (hard state, synced mark, sidecar, identity): right, or refused with a named
error.
"""

from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cluster.process.data_directory import DataDirectory, Identity
from cluster.process.exit_codes import ExitCode, StartupError
from store.log.errors import HardStateCorruption
from store.log.hard_state import HardState
from store.log.segment import SegmentIndex
from store.log.sidecar import decode_sidecar, encode_sidecar
from store.log.synced_mark import FILE_BYTES, SyncedMark
from tests.fuzz.budget import fuzz
from tests.fuzz.mutation import damaged, integers_at_edges
from tests.simdisk import SimDisk

PATH = "/data/hard_state"
MARK = "/data/synced"
IDENTITY_FILE = b'{"cluster_id":"fuzz","node_id":1,"incarnation":"0123456789abcdef"}'
HEADER_CRC = 7


def disk_with(path: str, data: bytes) -> SimDisk:
    disk = SimDisk(Random(1))
    disk.make_directory("/data")
    file = disk.open(path, create=True)
    file.pwrite(data, 0)
    file.fdatasync()
    file.close()
    return disk


def written_hard_state(term: int = 7, voted_for: int | None = 2) -> bytes:
    disk = SimDisk(Random(1))
    disk.make_directory("/data")
    HardState(disk, PATH).set(term, voted_for)
    return disk.read_bytes(PATH)


@fuzz(300)
@given(damaged(written_hard_state()) | st.binary(max_size=60))
def test_hard_state_is_what_was_written_or_refused(data: bytes) -> None:
    disk = disk_with(PATH, data)
    if data != written_hard_state():
        with pytest.raises(HardStateCorruption):
            HardState(disk, PATH)
    else:
        assert HardState(disk, PATH).term == 7


@fuzz(200)
@given(integers_at_edges(), st.none() | st.integers(0, (1 << 63) - 1))
def test_hard_state_keeps_every_term_and_vote(term: int, voted_for: int | None) -> None:
    data = written_hard_state(term, voted_for)
    again = HardState(disk_with(PATH, data), PATH)
    assert (again.term, again.voted_for) == (term, voted_for)


def written_mark() -> bytes:
    disk = disk_with(MARK, b"")
    mark = SyncedMark.open(disk, "/data")
    mark.set_floor(3, 1000)
    mark.set_progress(3, 2000)
    mark.close()
    return disk.read_bytes(MARK)


@fuzz(300)
@given(damaged(written_mark()) | st.binary(max_size=60))
def test_mark_never_claims_more_than_was_written(data: bytes) -> None:
    disk = disk_with(MARK, data)
    mark = SyncedMark.open(disk, "/data")
    assert mark.position in (0, 1000, 2000)
    mark.close()
    assert len(disk.read_bytes(MARK)) >= FILE_BYTES


def written_sidecar() -> bytes:
    index = SegmentIndex(5)
    for term, size in ((1, 60), (1, 300), (2, 52), (2, 4000)):
        index.append(size, term, bytes(52))
    return encode_sidecar(4096, index, HEADER_CRC)


@fuzz(300)
@given(damaged(written_sidecar()) | st.binary(max_size=120))
def test_sidecar_is_what_was_written_or_none(data: bytes) -> None:
    decoded = decode_sidecar(data, 4096, 60 + 300 + 52 + 4000, 5)
    if decoded is not None:
        assert data == written_sidecar()
        assert list(decoded[0].offsets) == [0, 60, 360, 412]
        assert decoded[1] == HEADER_CRC


@fuzz(150)
@given(data=damaged(IDENTITY_FILE) | st.binary(max_size=40) | st.integers(1, 60_000).map(lambda depth: b"[" * depth))
@example(data=b'{"\xe3luster_id":"fuzz","node_id":1,"incarnation":"a"}')
@example(data=b'{"more":' + b"[" * 60_000)
def test_identity_is_ours_or_the_directory_is_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    directory = tmp_path_factory.getbasetemp() / "identity"
    directory.mkdir(exist_ok=True)
    (directory / "identity").write_bytes(data)
    (directory / "log").mkdir(exist_ok=True)  # without a log it takes a new incarnation
    try:
        DataDirectory.open(directory, Identity("fuzz", 1)).close()
    except StartupError as error:
        code: int = error.code
    else:
        code = ExitCode.STOPPED
    assert code in (ExitCode.STOPPED, ExitCode.DATA_DIR_UNUSABLE)
    assert (directory / "identity").read_bytes() == data
