"""Fuzzes the commit log on disks with any content: it opens with every synced entry, or refuses with a named error."""

import contextlib
import functools
from collections.abc import Mapping
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.log.commit_log import CommitLog, Entry
from store.log.dump import dump_records, verify_log
from store.log.errors import LogError
from store.log.record import KIND_ENTRY, UnsupportedRecord, encode_header
from store.log.segment import segment_name, sidecar_name
from store.log.synced_mark import FILE_NAME as SYNCED_MARK_NAME
from tests.fuzz.budget import fuzz
from tests.fuzz.mutation import damaged, integers_at_edges
from tests.simdisk import SimDisk
from tests.unit.store.logs import DIRECTORY, append_to, open_log, payload_of, sim_disk

LAST_INDEX = 40
FILES_MAX = 4
RECORDS_MAX = 12

Files = Mapping[str, bytes]


@functools.cache
def healthy() -> tuple[dict[str, bytes], dict[int, Entry]]:
    """Return a closed log of several segments: its files, and its entries by index."""
    disk = sim_disk()
    log = open_log(disk)
    append_to(log, LAST_INDEX)
    for index in (10, 20):  # sidecars are written when a segment is sealed or read anew
        log.entry(index)
    entries = {entry.index: entry for entry in log.entries(1, 1 << 30)}
    log.close()
    files = {name: disk.read_bytes(f"{DIRECTORY}/{name}") for name in disk.list(DIRECTORY)}
    return files, entries


def disk_with(files: Files) -> SimDisk:
    disk = SimDisk(Random(1))
    disk.make_directory(DIRECTORY)
    for name, data in files.items():
        file = disk.open(f"{DIRECTORY}/{name}", create=True)
        file.pwrite(data, 0)
        file.fdatasync()
        file.close()
    disk.sync_directory(DIRECTORY)
    return disk


@st.composite
def some_files_damaged(draw: st.DrawFn, *, with_mark: bool) -> dict[str, bytes]:
    files = dict(healthy()[0])
    names = sorted(name for name in files if with_mark or name != SYNCED_MARK_NAME)
    for name in draw(st.lists(st.sampled_from(names), min_size=1, max_size=FILES_MAX, unique=True)):
        files[name] = draw(damaged(files[name]))
    return files


@st.composite
def forged_segment(draw: st.DrawFn) -> bytes:
    """Draw records with right checksums and arbitrary fields, with noise between them."""
    parts = []
    position = 0
    for number in range(draw(st.integers(0, RECORDS_MAX))):
        payload = payload_of(number, draw(st.integers(0, 60)))
        fields = {
            "kind": draw(st.sampled_from((1, 1, 1, 2, 0, 3, 255))),
            "length": draw(st.just(len(payload)) | integers_at_edges()) % (1 << 32),
            "index": draw(st.just(number + 1) | integers_at_edges()),
            "term": draw(st.just(1) | integers_at_edges()),
            "position": draw(st.just(position) | integers_at_edges()),
            "synced": draw(st.just(0) | integers_at_edges()),
        }
        record = (
            encode_header(
                fields["kind"],
                fields["length"],
                draw(st.just(0) | st.integers(0, 0xFFFFFFFF)),
                fields["index"],
                fields["term"],
                fields["position"],
                fields["synced"],
            )
            + payload
        )
        parts += [record, draw(st.just(b"") | st.binary(max_size=20) | st.integers(1, 600).map(bytes))]
        position += len(record)
    return b"".join(parts)


@st.composite
def forged_directory(draw: st.DrawFn) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    for _ in range(draw(st.integers(0, FILES_MAX))):
        start = draw(st.just(0) | st.integers(0, 10**20 - 1) | st.integers(0, 9000))
        content = forged_segment() | st.binary(max_size=300) | damaged(healthy()[0][segment_name(0)])
        files[segment_name(start)] = draw(content)
        files[sidecar_name(start)] = draw(st.binary(max_size=100) | damaged(healthy()[0][sidecar_name(0)]))
    files[SYNCED_MARK_NAME] = draw(st.just(b"") | st.binary(max_size=60) | damaged(healthy()[0][SYNCED_MARK_NAME]))
    return files


def look_at(disk: SimDisk) -> None:
    """Check that the operator's tools never change anything, and end."""
    before = {name: disk.read_bytes(f"{DIRECTORY}/{name}") for name in disk.list(DIRECTORY)}
    for action in (lambda: list(dump_records(disk, DIRECTORY)), lambda: verify_log(disk, DIRECTORY)):
        with contextlib.suppress(LogError, UnsupportedRecord):
            action()
    assert {name: disk.read_bytes(f"{DIRECTORY}/{name}") for name in disk.list(DIRECTORY)} == before


def opened(disk: SimDisk, applied_index: int) -> CommitLog | None:
    try:
        return open_log(disk, applied_index=applied_index)
    except LogError:
        assert not disk.open_files, "a log that did not open leaves files open"
        return None


@fuzz(500)
@given(some_files_damaged(with_mark=False), st.integers(0, LAST_INDEX))
def test_damage_never_changes_or_shortens_what_was_synced(files: dict[str, bytes], applied_index: int) -> None:
    disk = disk_with(files)
    look_at(disk)
    log = opened(disk, applied_index)
    if log is None:
        return
    assert log.last_index >= LAST_INDEX
    for index, entry in healthy()[1].items():
        try:
            assert log.entry(index) == entry
            assert log.term_at(index) == entry.term
        except LogError:
            continue
    log.close()


@fuzz(600)
@given(some_files_damaged(with_mark=True) | forged_directory(), st.integers(0, 2 * LAST_INDEX))
def test_a_directory_of_anything_opens_or_is_refused_by_name(files: dict[str, bytes], applied_index: int) -> None:
    disk = disk_with(files)
    look_at(disk)
    log = opened(disk, applied_index)
    if log is None:
        return
    for index in {log.first_index, log.last_index, (log.first_index + log.last_index) // 2}:
        for read in (lambda i: log.entry(i), lambda i: log.entries(i, 1000)):
            with contextlib.suppress(LogError):
                read(index)
    try:
        log.append(log.last_index + 1, log.last_term, KIND_ENTRY, b"new")
        log.sync()
    except LogError:
        return
    last = log.last_index
    log.close()
    again = open_log(disk)
    assert again.last_index == last
    assert again.entry(last).payload == b"new"
    again.close()


def test_the_healthy_log_has_what_is_damaged_here() -> None:
    files, entries = healthy()
    assert len(entries) == LAST_INDEX
    suffixes = [name[-4:] for name in files]
    assert suffixes.count(".log") > 2
    assert suffixes.count(".idx") > 1
    log = open_log(disk_with(files))
    assert log.last_index == LAST_INDEX
    log.close()


@pytest.mark.parametrize("name", ["x.log", "0.log", segment_name(0) + ".old"])
def test_files_of_others_are_left_alone(name: str) -> None:
    disk = disk_with({**healthy()[0], name: b"KMQR"})
    log = open_log(disk)
    assert name in log.recovery.ignored_files
    log.close()
    assert disk.read_bytes(f"{DIRECTORY}/{name}") == b"KMQR"
