"""Bodies of messages as a benchmark should send them: each is different, and half of each compresses away.

A body that is sent again and again compresses to nothing within its batch, and a body of noise does not compress at
all: neither is what applications send.
"""

import itertools
import random
from typing import Final

HEAD_BYTES: Final = 16
NOISE_BYTES: Final = 1 << 20
SEED: Final = 1
_TEXT: Final = b'{"order": 4711, "state": "paid", "warehouse": "north"} ' * 400


class Bodies:
    """Makes bodies of `size` bytes: a head that is unique in this process, then as much noise as text.

    The noise comes from one MiB that is used again from its start, so that making a body costs little. Raises
    ValueError for a size that has no room for the head, or more text than there is.
    """

    _numbers: Final = itertools.count(1)

    def __init__(self, size: int) -> None:
        rest = size - HEAD_BYTES
        if not 2 <= rest <= len(_TEXT):
            raise ValueError(f"a body has {HEAD_BYTES + 2} to {HEAD_BYTES + len(_TEXT)} bytes, not {size}")
        self._half = rest // 2
        self._text = _TEXT[: rest - self._half]

    def next(self, stamp: int = 0) -> bytes:
        """Return the next body. Its first eight bytes are `stamp`, for example a time."""
        number = next(self._numbers)
        offset = number * self._half % (NOISE_BYTES - self._half)
        head = stamp.to_bytes(8, "big") + number.to_bytes(8, "big")
        return head + _NOISE[offset : offset + self._half] + self._text

    def batch(self, count: int) -> list[bytes]:
        return [self.next() for _ in range(count)]


_NOISE: Final = random.Random(SEED).randbytes(NOISE_BYTES)
