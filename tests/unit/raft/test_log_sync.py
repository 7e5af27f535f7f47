"""Tests group commit: what a sync covers, what follows it, and what its failure and its end leave."""

import asyncio
import errno
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from raft.syncing.kernel_sync import KernelSync
from raft.syncing.log_sync import LogSync
from raft.syncing.syncers import KernelSyncer, OnEnd, syncer_of
from store.log.commit_log import CommitLog
from store.log.disk import BackgroundSync, Disk, File, PosixDisk, PosixFile
from store.log.errors import DiskError, LogFailed
from store.log.record import KIND_ENTRY
from store.log.watermarks import Watermarks
from tests.patience import PATIENCE_S
from tests.requirements import KERNEL_SYNC
from tests.simdisk import SimDisk


class ByHand:
    """Syncs that end when the test says so."""

    def __init__(self) -> None:
        self.under_way: list[tuple[File, OnEnd]] = []
        self.begun = 0
        self.closed = False

    def start(self, file: File, on_end: OnEnd) -> None:
        assert not self.under_way, "two syncs at once"
        self.begun += 1
        self.under_way.append((file, on_end))

    def end(self, error: DiskError | None = None) -> None:
        file, on_end = self.under_way.pop()
        if error is None:
            file.fdatasync()
        on_end(error, 0.25)

    def close(self) -> None:
        assert not self.under_way
        self.closed = True


class Parts:
    def __init__(self, disk: Disk, directory: str, syncer: object) -> None:
        self.log = CommitLog.open(disk, f"{directory}/log", segment_bytes=1 << 16, cache_bytes=1 << 16)
        self.watermarks = Watermarks.open(disk, directory)
        self.told: list[object] = []
        self.sync = LogSync(self.log, self.watermarks, syncer, self.told.append, self.told.append)  # type: ignore[arg-type]

    def append(self) -> None:
        self.log.append(self.log.last_index + 1, 1, KIND_ENTRY, b"x" * 100)
        self.sync.request()


def by_hand() -> tuple[Parts, ByHand]:
    syncer = ByHand()
    return Parts(SimDisk(random.Random(1)), "/data", syncer), syncer


async def test_records_that_are_appended_during_a_sync_share_the_next_one() -> None:
    parts, syncer = by_hand()
    for _ in range(5):
        parts.append()
    syncer.end()
    assert (parts.log.synced_index, parts.told) == (2, [0.25])
    syncer.end()
    assert (parts.log.synced_index, parts.log.last_index, syncer.begun) == (6, 6, 2)
    assert not syncer.under_way


async def test_the_next_sync_is_under_way_when_the_end_of_the_last_one_is_told() -> None:
    parts, syncer = by_hand()
    parts.append()
    parts.append()
    begun: list[int] = []
    parts.sync._on_synced = lambda _took_s: begun.append(syncer.begun)
    syncer.end()
    assert begun == [2]


async def test_watermarks_are_synced_after_the_log_when_that_is_wanted() -> None:
    parts, syncer = by_hand()
    parts.watermarks.note_commit(1, 1, 1)
    parts.watermarks.sync_wanted = True
    parts.append()
    syncer.end()
    assert parts.watermarks.sync_wanted is parts.watermarks.is_dirty is False
    parts.append()
    assert syncer.begun == 2, "one sync at a time"
    syncer.end()
    syncer.end()
    assert (parts.log.synced_index, parts.told) == (3, [0.25, 0.25])


async def test_a_request_without_anything_to_sync_is_told_at_once() -> None:
    parts, syncer = by_hand()
    parts.sync.request()
    await asyncio.sleep(0)
    assert (parts.told, syncer.begun) == ([None], 0)


@pytest.mark.parametrize("of", ["log", "watermarks"])
async def test_a_failed_sync_is_told_once_and_never_repeated(of: str) -> None:
    parts, syncer = by_hand()
    if of == "watermarks":
        parts.watermarks.note_commit(1, 1, 1)
        parts.watermarks.sync_wanted = True
    parts.append()
    parts.append()
    if of == "watermarks":
        syncer.end()
        parts.told.clear()
    begun = syncer.begun
    syncer.end(DiskError("fdatasync", "file", errno.EIO, "input/output error"))
    assert [type(each) for each in parts.told] == [LogFailed if of == "log" else DiskError]
    parts.sync.request()
    assert syncer.begun == begun
    await parts.sync.stop()
    assert syncer.closed


