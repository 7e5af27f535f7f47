"""Message bodies that contain the message's number, so that a body alone can be judged.

A message's *number* is its worker and its sequence within that worker. The body is the number in hexadecimal and a
filler whose length follows from it, so a reader can tell a phantom or a damaged body from a real one.
"""

from typing import Final

SEQUENCE_BITS: Final = 40
WORKERS_MAX: Final = 1 << 16
_DIGITS: Final = 14
_FILLER: Final = b"-the-quick-brown-fox-jumps-over-the-lazy-dog" * 4
_TAILS: Final = tuple(_FILLER[:length] for length in range(8, 158))


def number_of(worker: int, sequence: int) -> int:
    return worker << SEQUENCE_BITS | sequence


def worker_of(number: int) -> int:
    return number >> SEQUENCE_BITS


def sequence_of(number: int) -> int:
    return number & ((1 << SEQUENCE_BITS) - 1)


def body_of(number: int) -> bytes:
    """Return the body of message `number`: 22 to 171 bytes of ASCII."""
    return b"%014x%s" % (number, _TAILS[number % len(_TAILS)])


def number_in(body: bytes) -> int | None:
    """Return the number of an intact body; None for a body that no worker can have sent."""
    try:
        number = int(body[:_DIGITS], 16)
    except ValueError:
        return None
    return number if body[_DIGITS:] == _TAILS[number % len(_TAILS)] else None


def name_of(number: int) -> str:
    """Return `worker.sequence`, the number's form in messages to people."""
    return f"{worker_of(number)}.{sequence_of(number)}"
