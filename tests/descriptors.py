"""Takes the file descriptors of a process away: of this one for a test, or of a node that runs."""

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def without_descriptors(left: int = 0) -> Iterator[None]:
    """Have this process open no more than `left` files within the block."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    with open(os.devnull, "rb") as source:
        highest = max(map(int, os.listdir("/proc/self/fd")))
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, highest + 64 + left), hard))
        try:
            with contextlib.suppress(OSError):
                while True:
                    taken.append(os.dup(source.fileno()))
            for _ in range(left):
                os.close(taken.pop())
            yield
        finally:
            for each in taken:
                os.close(each)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def limit_descriptors(pid: int, left: int) -> None:
    """Lower the limit of a process so far that it can open `left` more files. The hard limit stays."""
    _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    numbers = {int(each.name) for each in Path(f"/proc/{pid}/fd").iterdir()}
    limit = max(numbers) + 1 + left
    while limit - sum(each < limit for each in numbers) > left:
        limit -= 1
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, hard))


def restore_descriptors(pid: int) -> None:
    """Raise the limit of a process to its hard limit."""
    _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (hard, hard))
