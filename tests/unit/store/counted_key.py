"""Keys that count their comparisons, which measures the work of reading in order without a clock."""


class CountedKey(bytes):
    """A key that counts how often it is compared with another one."""

    comparisons = 0

    def __lt__(self, other: bytes) -> bool:
        CountedKey.comparisons += 1
        return super().__lt__(other)

    def __le__(self, other: bytes) -> bool:
        CountedKey.comparisons += 1
        return super().__le__(other)

    def __gt__(self, other: bytes) -> bool:
        CountedKey.comparisons += 1
        return super().__gt__(other)

    def __ge__(self, other: bytes) -> bool:
        CountedKey.comparisons += 1
        return super().__ge__(other)
