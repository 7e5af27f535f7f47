"""Defines which texts are numbers. The same rule holds for properties and for literals."""

import math
import re
from typing import Final

from cluster.limits import FILTER_NUMBER_LENGTH_MAX

NUMBER_PATTERN: Final = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"

_signed = re.compile(rf"[+-]?{NUMBER_PATTERN}")


def number_of(text: str) -> int | float | None:
    """Return the number that a text stands for; None when the text is not a number.

    Digits alone are a whole number of any size, exactly; a text with a point or an exponent is a double. Blanks, hex,
    nan and inf are not numbers, nor is a text that is too long or beyond the range of a double.
    """
    if len(text) > FILTER_NUMBER_LENGTH_MAX or not text.isascii():
        return None
    if text.isdigit():
        return int(text)
    if not _signed.fullmatch(text):
        return None
    if text[1:].isdigit() and text[0] in "+-":
        return int(text)
    value = float(text)
    return value if math.isfinite(value) else None
