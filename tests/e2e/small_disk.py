"""A file system of its own with little space, and how to fill it."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.requirements import SMALL_DISK

MIB: Final = 1 << 20
DISK_BYTES: Final = 96 * MIB


@contextlib.contextmanager
def mounted_disk(parent: Path) -> Iterator[Path]:
    """Mounted below `parent` for the length of the context; skips the test where that is not possible."""
    with mounted_at(parent / "small") as mounted:
        yield mounted


@contextlib.contextmanager
def mounted_at(mounted: Path) -> Iterator[Path]:
    """As `mounted_disk`, at that path, which does not exist yet."""
    SMALL_DISK.require()
    mounted.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(mounted)], check=True)
    try:
        yield mounted
    finally:
        subprocess.run(["umount", str(mounted)], check=True)


def fill(path: Path) -> None:
    """Leave nothing of the disk: a new file takes it."""
    with open(path, "wb", buffering=0) as file:
        for size in (MIB, 1 << 16, 1 << 12):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))
