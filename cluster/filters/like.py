"""Matches LIKE patterns in time linear in the text: `%` stands for any characters, `_` for exactly one.

Matching never backtracks. Without `_` the pieces between the `%` are found one after the other. With `_` the set of all
reachable places of the pattern is carried along the text, one bit for each place.
"""

from collections.abc import Callable
from typing import Final, Literal

Matches = Callable[[str], bool]

_Element = str | Literal[0, 1]
ONE: Final = 0
ANY: Final = 1


def escape_error(pattern: str, escape: str | None) -> str | None:
    """Return the text expected after an escape character that escapes nothing; None when the pattern is valid."""
    at = 0
    while escape is not None and (at := pattern.find(escape, at)) >= 0:
        following = pattern[at + 1 : at + 2]
        if following not in ("%", "_", escape):
            return f"%, _ or {escape} behind every {escape} of the pattern"
        at += 2
    return None


def like(pattern: str, escape: str | None) -> Matches:
    """Return a function that tells whether a whole text matches the pattern."""
    elements = _elements(pattern, escape)
    return _by_bits(elements) if ONE in elements else _by_pieces(elements)


def looks_at_each_character(pattern: str, escape: str | None) -> bool:
    """Return whether matching takes a Python step for each character of the text, as a pattern with `_` does."""
    return ONE in _elements(pattern, escape)


def _elements(pattern: str, escape: str | None) -> list[_Element]:
    elements: list[_Element] = []
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            elements.append(next(characters))
        elif character == "%":
            elements.append(ANY)
        else:
            elements.append(ONE if character == "_" else character)
    return elements


def _by_pieces(elements: list[_Element]) -> Matches:
    pieces = [""]
    for element in elements:
        if isinstance(element, str):
            pieces[-1] += element
        else:
            pieces.append("")
    if len(pieces) == 1:
        return pieces[0].__eq__
    first, *inner, last = pieces
    middle = [piece for piece in inner if piece]
    length_min = sum(map(len, pieces))

    def matches(text: str) -> bool:
        if len(text) < length_min or not text.startswith(first) or not text.endswith(last):
            return False
        at, end = len(first), len(text) - len(last)
        for piece in middle:
            at = text.find(piece, at, end)
            if at < 0:
                return False
            at += len(piece)
        return True

    return matches


def _by_bits(elements: list[_Element]) -> Matches:
    """Return a function that matches with a bit set. Bit i of `reached` is set when the text up to the present
    character matches the first i elements that are not `%`.
    """
    one, staying, bit = 0, 0, 1
    of_character: dict[str, int] = {}
    for element in elements:
        if element == ANY:
            staying |= bit
            continue
        bit <<= 1
        if isinstance(element, str):
            of_character[element] = of_character.get(element, 0) | bit
        else:
            one |= bit
    whole, length_min = bit, bit.bit_length() - 1
    advancing = {character: bits | one for character, bits in of_character.items()}.get

    def matches(text: str) -> bool:
        if len(text) < length_min or (not staying and len(text) > length_min):
            return False
        reached = 1
        for character in text:
            reached = (reached << 1) & advancing(character, one) | reached & staying
            if not reached:
                return False
        return reached & whole != 0

    return matches
