"""Tests syncs by the kernel on the real file system."""

import errno
import os
import select
import sys
import threading
from pathlib import Path

import pytest

from raft.syncing.kernel_sync import KernelSync
from store.log.disk import PosixDisk, PosixFile
from store.log.errors import DiskError
from tests.patience import PATIENCE_S
from tests.requirements import KERNEL_SYNC


@pytest.fixture
def file(tmp_path: Path) -> PosixFile:
    return PosixDisk().open(str(tmp_path / "file"), create=True)


def kernel_sync(file: PosixFile) -> KernelSync:
    KERNEL_SYNC.require()
    return KernelSync.proven_on(file)


def has_ended(sync: KernelSync, timeout_s: float = PATIENCE_S) -> bool:
    return bool(select.select([sync.descriptor], [], [], timeout_s)[0])


def test_syncs_follow_each_other(file: PosixFile) -> None:
    sync = kernel_sync(file)
    for number in range(100):
        file.pwrite(b"x" * 1000, number * 1000)
        sync.start(file)
        assert has_ended(sync)
        assert sync.finish() is None
    assert not has_ended(sync, 0)
    sync.close()
    file.close()


def test_beginning_a_sync_lets_no_other_thread_have_the_interpreter(file: PosixFile) -> None:
    """A call that releases the GIL beside a thread that computes has it back after a switch interval or more."""
    sync = kernel_sync(file)
    turns, has_begun, is_over = [0], threading.Event(), threading.Event()

    def compute() -> None:
        has_begun.set()
        while not is_over.is_set():
            turns[0] += 1

    interval_s = sys.getswitchinterval()
    thread = threading.Thread(target=compute)
    thread.start()
    assert has_begun.wait(PATIENCE_S)
    try:
        for number in range(50):
            file.pwrite(b"x", number)
            sys.setswitchinterval(5.0)  # only who gives the interpreter away loses it before
            before = turns[0]
            sync.start(file)
            assert turns[0] == before
            sys.setswitchinterval(interval_s)
            assert has_ended(sync)
            assert sync.finish() is None
    finally:
        sys.setswitchinterval(interval_s)
        is_over.set()
        thread.join()
    sync.close()
    file.close()


def test_closing_ends_a_sync_under_way_and_releases_everything(file: PosixFile) -> None:
    kernel_sync(file).close()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        sync = kernel_sync(file)
        file.pwrite(b"x", 0)
        sync.start(file)
        sync.close()
    assert len(os.listdir("/proc/self/fd")) == before
    file.close()


def test_a_file_that_cannot_be_synced_is_told_at_once() -> None:
    """A pipe has no fsync, like files of some file systems; so a node on one of those takes a thread."""
    reading, writing = os.pipe()
    pipe = PosixFile(writing, "pipe")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises((DiskError, OSError)):
        KernelSync.proven_on(pipe)
    assert len(os.listdir("/proc/self/fd")) == before
    pipe.close()
    os.close(reading)


def test_a_sync_that_cannot_begin_is_an_error_of_fdatasync(file: PosixFile) -> None:
    sync = kernel_sync(file)
    file.close()
    with pytest.raises(DiskError, match="fdatasync") as raised:
        sync.start(file)
    assert raised.value.errno == errno.EBADF
    assert not has_ended(sync, 0)
    sync.close()


def test_an_error_of_the_device_is_returned(file: PosixFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel reports it in the event; `make powerloss` has the real ones."""
    sync = kernel_sync(file)
    sync.start(file)
    assert has_ended(sync)
    checked = sync._checked

    def with_error(*arguments: object) -> int:
        returned = checked(*arguments)
        sync._event.result = -errno.EIO
        return returned

    monkeypatch.setattr(sync, "_checked", with_error)
    error = sync.finish()
    assert isinstance(error, DiskError)
    assert (error.operation, error.path, error.errno) == ("fdatasync", file.path, errno.EIO)
    monkeypatch.undo()
    sync.close()
    file.close()


def test_an_end_without_an_event_is_no_success(file: PosixFile, monkeypatch: pytest.MonkeyPatch) -> None:
    sync = kernel_sync(file)
    for end in ("no event", "no signal"):
        sync.start(file)
        assert has_ended(sync)
        with monkeypatch.context() as patched:
            if end == "no event":
                patched.setattr(sync, "_checked", lambda *_arguments: 0)
            else:
                os.eventfd_read(sync.descriptor)
            assert isinstance(sync.finish(), DiskError)
        sync.close()
        sync = kernel_sync(file)
    sync.close()
    file.close()
