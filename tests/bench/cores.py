"""Assigns cores to a benchmark's processes, where clients must not take processor time from the nodes."""

import contextlib
import os
from collections.abc import Iterator


def set_core_aside() -> int | None:
    """Keep this process, and the processes it starts from now on, off one core. Returns that core; None where there is
    only one.
    """
    *others, last = sorted(os.sched_getaffinity(0))
    if not others:
        return None
    os.sched_setaffinity(0, others)
    return last


@contextlib.contextmanager
def on(core: int | None) -> Iterator[None]:
    """Run this process on that core alone within the block; processes that it has started keep their cores."""
    if core is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, (core,))
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
