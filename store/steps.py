"""Work in steps: a generator that yields wherever it may pause, and returns its result at the end."""

from collections.abc import Generator, Sequence
from typing import Final, TypeVar

T = TypeVar("T")

Steps = Generator[None, None, T]

ITEMS_PER_STEP: Final = 1_024
"""Number of ids, keys or rows that are handled in one step: a millisecond or two."""


def finish(steps: Steps[T]) -> T:
    """Do all the steps, and return their result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def portions(items: Sequence[T]) -> Generator[Sequence[T], None, None]:
    """Yield the items in portions of ITEMS_PER_STEP."""
    if len(items) <= ITEMS_PER_STEP:
        yield items
        return
    for begin in range(0, len(items), ITEMS_PER_STEP):
        yield items[begin : begin + ITEMS_PER_STEP]
