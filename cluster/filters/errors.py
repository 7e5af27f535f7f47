"""The one error of a filter: where it is wrong, what was expected there, and what was found."""

from typing import Final

SHOWN_CHARACTERS: Final = 60
"""On each side of the error: longer expressions are cut."""


class InvalidFilter(Exception):
    """`position` is the column of the error, from 1, counted in characters of the expression."""

    def __init__(self, expression: str, position: int, expected: str, found: str) -> None:
        super().__init__(expression, position, expected, found)
        self.expression = expression
        self.position = position
        self.expected = expected
        self.found = _printable(found)

    @property
    def detail(self) -> str:
        """What is wrong, and the expression with a caret under the place."""
        line, caret = _pointed(self.expression, self.position)
        return f"column {self.position}: expected {self.expected}, found {self.found}\n{line}\n{caret}"

    def __str__(self) -> str:
        return self.detail


def _printable(text: str) -> str:
    """Whatever would break a line, move the caret, or cannot be told as text, is a blank."""
    return "".join(character if character.isprintable() else " " for character in text)


def _pointed(expression: str, position: int) -> tuple[str, str]:
    begin = max(0, position - 1 - SHOWN_CHARACTERS)
    end = position - 1 + SHOWN_CHARACTERS
    shown = _printable(expression[begin:end])
    before, after = "…" * (begin > 0), "…" * (end < len(expression))
    return f"{before}{shown}{after}", " " * (len(before) + position - 1 - begin) + "^"
