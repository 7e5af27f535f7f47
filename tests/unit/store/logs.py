"""Logs with a known content on a simulated disk, for the tests of recovery."""

from __future__ import annotations

import errno
from collections.abc import Callable
from random import Random

from store.log.base import LogBase, StoredBase, write_base
from store.log.commit_log import CommitLog
from store.log.record import HEADER_BYTES, KIND_ENTRY
from store.log.segment import segment_name
from store.log.synced_mark import FILE_NAME as SYNCED_MARK_NAME
from tests.simdisk import SimDisk, io_error

DIRECTORY = "/data/log"
SEGMENT_BYTES = 4096
CACHE_BYTES = 1 << 20


def sim_disk(seed: int = 1, *, capacity_bytes: int | None = None) -> SimDisk:
    return SimDisk(Random(seed), capacity_bytes=capacity_bytes)


def open_log(disk: SimDisk, *, applied_index: int = 0, cache_bytes: int = CACHE_BYTES) -> CommitLog:
    return CommitLog.open(
        disk, DIRECTORY, segment_bytes=SEGMENT_BYTES, cache_bytes=cache_bytes, applied_index=applied_index
    )


def payload_of(index: int, size: int = 300) -> bytes:
    """Return a payload that is never zero, and different for each index."""
    return bytes(1 + (index * 31 + i) % 255 for i in range(size))


def append_to(log: CommitLog, last_index: int, *, term: int = 1, size: int = 300) -> None:
    """Append entries up to `last_index`, written and not synced."""
    for index in range(log.last_index + 1, last_index + 1):
        log.append(index, term, KIND_ENTRY, payload_of(index, size))


def synced_log(disk: SimDisk, last_index: int, *, size: int = 300) -> CommitLog:
    log = open_log(disk)
    append_to(log, last_index, size=size)
    log.sync()
    return log


def restarted(log: CommitLog, disk: SimDisk, base: LogBase, installed_index: int = 0) -> CommitLog:
    """Close the log and open it empty behind `base`, as the installation of a snapshot does."""
    log.close()
    write_base(disk, DIRECTORY, StoredBase(base, installed_index, restarting=True))
    return open_log(disk, applied_index=max(base.index, installed_index))


def assert_holds(log: CommitLog, last_index: int, *, size: int = 300) -> None:
    """Check that the log holds the genesis no-op and the entries of `append_to` up to `last_index`, all durable."""
    assert log.last_index == log.synced_index == last_index
    assert log.end_position == log.synced_position
    for index in range(2, last_index + 1):
        assert log.entry(index).payload == payload_of(index, size)


def path_of(start: int) -> str:
    return f"{DIRECTORY}/{segment_name(start)}"


def segment_paths(disk: SimDisk) -> list[str]:
    return [f"{DIRECTORY}/{name}" for name in disk.list(DIRECTORY) if name.endswith(".log")]


def position_of(index: int, size: int = 300) -> int:
    """Return the log position at which an entry of `append_to` begins."""
    return HEADER_BYTES + (index - 2) * (HEADER_BYTES + size)


def once(disk: SimDisk, operation: str, path: str, action: Callable[[], None]) -> None:
    """Run `action` right before the next `operation` on `path`."""

    def watch(its_operation: str, its_path: str) -> None:
        if (its_operation, its_path) == (operation, path):
            disk.on_operation = None
            action()

    disk.on_operation = watch


def failing(disk: SimDisk, operation: str, path: str, number: int = errno.EIO) -> None:
    """Let the next `operation` on `path` fail."""

    def fail() -> None:
        raise io_error(operation, path, number)

    once(disk, operation, path, fail)


def killed_with_unsynced(disk: SimDisk, synced: int, last: int) -> None:
    """Return a log whose process was killed: records up to `synced` are durable, those up to `last` merely written."""
    log = synced_log(disk, synced)
    append_to(log, last)
    disk.kill_process()


def forget_synced_mark(disk: SimDisk) -> None:
    disk.damage(f"{DIRECTORY}/{SYNCED_MARK_NAME}", 0, bytes(64))
