"""The hash of the rows that entries change, which replicas compare to notice that their indexes differ.

The hash does not depend on the order in which an entry changes its rows: another version may change them in another
order.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Final

from crc32c import crc32c

from store.steps import Steps, portions

SUMMED: Final = "rows_hash_summed"
"""The feature by which the rows of an entry are summed and not sorted, which is five times as fast."""


def rows_hash(touched: Sequence[tuple[bytes, ...]], before: int, *, summed: bool) -> int:
    """Return the hash after an entry that touched these rows, from the hash before it. A row that is put is its key and
    value, one that is deleted its key alone, and a deleted range its two ends.
    """
    if summed:
        return _of_sum(_sum(touched), before)
    return crc32c(b"".join(chain.from_iterable(sorted(touched))), before)


def rows_hash_in_steps(touched: Sequence[tuple[bytes, ...]], before: int, *, summed: bool) -> Steps[int]:
    """Return `rows_hash`; sums are made in portions."""
    if not summed:
        return rows_hash(touched, before, summed=False)
    total = 0
    for portion in portions(touched):
        yield
        total += _sum(portion)
    return _of_sum(total, before)


def _sum(touched: Sequence[tuple[bytes, ...]]) -> int:
    return sum(map(crc32c, map(b"".join, touched)))


def _of_sum(total: int, before: int) -> int:
    return crc32c(total.to_bytes(8, "big"), before)
