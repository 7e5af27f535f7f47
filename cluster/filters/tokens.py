"""Cuts an expression into tokens with their columns, in linear time: no pattern can match a text in two ways."""

import re
from typing import Final, Literal, NamedTuple

from cluster.filters.errors import InvalidFilter
from cluster.filters.numeric import NUMBER_PATTERN, number_of
from cluster.limits import FILTER_NUMBER_LENGTH_MAX

KEYWORDS: Final = frozenset(
    {
        *("AND", "OR", "NOT", "BETWEEN", "IN", "LIKE", "ESCAPE", "IS", "NULL", "TRUE", "FALSE"),
        *("CONTAINS", "STARTSWITH", "ENDSWITH"),
    }
)

FOUND_CHARACTERS: Final = 24
"""Maximum number of characters of a wrong token that the error repeats."""

Kind = Literal["name", "keyword", "symbol", "string", "number", "end"]

_token = re.compile(
    rf"""[ \t\r\n\f]*(?:
        (?P<name>[A-Za-z_$][A-Za-z0-9_$]*)
      | (?P<number>{NUMBER_PATTERN})(?P<long>[lL]?)
      | (?P<string>'[^']*+(?:''[^']*+)*+')
      | "(?P<quoted>[^"]*+(?:""[^"]*+)*+)"
      | (?P<symbol><>|!=|<=|>=|[=<>(),+-])
      | (?P<end>\Z)
    )""",
    re.VERBOSE,
)
_blank = re.compile(r"[ \t\r\n\f]*")
_word = re.compile(r"[A-Za-z0-9_$.]")


class Token(NamedTuple):
    kind: Kind
    text: str
    """A keyword in capitals, a symbol, a name, the value of a string, or a number as it was written."""
    position: int
    """Column of the first character, from 1."""
    number: int | float = 0

    @property
    def shown(self) -> str:
        """Text that names the token in an error."""
        if self.kind == "end":
            return "the end"
        text = self.text if len(self.text) <= FOUND_CHARACTERS else self.text[:FOUND_CHARACTERS] + "…"
        return ascii(text) if self.kind == "string" else text


def tokenize(expression: str) -> list[Token]:
    """Return all tokens; the last one is of kind `end`. Raises InvalidFilter at the first text that is not a token."""
    tokens: list[Token] = []
    at = 0
    while not tokens or tokens[-1].kind != "end":
        match = _token.match(expression, at)
        if match is None:
            raise _no_token(expression, at)
        tokens.append(_made(expression, match))
        at = match.end()
    return tokens


def _made(expression: str, match: "re.Match[str]") -> Token:
    kind = match.lastgroup
    position = match.end() - len(match[0].lstrip(" \t\r\n\f")) + 1
    if kind == "name":
        word = match["name"].upper()
        return Token("keyword", word, position) if word in KEYWORDS else Token("name", match["name"], position)
    if kind == "quoted":
        if not match["quoted"]:
            raise InvalidFilter(expression, position, "a property name between the quotes", "nothing")
        return Token("name", match["quoted"].replace('""', '"'), position)
    if kind == "string":
        return Token("string", match["string"][1:-1].replace("''", "'"), position)
    if kind == "long":
        return _number(expression, match, position)
    return Token("symbol", match["symbol"], position) if kind == "symbol" else Token("end", "", position)


def _number(expression: str, match: "re.Match[str]", position: int) -> Token:
    text, is_long = match["number"], bool(match["long"])
    following = _word.match(expression, match.end())
    if following is not None or (is_long and not text.isdigit()):
        at = match.end() + 1 if following is not None else match.end()
        raise InvalidFilter(expression, at, "the end of the number", expression[at - 1])
    value = number_of(text)
    if value is None:
        expected = f"a number that a double can hold, in at most {FILTER_NUMBER_LENGTH_MAX} characters"
        raise InvalidFilter(expression, position, expected, Token("number", text, position).shown)
    return Token("number", text, position, value)


def _no_token(expression: str, at: int) -> InvalidFilter:
    blank = _blank.match(expression, at)
    at = blank.end() if blank is not None else at
    wrong = expression[at]
    if wrong in "'\"":
        end = "string" if wrong == "'" else "quoted name"
        return InvalidFilter(expression, at + 1, f"a {end} that ends with {wrong}", "one that does not end")
    return InvalidFilter(expression, at + 1, "a property, a value, an operator or a parenthesis", ascii(wrong))
