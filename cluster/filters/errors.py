"""The error of an invalid filter, with the place of the error, the expected text and the found text."""

from typing import Final

SHOWN_CHARACTERS: Final = 60
"""Number of characters shown on each side of the error: longer expressions are cut."""


class InvalidFilter(Exception):
    """The expression is invalid. `position` is the column of the error, from 1, in characters of the expression."""

    def __init__(self, expression: str, position: int, expected: str, found: str) -> None:
        super().__init__(expression, position, expected, found)
        self.expression = expression
        self.position = position
        self.expected = expected
        self.found = _printable(found)

    @property
    def detail(self) -> str:
        """Text that describes the error, followed by the expression with a caret under the place."""
        line, caret = _pointed(self.expression, self.position)
        return f"column {self.position}: expected {self.expected}, found {self.found}\n{line}\n{caret}"

    def __str__(self) -> str:
        return self.detail


def _printable(text: str) -> str:
    """Replace every character that is not printable with a blank: it could break the line or move the caret."""
    return "".join(character if character.isprintable() else " " for character in text)


def _pointed(expression: str, position: int) -> tuple[str, str]:
    begin = max(0, position - 1 - SHOWN_CHARACTERS)
    end = position - 1 + SHOWN_CHARACTERS
    shown = _printable(expression[begin:end])
    before, after = "…" * (begin > 0), "…" * (end < len(expression))
    return f"{before}{shown}{after}", " " * (len(before) + position - 1 - begin) + "^"