async def test_a_stop_waits_for_the_sync_under_way_and_nothing_is_told_afterwards() -> None:
    parts, syncer = by_hand()
    parts.append()
    parts.append()
    stopping = asyncio.create_task(parts.sync.stop())
    await asyncio.sleep(0)
    assert not stopping.done()
    assert not syncer.closed
    syncer.end()
    await stopping
    assert (syncer.closed, syncer.begun, parts.told, parts.log.synced_index) == (True, 1, [], 2)
    parts.sync.request()
    assert syncer.begun == 1
    parts.log.close()


async def test_no_other_sync_follows_one_that_covers_everything() -> None:
    parts, syncer = by_hand()
    parts.append()
    parts.sync.request()
    syncer.end()
    await asyncio.sleep(0)
    assert (syncer.begun, parts.told, parts.log.synced_index) == (1, [0.25], 2)
    parts.append()
    parts.append()
    parts.sync.request()
    syncer.end()
    assert (syncer.begun, parts.log.synced_index) == (3, 3)
    syncer.end()
    await asyncio.sleep(0)
    assert (parts.told, parts.log.synced_index) == ([0.25] * 3, 4)
    parts.log.close()


async def test_another_sync_follows_one_of_entries_that_were_cut_and_written_anew() -> None:
    """Both logs end at the same place."""
    parts, syncer = by_hand()
    parts.append()
    parts.log.truncate_from(2)
    parts.append()
    assert not parts.log.sync_covers_all
    syncer.end()
    assert (syncer.begun, parts.log.synced_index) == (2, 1)
    syncer.end()
    assert parts.log.synced_index == 2
    parts.log.close()


def by_kernel(file: File) -> BackgroundSync | None:
    KERNEL_SYNC.require()
    return KernelSync.proven_on(file)


class SlowToBegin:
    """A background sync whose kernel does all of the work before the call that begins it returns."""

    def __init__(self, clock_s: list[float]) -> None:
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK)
        self._clock_s = clock_s

    def start(self, file: File) -> None:
        self._clock_s[0] += 2.0
        os.eventfd_write(self.descriptor, 1)

    def finish(self) -> DiskError | None:
        os.eventfd_read(self.descriptor)
        return None

    def close(self) -> None:
        os.close(self.descriptor)


async def test_the_time_of_a_sync_includes_the_call_that_begins_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel's worker may take the core from the caller at once: disks looked faster than they were."""
    clock_s = [100.0]
    monkeypatch.setattr("pysyncobj.syncobj.monotonicTime", lambda: clock_s[0])
    syncer = KernelSyncer(asyncio.get_running_loop(), SlowToBegin(clock_s), lambda: 0.0)
    ended = asyncio.get_running_loop().create_future()
    with (tmp_path / "log").open("wb") as file:
        syncer.start(PosixFile(file.fileno(), file.name), lambda error, took_s: ended.set_result((error, took_s)))
        async with asyncio.timeout(PATIENCE_S):
            assert await ended == (None, 2.0)
    syncer.close()


@pytest.mark.parametrize("background", [by_kernel, lambda _file: None], ids=["kernel", "thread"])
async def test_real_syncs(tmp_path: Path, background: Callable[[File], BackgroundSync | None]) -> None:
    disk = PosixDisk()
    with_room = disk.open(str(tmp_path / "proof"), create=True)
    loop = asyncio.get_running_loop()
    parts = Parts(disk, str(tmp_path), syncer_of(loop, background(with_room), time.thread_time))
    synced = asyncio.Event()
    parts.sync._on_synced = lambda _took_s: synced.set()
    async with asyncio.timeout(PATIENCE_S):
        for count in range(1, 20):
            for _ in range(100):  # rolls over now and then
                parts.append()
            if count % 7 == 0:
                parts.log.truncate_from(parts.log.last_index - 50)
            while parts.log.synced_index < parts.log.last_index:
                synced.clear()
                await synced.wait()
        parts.append()
        await parts.sync.stop()
    parts.log.close()
    reopened = CommitLog.open(disk, f"{tmp_path}/log", segment_bytes=1 << 16, cache_bytes=1 << 16)
    assert reopened.recovery.rewritten_bytes == 0
    assert reopened.last_index == parts.log.last_index
    reopened.close()
    with_room.close()
