"""A run's needs of the machine: root, namespaces of its own, loop mounts; and the leftovers of killed runs.

The run moves into its own mount and network namespace. Mounts made there end with its processes, even when it is
killed, and no other program can take a port while a node is down. Only a directory of sparse files can stay behind;
the next run removes it.
"""

import fcntl
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Final

from tests.powerloss.images import Filesystem, MountError, NodeDisk
from tests.requirements import MAKING_EXT4, MAKING_XFS, POWER_LOSS, UNSHARE, Requirement

NEEDS: Final[dict[Filesystem, Requirement]] = {"ext4": MAKING_EXT4, "xfs": MAKING_XFS}
PREFIX: Final = "keelmq-powerloss-"
_ISOLATED_VARIABLE: Final = "KEELMQ_POWERLOSS_ISOLATED"
_LOCK_FILE: Final = "lock"
_SIOCGIFFLAGS: Final = 0x8913
_SIOCSIFFLAGS: Final = 0x8914
_IFF_UP: Final = 1


def enter_isolation(arguments: Sequence[str]) -> str | None:
    """Start this program again in namespaces of its own (does not return then), or return why that is impossible."""
    if os.environ.pop(_ISOLATED_VARIABLE, None):  # removed, because nodes refuse unknown options
        _raise_loopback()
        return None
    if POWER_LOSS.reason is not None:
        return POWER_LOSS.reason
    command = [*UNSHARE, sys.executable, "-m", "tests.powerloss", *arguments]
    os.execvpe(command[0], command, {**os.environ, _ISOLATED_VARIABLE: "1"})


def usable_filesystems(wanted: Sequence[Filesystem], directory: Path) -> tuple[list[Filesystem], dict[Filesystem, str]]:
    """Return the file systems of `wanted` that can be made, mounted and shut down here, and why the others cannot."""
    usable: list[Filesystem] = []
    refused: dict[Filesystem, str] = {}
    for filesystem in wanted:
        if (reason := NEEDS[filesystem].reason) is not None:
            refused[filesystem] = reason
            continue
        disk = NodeDisk(directory, f"probe-{filesystem}", filesystem)
        try:
            disk.make()
            disk.mount()
            disk.cut_power(flush_journal=False)
            disk.unmount()
            disk.remove()
            usable.append(filesystem)
        except (MountError, OSError) as error:
            refused[filesystem] = str(error)
    return usable, refused


class Workspace:
    """Owns the directory of one run, `keelmq-powerloss-<pid>` in the temporary directory; a context manager."""

    def __init__(self) -> None:
        self.path = Path(tempfile.gettempdir()) / f"{PREFIX}{os.getpid()}"
        self._lock: IO[bytes] | None = None

    def __enter__(self) -> Path:
        _remove_leftovers(self.path.parent)
        self.path.mkdir()
        self._lock = _take_lock(self.path)
        return self.path

    def __exit__(self, *exception: object) -> None:
        _remove(self.path)
        if self._lock is not None:
            self._lock.close()


def _remove_leftovers(parent: Path) -> None:
    """Remove the directories of runs whose process has ended."""
    for path in parent.glob(f"{PREFIX}*"):
        lock = _take_lock(path)
        if lock is not None:
            _remove(path)
            lock.close()


def _take_lock(path: Path) -> IO[bytes] | None:
    """Return the run's lock, or None while its process lives."""
    try:
        lock = open(path / _LOCK_FILE, "wb")  # noqa: SIM115 - held as long as the run lives
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    return lock


def _remove(path: Path) -> None:
    for mount_point in _mounts_below(path):
        subprocess.run(["umount", "--lazy", mount_point], check=False)
    shutil.rmtree(path, ignore_errors=True)


def _mounts_below(path: Path) -> list[str]:
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [point for point in points if point.startswith(f"{path}/")]


def _raise_loopback() -> None:
    """Bring the loopback interface up, which is down in a new network namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sH14x", b"lo", 0)
        _, flags = struct.unpack("16sH14x", fcntl.ioctl(any_socket, _SIOCGIFFLAGS, request))
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | _IFF_UP))
