from __future__ import annotations

from store.log.dump import Finding, dump_records, verify_log
from store.log.record import HEADER_BYTES, KIND_ENTRY, encode_header
from store.log.segment import segment_name, sidecar_name
from tests.simdisk import SimDisk
from tests.unit.store.logs import DIRECTORY, append_to, path_of, position_of, segment_paths, sim_disk, synced_log


def closed_log(last_index: int) -> SimDisk:
    disk = sim_disk()
    synced_log(disk, last_index).close()
    return disk


def test_dump_lists_records_across_segments() -> None:
    disk = closed_log(40)
    lines = list(dump_records(disk, DIRECTORY))
    assert [line.raft_index for line in lines] == list(range(1, 41))
    assert (lines[0].kind, lines[0].term, lines[0].payload_length) == ("no-op", 0, 0)
    assert lines[1] == (segment_name(0), HEADER_BYTES, 2, 1, "entry", 300, HEADER_BYTES, "")
    assert len({line.segment for line in lines}) == 4
    assert [line.raft_index for line in dump_records(disk, DIRECTORY, 11, 14)] == [11, 12, 13, 14]
    assert not disk.open_files


def test_verify_an_intact_log() -> None:
    disk = closed_log(40)
    report = verify_log(disk, DIRECTORY)
    assert report.intact
    assert report.findings == ()
    assert (report.segments, report.records, report.first_index, report.last_index) == (4, 40, 1, 40)
    assert report.end_position == report.synced_position == position_of(41)


def test_verify_a_log_without_segments() -> None:
    """The node lost its power before its first segment had a name."""
    disk = sim_disk()
    disk.make_directory(DIRECTORY)
    report = verify_log(disk, DIRECTORY)
    assert (report.intact, report.segments, report.records, report.last_index) == (True, 0, 0, None)
    assert list(dump_records(disk, DIRECTORY)) == []


def test_verify_misses_the_segments_of_a_log_that_was_synced() -> None:
    disk = closed_log(5)
    disk.remove(path_of(0))
    report = verify_log(disk, DIRECTORY)
    assert not report.intact
    assert report.synced_position > report.end_position == 0


def test_verify_reports_every_damaged_record_and_goes_on() -> None:
    disk = closed_log(40)
    disk.damage(path_of(0), position_of(5) + 100, b"\x00")
    disk.damage(path_of(0), position_of(8), b"\x00")
    second = segment_paths(disk)[1]
    disk.damage(second, 0, b"\x00")
    report = verify_log(disk, DIRECTORY)
    assert not report.intact
    assert [(f.segment, f.position, f.raft_index) for f in report.findings] == [
        (segment_name(0), position_of(5), 5),
        (segment_name(0), position_of(8), 8),
        (second.removeprefix(f"{DIRECTORY}/"), position_of(13), 13),
    ]
    assert report.records == 37
    assert not disk.open_files


def test_verify_tells_an_unsynced_tail_from_damage() -> None:
    disk = sim_disk()
    log = synced_log(disk, 5)
    append_to(log, 6)
    disk.kill_process()
    disk.damage(path_of(0), position_of(6) + 100, b"\x00")
    report = verify_log(disk, DIRECTORY)
    assert report.intact
    assert [(f.position, f.harmless) for f in report.findings] == [(position_of(6), True)]
    disk.damage(path_of(0), position_of(5) + 100, b"\x00")
    report = verify_log(disk, DIRECTORY)
    assert not report.intact
    assert next((f.position, f.harmless) for f in report.findings) == (position_of(5), False)


def test_verify_finds_a_missing_segment_and_a_lost_tail() -> None:
    disk = closed_log(40)
    _, second, _, last = segment_paths(disk)
    disk.remove(second)
    disk.remove(last)
    report = verify_log(disk, DIRECTORY)
    assert not report.intact
    missing, lost = report.findings
    assert "no segment covers" in missing.detail
    assert f"{DIRECTORY}/{missing.segment}" == second
    assert f"synced up to position {position_of(41)}" in lost.detail


def test_verify_finds_surplus_bytes() -> None:
    disk = closed_log(40)
    size = len(disk.read_bytes(path_of(0)))
    disk.cut(path_of(0), size + 10)
    assert [f.harmless for f in verify_log(disk, DIRECTORY).findings] == [True]
    disk.damage(path_of(0), size + 5, b"x")
    assert [f.harmless for f in verify_log(disk, DIRECTORY).findings] == [False]


def test_verify_finds_records_out_of_order_and_of_newer_versions() -> None:
    disk = closed_log(6)
    end = position_of(7)
    disk.damage(path_of(0), end, encode_header(KIND_ENTRY, 0, 0, 9, 1, end, 0))
    disk.damage(path_of(0), end + HEADER_BYTES, encode_header(7, 0, 0, 10, 1, end + HEADER_BYTES, 0))
    details = [finding.detail for finding in verify_log(disk, DIRECTORY).findings]
    assert details[0] == "index 9 of term 1 follows 6 of term 1"
    assert "kind 7" in details[1]


def test_a_bad_sidecar_is_harmless() -> None:
    disk = closed_log(40)
    name = sidecar_name(0)
    disk.damage(f"{DIRECTORY}/{name}", 50, b"\xff")
    expected = Finding(name, 0, None, True, "does not match its segment; it is rebuilt when needed")
    assert verify_log(disk, DIRECTORY).findings == (expected,)
    disk.remove(f"{DIRECTORY}/{name}")
    report = verify_log(disk, DIRECTORY)
    assert report.intact
    assert [f.segment for f in report.findings] == [name]


def test_verify_changes_nothing() -> None:
    disk = closed_log(40)
    disk.damage(path_of(0), position_of(5) + 100, b"\x00")
    before = {name: disk.read_bytes(f"{DIRECTORY}/{name}") for name in disk.list(DIRECTORY)}
    verify_log(disk, DIRECTORY)
    assert {name: disk.read_bytes(f"{DIRECTORY}/{name}") for name in disk.list(DIRECTORY)} == before
