"""`python -m tests.noise --seconds 1800`: keeps the cores and the disk busy, as neighbours on a shared machine do.

The suite has to pass beside it. It ends by itself, its processes end with it, and its file has no name: nothing is
left, also when it is killed.
"""

import argparse
import contextlib
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from typing import Final

from deploy.broker_process import die_with_parent

FILE_BYTES: Final = 64 << 20
WRITE_BYTES: Final = 1 << 20


def keep_a_core_busy(until_s: float) -> int:
    """Count until `until_s` and return how often it counted to a thousand."""
    rounds = 0
    while time.monotonic() < until_s:
        for _ in range(1_000):
            pass
        rounds += 1
    return rounds


def keep_the_disk_busy(directory: str, until_s: float, synced: list[int]) -> None:
    """Write and sync new bytes until `until_s`; start over at the front when the file is full. Appends the size of each
    write to `synced`.
    """
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
        while time.monotonic() < until_s:
            if file.tell() >= FILE_BYTES:
                file.seek(0)
            synced.append(file.write(os.urandom(WRITE_BYTES)))
            os.fsync(file.fileno())


def end_with(parent: int) -> None:
    """Make this process end when `parent` does, and only then: an interrupt goes to both."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent(parent)


def make_noise(directory: str, seconds: float, cores: int) -> str:
    """Keep `cores` cores and the disk busy for `seconds`. Returns one line that says how much was done."""
    until_s = time.monotonic() + seconds
    synced: list[int] = []
    disk = threading.Thread(target=keep_the_disk_busy, args=(directory, until_s, synced), daemon=True)
    # Threads of one interpreter would share a core.
    with multiprocessing.get_context("fork").Pool(cores, end_with, (os.getpid(),)) as pool:
        disk.start()
        rounds = pool.map(keep_a_core_busy, [until_s] * cores, chunksize=1)
    disk.join()
    return f"noise: {sum(rounds)} rounds on {cores} cores, {sum(synced) >> 20} MiB written in {len(synced)} syncs"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.noise", description=__doc__)
    parser.add_argument("--seconds", type=float, required=True, help="it ends after that")
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1, help="that are kept busy (all)")
    parser.add_argument("--directory", default=tempfile.gettempdir(), help="on the disk that is kept busy")
    given = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        print(make_noise(given.directory, given.seconds, given.cores))
    return 0


if __name__ == "__main__":
    sys.exit(main())
