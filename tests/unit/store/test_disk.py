"""`PosixDisk` and the commit log work on a real directory."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from store.log.commit_log import CommitLog
from store.log.disk import PosixDisk
from store.log.errors import DiskError, DiskFull
from store.log.hard_state import HardState
from store.log.record import KIND_ENTRY
from tests.unit.store.logs import payload_of

DISK = PosixDisk()


def test_read_write_truncate(tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    assert not DISK.exists(path)
    file = DISK.open(path, create=True)
    file.pwrite(memoryview(b"hello world"), 3)
    file.fdatasync()
    assert file.size() == 14
    assert file.pread(100, 0) == b"\0\0\0hello world"
    assert file.pread(5, 14) == b""
    other = DISK.open(path)
    file.truncate(8)
    assert other.pread(100, 3) == b"hello"
    assert DISK.read_bytes(path) == b"\0\0\0hello"
    file.close()
    other.close()


def test_names(tmp_path: Path) -> None:
    directory = str(tmp_path / "a" / "b")
    DISK.make_directory(directory)
    DISK.make_directory(directory)
    for name in ("two", "one"):
        DISK.open(f"{directory}/{name}", create=True).close()
    assert DISK.list(directory) == ["one", "two"]
    DISK.rename(f"{directory}/one", f"{directory}/two")
    DISK.sync_directory(directory)
    assert DISK.list(directory) == ["two"]
    DISK.unlink(f"{directory}/two")
    assert DISK.list(directory) == []
    assert DISK.free_bytes(directory) > 0


def test_errors_name_operation_and_path(tmp_path: Path) -> None:
    path = str(tmp_path / "missing")
    calls: list[tuple[str, Callable[[], object]]] = [
        ("open", lambda: DISK.open(path)),
        ("list", lambda: DISK.list(path)),
        ("unlink", lambda: DISK.unlink(path)),
        ("rename", lambda: DISK.rename(path, path + "2")),
        ("read", lambda: DISK.read_bytes(path)),
        ("sync directory", lambda: DISK.sync_directory(path)),
    ]
    for operation, call in calls:
        with pytest.raises(DiskError, match=f"{operation} {path}: No such file") as caught:
            call()
        assert (caught.value.errno, caught.value.path) == (errno.ENOENT, path)


def test_allocate_reserves_zeros(tmp_path: Path) -> None:
    file = DISK.open(str(tmp_path / "file"), create=True)
    file.pwrite(b"data", 0)
    file.allocate(4, 100_000)
    assert file.pread(200_000, 0) == b"data" + bytes(100_000)
    assert os.stat(tmp_path / "file").st_blocks * 512 >= 100_000
    file.close()


def test_allocate_without_file_system_support_writes_zeros(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(descriptor: int, offset: int, length: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "not supported")

    monkeypatch.setattr(os, "posix_fallocate", unsupported)
    file = DISK.open(str(tmp_path / "file"), create=True)
    file.pwrite(b"data", 0)
    file.allocate(4, 3_000_000)
    assert file.pread(4_000_000, 0) == b"data" + bytes(3_000_000)
    assert os.stat(tmp_path / "file").st_blocks * 512 >= 3_000_000
    file.close()


def test_allocate_on_a_full_disk_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, offset: int, length: int) -> None:
        os.ftruncate(descriptor, offset + length // 2)  # some file systems leave what they got
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    file = DISK.open(str(tmp_path / "file"), create=True)
    file.pwrite(b"data", 0)
    with pytest.raises(DiskFull):
        file.allocate(4, 100_000)
    assert file.size() == 4
    file.close()


def test_short_reads_and_writes_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pread, pwrite = os.pread, os.pwrite
    monkeypatch.setattr(os, "pread", lambda descriptor, length, offset: pread(descriptor, min(length, 3), offset))
    monkeypatch.setattr(os, "pwrite", lambda descriptor, data, offset: pwrite(descriptor, data[:3], offset))
    file = DISK.open(str(tmp_path / "file"), create=True)
    file.pwrite(b"hello world", 0)
    assert file.pread(11, 0) == b"hello world"
    assert file.pread(100, 6) == b"world"
    file.close()


def test_commit_log_and_hard_state_on_a_real_disk(tmp_path: Path) -> None:
    """Real syncs in a thread run beside appends, rollovers and truncations."""
    directory = str(tmp_path / "log")
    log = CommitLog.open(DISK, directory, segment_bytes=64 * 1024, cache_bytes=8 * 1024)
    promised = 1
    with ThreadPoolExecutor(max_workers=1) as pool:

        def begin() -> Future[None]:
            run = log.begin_sync()
            assert run is not None
            return pool.submit(run.file.fdatasync)

        def end(running: Future[None]) -> None:
            running.result()
            log.end_sync()

        log.append(2, 1, KIND_ENTRY, payload_of(2, 200))
        running = begin()
        for index in range(3, 2000):
            log.append(index, 1 + index // 1000, KIND_ENTRY, payload_of(index, 200))
            if running.done():
                end(running)
                assert log.last_index >= log.synced_index >= promised
                promised = log.synced_index
                running = begin()
        end(running)
        log.append(2000, 3, KIND_ENTRY, payload_of(2000, 200))  # the last sync may have had all the others
        running = begin()
        log.truncate_from(1501)
        end(running)
        assert log.synced_index == 1500
    state = HardState(DISK, str(tmp_path / "hard_state"))
    state.set(3, 1)
    log.close()
    log = CommitLog.open(DISK, directory, segment_bytes=64 * 1024, cache_bytes=8 * 1024, applied_index=1500)
    assert log.recovery.rewritten_bytes == 0
    assert [e.payload for e in log.entries(2, 1 << 30)] == [payload_of(i, 200) for i in range(2, 1501)]
    log.close()
    state = HardState(DISK, str(tmp_path / "hard_state"))
    assert (state.term, state.voted_for) == (3, 1)
    kept = [name for name in os.listdir(tmp_path) if name.endswith(".tmp")]
    assert kept == ["hard_state.tmp"], "the room for the next one, and nothing else"
