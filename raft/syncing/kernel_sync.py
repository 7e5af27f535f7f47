"""fdatasync without a thread: the kernel syncs a file in the background and says so by an eventfd (Linux AIO)."""

from __future__ import annotations

import ctypes
import errno
import os
import select
import sys
from typing import Any, Final, Self

from store.log.disk import File, PosixFile
from store.log.errors import DiskError, disk_error

_FDSYNC: Final = 3  # IOCB_CMD_FDSYNC, linux/aio_abi.h
_SIGNAL_BY_EVENTFD: Final = 1  # IOCB_FLAG_RESFD
_NUMBERS: Final = {  # io_setup, io_destroy, io_getevents, io_submit
    "x86_64": (206, 207, 208, 209),
    "aarch64": (0, 1, 4, 2),
}


_HAS_64_BITS: Final = sys.maxsize > 2**32


class _ControlBlock(ctypes.Structure):
    """`struct iocb` on little-endian machines."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("key", ctypes.c_uint32),
        ("rw_flags", ctypes.c_int32),
        ("opcode", ctypes.c_uint16),
        ("priority", ctypes.c_int16),
        ("descriptor", ctypes.c_uint32),
        ("buffer", ctypes.c_uint64),
        ("length", ctypes.c_uint64),
        ("offset", ctypes.c_int64),
        ("reserved", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("eventfd", ctypes.c_uint32),
    )


class _Event(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_uint64),
        ("block", ctypes.c_uint64),
        ("result", ctypes.c_int64),
        ("result2", ctypes.c_int64),
    )


class KernelSync:
    """The `BackgroundSync` of Linux: a context of asynchronous I/O with room for one operation."""

    def __init__(self) -> None:
        """Raise OSError where the system allows none: another system, an old kernel, a sandbox, `fs.aio-max-nr`."""
        numbers = _NUMBERS.get(os.uname().machine) if sys.platform == "linux" and _HAS_64_BITS else None
        if numbers is None:
            raise OSError(errno.ENOSYS, "its numbers of system calls are not known here")
        setup, destroy, get_events, submit = map(ctypes.c_long, numbers)
        # Without releasing the GIL: none of these calls waits, but the last one while a sync is under way. Who releases
        # it waits for it again, a switch interval for each thread that computes.
        self._call = ctypes.PyDLL(None, use_errno=True).syscall
        self._call.restype = ctypes.c_long
        context = ctypes.c_ulong(0)
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        try:
            self._checked(setup, ctypes.c_long(1), ctypes.byref(context))
        except OSError:
            os.close(self.descriptor)
            raise
        self._destroy = (destroy, context)
        self._block = _ControlBlock(opcode=_FDSYNC, flags=_SIGNAL_BY_EVENTFD, eventfd=self.descriptor)
        self._blocks = (ctypes.c_void_p * 1)(ctypes.addressof(self._block))
        self._event = _Event()
        self._no_wait = (ctypes.c_long * 2)(0, 0)
        one = ctypes.c_long(1)
        self._submit = (submit, context, one, ctypes.byref(self._blocks))
        self._get_event = (get_events, context, one, one, ctypes.byref(self._event), ctypes.byref(self._no_wait))
        self.path = ""

    @classmethod
    def proven_on(cls, file: File, *arguments: Any) -> Self:
        """Return a sync that has synced `file`, which proves that its file system supports it. Blocks until it has.

        Raises OSError where the system or the file system allows none, and DiskError when the sync has failed.
        """
        made = cls(*arguments)
        try:
            try:
                made.start(file)
            except DiskError as error:
                raise OSError(error.errno, str(error)) from error
            waiting = select.poll()
            waiting.register(made.descriptor, select.POLLIN)
            waiting.poll()
            failed = made.finish()
            if failed is not None:
                raise failed
        except BaseException:
            made.close()
            raise
        return made

    def start(self, file: File) -> None:
        assert isinstance(file, PosixFile)
        self._block.descriptor, self.path = file.descriptor, file.path
        try:
            self._require_one(self._submit)
        except OSError as error:
            raise disk_error("fdatasync", self.path, error) from error

    def finish(self) -> DiskError | None:
        try:
            os.eventfd_read(self.descriptor)
            self._require_one(self._get_event)
            if self._event.result:
                raise OSError(-self._event.result, os.strerror(-self._event.result))
        except OSError as error:
            return disk_error("fdatasync", self.path, error)
        return None

    def close(self) -> None:
        self._checked(*self._destroy)
        os.close(self.descriptor)

    def _require_one(self, arguments: tuple[Any, ...]) -> None:
        """Call the system with one operation. Raises OSError also when it took, or returned, none: what ends without
        its event has not ended well.
        """
        if self._checked(*arguments) != 1:
            raise OSError(errno.EIO, "the kernel has lost a sync")

    def _checked(self, *arguments: Any) -> int:
        returned: int = self._call(*arguments)
        if returned < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return returned
