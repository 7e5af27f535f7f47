"""A node's disk: a file system in a sparse image file, mounted through a loop device, whose power can be cut.

Cutting uses the file systems' own shutdown ioctl, made for this purpose: from then on nothing more reaches the image.
Data that the node wrote and did not sync is in the page cache only, and gone when the file system is mounted again.
"""

import contextlib
import fcntl
import os
import struct
import subprocess
import time
from pathlib import Path
from typing import Final, Literal

from tests.patience import PATIENCE_S

Filesystem = Literal["ext4", "xfs"]

IMAGE_BYTES: Final = 2 << 30
_SHUTDOWN: Final = 0x8004587D  # _IOR('X', 125, u32): EXT4_IOC_SHUTDOWN, XFS_IOC_GOINGDOWN
_FLUSH_JOURNAL: Final = 1
_FLUSH_NOTHING: Final = 2
_BUSY_PAUSE_S: Final = 0.01


MAKING: Final[dict[Filesystem, tuple[str, ...]]] = {
    "ext4": ("mkfs.ext4", "-q", "-F", "-J", "size=16", "-E", "lazy_itable_init=1,nodiscard"),
    "xfs": ("mkfs.xfs", "-q", "-f", "-K"),
}


class MountError(Exception):
    """A file system could not be made, mounted or unmounted; the message says why."""


class NodeDisk:
    """Owns `<directory>/<name>.img`, mounted at `<directory>/<name>`."""

    def __init__(self, directory: Path, name: str, filesystem: Filesystem) -> None:
        self.filesystem = filesystem
        self.mount_point = directory / name
        self._image = directory / f"{name}.img"

    def make(self) -> None:
        """Make an empty file system in place of a former one."""
        with open(self._image, "wb") as file:
            file.truncate(IMAGE_BYTES)
        self.mount_point.mkdir(exist_ok=True)
        _run(*MAKING[self.filesystem], str(self._image))

    def mount(self) -> None:
        """Mount the file system, which replays its journal, as after a power loss."""
        _run("mount", "-o", "loop", "-t", self.filesystem, str(self._image), str(self.mount_point))

    def cut_power(self, *, flush_journal: bool) -> None:
        """Let nothing reach the image from now on. With `flush_journal` the file system's journal is written first:
        metadata is then newer than the data that it describes.
        """
        descriptor = os.open(self.mount_point, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(descriptor, _SHUTDOWN, struct.pack("I", _FLUSH_JOURNAL if flush_journal else _FLUSH_NOTHING))
        finally:
            os.close(descriptor)

    def unmount(self) -> None:
        """Unmount the disk. The node's process must be gone; its last file may be closed a moment later, so this
        retries.
        """
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                _run("umount", str(self.mount_point))
                return
            except MountError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(_BUSY_PAUSE_S)

    def remove(self) -> None:
        """Remove the image and the mount point, at which nothing may be mounted any more."""
        self.mount_point.rmdir()
        self._image.unlink()

    def discard(self) -> None:
        """Cut the power, unmount and remove the disk, from any state."""
        if os.path.ismount(self.mount_point):
            with contextlib.suppress(OSError):
                self.cut_power(flush_journal=False)
            self.unmount()
        self.remove()


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise MountError(f"{command[0]}: {error.strerror}") from error
    if done.returncode != 0:
        raise MountError(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()}")
