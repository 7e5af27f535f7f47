"""Which cores a benchmark's processes have, where clients must not take processor time from the nodes."""

import contextlib
import os
from collections.abc import Iterator


def set_core_aside() -> int | None:
    """Keeps this process, and what it starts from now on, off one core, and returns that; None where there is only
    one.
    """
    *others, last = sorted(os.sched_getaffinity(0))
    if not others:
        return None
    os.sched_setaffinity(0, others)
    return last


@contextlib.contextmanager
def on(core: int | None) -> Iterator[None]:
    """Meanwhile this process has that core, and no other; what it has started keeps its own."""
    if core is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, (core,))
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
