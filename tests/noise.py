"""`python -m tests.noise --seconds 1800`: keeps one core and the disk busy, as a neighbour on a shared machine does.

The suite has to pass beside it. It ends by itself, and its file has no name: nothing is left, also when it is killed.
"""

import argparse
import contextlib
import os
import sys
import tempfile
import threading
import time
from typing import Final

FILE_BYTES: Final = 64 << 20
WRITE_BYTES: Final = 1 << 20


def keep_the_core_busy(until_s: float) -> int:
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


def make_noise(directory: str, seconds: float) -> str:
    """Keep one core and the disk busy for `seconds`. Returns one line that says how much was done."""
    until_s = time.monotonic() + seconds
    synced: list[int] = []
    # Writing and syncing leave the interpreter to the other thread.
    disk = threading.Thread(target=keep_the_disk_busy, args=(directory, until_s, synced), daemon=True)
    disk.start()
    rounds = keep_the_core_busy(until_s)
    disk.join()
    return f"noise: {rounds} rounds, {sum(synced) >> 20} MiB written in {len(synced)} syncs"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.noise", description=__doc__)
    parser.add_argument("--seconds", type=float, required=True, help="it ends after that")
    parser.add_argument("--directory", default=tempfile.gettempdir(), help="on the disk that is kept busy")
    given = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        print(make_noise(given.directory, given.seconds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
