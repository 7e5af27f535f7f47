"""Message bodies that contain the message's number, so that a reader can tell a phantom or a damaged body from a real
one. Sizes follow from the number unless they are given: mostly small, some beyond the smallest segment, so that records
get segments of their own.
"""

from typing import Final

_DIGITS: Final = 8
_LARGE_EVERY: Final = 61
_LARGE_BYTES: Final = 9_000
_SMALL_BYTES_MAX: Final = 900
_SCRAMBLE: Final = 2_654_435_761  # spreads neighbouring numbers (Knuth)


def body_of(number: int, size: int | None = None) -> bytes:
    """Return the body of message `number`: ASCII, its name followed by `size` bytes."""
    if size is None:
        size = _LARGE_BYTES if number % _LARGE_EVERY == 0 else number * _SCRAMBLE % (1 << 32) % _SMALL_BYTES_MAX
    name = b"%08x-%08x." % (number, size)
    return name + (name * (size // len(name) + 1))[:size]


def number_in(body: bytes) -> int | None:
    """Return the number of an intact body; None for a body that no writer sent."""
    try:
        number, size = int(body[:_DIGITS], 16), int(body[_DIGITS + 1 : 2 * _DIGITS + 1], 16)
    except ValueError:
        return None
    return number if size < len(body) and body == body_of(number, size) else None
