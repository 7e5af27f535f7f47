"""Runs `keelmqd` with a wall clock that can be set from outside: `python -m tests.chaos.skewed_node run …`.

The file named by CHAOS_CLOCK holds one little-endian i64: nanoseconds that are added to the wall clock of this
process. The monotonic clock is left alone, as an operator or NTP would leave it. (libfaketime is not used: version
0.9.10 makes `clock_nanosleep` fail for programs that run under it.)
"""

import mmap
import os
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

CLOCK_VARIABLE: Final = "CHAOS_CLOCK"
OFFSET: Final = struct.Struct("<q")


def set_offset_ns(file: Path, offset_ns: int) -> None:
    """Move the wall clock of the node that watches `file`, at once."""
    with file.open("r+b" if file.exists() else "w+b") as stream:
        stream.write(OFFSET.pack(offset_ns))


def skewed(real_ns: Callable[[], int], offset: mmap.mmap) -> tuple[Callable[[], float], Callable[[], int]]:
    """Return `time.time` and `time.time_ns` as this node shall see them."""

    def time_ns() -> int:
        return real_ns() + int(OFFSET.unpack_from(offset)[0])

    def time_s() -> float:
        return time_ns() / 1e9

    return time_s, time_ns


def run(file: Path, prepare: Callable[[], None] = lambda: None) -> int:
    """Run the broker with the clock of `file`; `prepare` is called once the clock is replaced, before the broker
    starts.
    """
    with file.open("rb") as stream:
        offset = mmap.mmap(stream.fileno(), OFFSET.size, access=mmap.ACCESS_READ)
    time.time, time.time_ns = skewed(time.time_ns, offset)
    # Only now: the broker's modules must find the clock of this node.
    from cluster.main import main

    prepare()
    return main()


if __name__ == "__main__":
    sys.exit(run(Path(os.environ[CLOCK_VARIABLE])))
