"""Provides a file system of its own with little space, and fills it."""

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
    """Mount a small disk below `parent` for the length of the context; skips the test where that is impossible."""
    with mounted_at(parent / "small") as mounted:
        yield mounted


@contextlib.contextmanager
def mounted_at(mounted: Path, size_bytes: int = DISK_BYTES, inodes: int | None = None) -> Iterator[Path]:
    """Mount a small disk at `mounted`, which does not exist yet, for the length of the context. `inodes` limits its
    files.
    """
    SMALL_DISK.require()
    mounted.mkdir()
    options = f"size={size_bytes}" + ("" if inodes is None else f",nr_inodes={inodes}")
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(mounted)], check=True)
    try:
        yield mounted
    finally:
        subprocess.run(["umount", str(mounted)], check=True)


def fill(path: Path) -> None:
    """Fill the disk with a new file, so that nothing is left."""
    with open(path, "wb", buffering=0) as file:
        for size in (MIB, 1 << 16, 1 << 12):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))
