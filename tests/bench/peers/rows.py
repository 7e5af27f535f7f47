"""Rows of the comparison: which load, how large its messages are, and how much is sent at once."""

from collections.abc import Iterable
from typing import Final, NamedTuple

SIZES: Final = (100, 1024, 16_384)
KINDS: Final = ("one", "senders", "saturating", "batches", "transactions", "end-to-end")
SENDERS: Final = 64
TRANSACTIONS_AT_ONCE: Final = (64, 256)
SATURATING_MAX: Final = 4_096
SATURATING_BYTES_MAX: Final = 8 << 20
BATCH_BYTES: Final = 256 << 10
BATCH_MESSAGES_MAX: Final = 1_000
BATCHES_AT_ONCE: Final = 8
TRANSACTION_BYTES: Final = 1_024


class Row(NamedTuple):
    """One load. `at_once` counts what is sent and not yet answered: messages, batches of `batch`, or transactions."""

    kind: str
    bytes: int
    at_once: int
    batch: int = 1

    @property
    def name(self) -> str:
        """The row in tables and results, such as `senders 1024` or `transactions-256 1024`."""
        kind = f"{self.kind}-{self.at_once}" if self.kind == "transactions" else self.kind
        return f"{kind} {self.bytes}"


def rows(kinds: Iterable[str], sizes: Iterable[int]) -> list[Row]:
    """Return the rows of these kinds and sizes; transactions have one size."""
    sizes = list(sizes)
    made: list[Row] = []
    for kind in kinds:
        if kind == "transactions":
            made += (Row(kind, TRANSACTION_BYTES, at_once) for at_once in TRANSACTIONS_AT_ONCE)
        else:
            made += (_row(kind, size) for size in sizes)
    return made


def _row(kind: str, size: int) -> Row:
    if kind == "one":
        return Row(kind, size, 1)
    if kind == "senders":
        return Row(kind, size, SENDERS)
    if kind == "saturating":
        return Row(kind, size, saturating(size))
    return Row(kind, size, BATCHES_AT_ONCE, max(1, min(BATCH_MESSAGES_MAX, BATCH_BYTES // size)))


def saturating(size: int) -> int:
    """Return how many messages of that size are on their way in a load that saturates."""
    return max(SENDERS, min(SATURATING_MAX, SATURATING_BYTES_MAX // size))
