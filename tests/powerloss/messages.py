"""Message bodies that say which message they are: whoever reads one can tell a phantom or a damaged body from a real
one. Sizes follow from the number: mostly small, some beyond the smallest segment, so that records get segments of
their own.
"""

from typing import Final

_DIGITS: Final = 8
_LARGE_EVERY: Final = 61
_LARGE_BYTES: Final = 9_000
_SMALL_BYTES_MAX: Final = 900
_SCRAMBLE: Final = 2_654_435_761  # spreads neighbouring numbers (Knuth)


def body_of(number: int) -> bytes:
    """The body of message `number`: ASCII."""
    size = _LARGE_BYTES if number % _LARGE_EVERY == 0 else number * _SCRAMBLE % (1 << 32) % _SMALL_BYTES_MAX
    name = b"%08x." % number
    return name + (name * (size // len(name) + 1))[:size]


def number_in(body: bytes) -> int | None:
    """The number of an intact body; None for anything that no writer sent."""
    try:
        number = int(body[:_DIGITS], 16)
    except ValueError:
        return None
    return number if body == body_of(number) else None
