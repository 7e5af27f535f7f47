"""Evaluates the filters of consumer groups (docs/filters.md) on messages of the table `events`.

The broker has accepted every expression that is evaluated here, so nothing is refused and limits are not checked. A
condition is True, False, or None when it is unknown; only True selects a message.
"""

import functools
import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

NUMBER_LENGTH_MAX: Final = 40
SELECTIONS_MAX: Final = 256
"""Number of compiled expressions that are kept."""

_NUMBER: Final = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_KEYWORDS: Final = frozenset(
    {
        *("AND", "OR", "NOT", "BETWEEN", "IN", "LIKE", "ESCAPE", "IS", "NULL", "TRUE", "FALSE"),
        *("CONTAINS", "STARTSWITH", "ENDSWITH"),
    }
)
_COMPARE: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq, "<>": operator.ne, "!=": operator.ne,
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_FIND: Final[Mapping[str, Callable[[str, str], bool]]] = {
    "CONTAINS": operator.contains, "STARTSWITH": str.startswith, "ENDSWITH": str.endswith,
}  # fmt: skip
_is_number = re.compile(rf"[+-]?{_NUMBER}").fullmatch
_token = re.compile(
    rf"""[ \t\r\n\f]*(?:(?P<word>[A-Za-z_$][A-Za-z0-9_$]*) | (?P<number>{_NUMBER})[lL]? | '(?P<text>[^']*(?:''[^']*)*)'
      | "(?P<quoted>[^"]*(?:""[^"]*)*)" | (?P<symbol><>|!=|<=|>=|[=<>(),+-]) | (?P<end>\Z))""",
    re.VERBOSE,
)


class Attributes(NamedTuple):
    """The attributes of a message that a filter may read. `key` has all keys with blanks between; `properties` is JSON,
    an object.
    """

    tag: str | None
    key: str | None
    properties: str | None


class _Message(NamedTuple):
    tag: str | None
    key: str | None
    properties: Mapping[str, str]


Truth = bool | None
Read = Callable[[_Message], str | None]
Condition = Callable[[_Message], Truth]
Selects = Callable[[Attributes], bool]


class _Name(str):
    """The name of a property, as an operand; other operands are str, bool, int and float."""


_Operand = Any
"""A value, a _Name, or a Condition."""

_decode = msgspec.json.Decoder(dict[str, str]).decode


@functools.lru_cache(SELECTIONS_MAX)
def selection(expression: str) -> Selects:
    """Return a function that tells whether the filter selects a message."""
    condition = _Parser(expression).condition()

    def selects(message: Attributes) -> bool:
        properties = _decode(message.properties) if message.properties is not None else {}
        return condition(_Message(message.tag, message.key, properties)) is True

    return selects


class _Parser:
    """Compiles an expression into a condition, from left to right."""

    def __init__(self, expression: str) -> None:
        self._tokens: list[tuple[str, str]] = []
        at = 0
        while not self._tokens or self._tokens[-1][0] != "end":
            match = _token.match(expression, at)
            if match is None:
                raise ValueError(f"not a filter, at character {at}: {expression}")
            kind = match.lastgroup or "end"
            text = match[kind]
            if kind == "word" and text.upper() in _KEYWORDS:
                kind, text = "keyword", text.upper()
            self._tokens.append((kind, text))
            at = match.end()
        self._at = 0

    def condition(self) -> Condition:
        return _condition(self._disjunction())

    def _take(self, *tokens: tuple[str, str]) -> str | None:
        """Take the next token if it is one of these, and return its text."""
        if self._tokens[self._at] not in tokens:
            return None
        self._at += 1
        return self._tokens[self._at - 1][1]

    def _word(self, *words: str) -> str | None:
        return self._take(*(("keyword", word) for word in words))

    def _text(self) -> str:
        self._at += 1
        return self._tokens[self._at - 1][1].replace("''", "'")

    def _disjunction(self) -> _Operand:
        return self._joined("OR", self._conjunction, _any)

    def _conjunction(self) -> _Operand:
        return self._joined("AND", self._negation, _all)

    def _joined(
        self, word: str, part: Callable[[], _Operand], join: Callable[[list[Condition]], Condition]
    ) -> _Operand:
        parts = [part()]
        while self._word(word):
            parts.append(part())
        return parts[0] if len(parts) == 1 else join([_condition(each) for each in parts])

    def _negation(self) -> _Operand:
        return _not(_condition(self._negation())) if self._word("NOT") else self._predicate()

    def _predicate(self) -> _Operand:
        left = self._primary()
        if symbol := self._take(*(("symbol", each) for each in _COMPARE)):
            return _comparison(left, symbol, self._primary())
        if self._word("IS"):
            negated = self._word("NOT")
            self._word("NULL")
            read = _reader(left)
            return lambda message: (read(message) is None) is not bool(negated)
        negated = self._word("NOT")
        found = self._rest_of_predicate(left)
        return left if found is None else _not(found) if negated else found

    def _rest_of_predicate(self, left: _Operand) -> Condition | None:
        if self._word("BETWEEN"):
            low = self._primary()
            self._word("AND")
            return _all([_comparison(left, ">=", low), _comparison(left, "<=", self._primary())])
        if self._word("IN"):
            items, separator = [], self._take(("symbol", "("))
            while separator in ("(", ","):
                items.append(self._primary())
                separator = self._take(("symbol", ","), ("symbol", ")"))
            return _in(left, items)
        if self._word("LIKE"):
            pattern = self._text()
            matches = _like(pattern, self._text() if self._word("ESCAPE") else None)
            return _of_text(left, lambda text: matches(text) is not None)
        if search := self._word(*_FIND):
            find, wanted = _FIND[search], self._text()
            return _of_text(left, lambda text: find(text, wanted))
        return None

    def _primary(self) -> _Operand:
        if sign := self._take(("symbol", "+"), ("symbol", "-")):
            number = self._primary()
            return -number if sign == "-" else number
        if self._take(("symbol", "(")):
            inside = self._disjunction()
            self._take(("symbol", ")"))
            return inside
        kind, text = self._tokens[self._at]
        self._at += 1
        if kind == "number":
            return number_of(text)
        if kind == "text":
            return text.replace("''", "'")
        return text == "TRUE" if kind == "keyword" else _Name(text.replace('""', '"') if kind == "quoted" else text)


def number_of(text: str) -> int | float | None:
    """Return the number that a text stands for; None when it is no number."""
    if len(text) > NUMBER_LENGTH_MAX or not _is_number(text):
        return None
    if text.lstrip("+-").isdigit():
        return int(text)
    value = float(text)
    return value if math.isfinite(value) else None


# Logic.


def _condition(operand: _Operand) -> Condition:
    if isinstance(operand, bool):
        return lambda message: operand
    return _comparison(operand, "=", True) if isinstance(operand, _Name) else operand


def _not(condition: Condition) -> Condition:
    def negation(message: _Message) -> Truth:
        value = condition(message)
        return None if value is None else not value

    return negation


def _all(parts: list[Condition]) -> Condition:
    def conjunction(message: _Message) -> Truth:
        values = [part(message) for part in parts]
        return False if False in values else None if None in values else True

    return conjunction


def _any(parts: list[Condition]) -> Condition:
    def disjunction(message: _Message) -> Truth:
        values = [part(message) for part in parts]
        return True if True in values else None if None in values else False

    return disjunction


# Predicates.


def _reader(name: str) -> Read:
    if name == "TAGS":
        return lambda message: message.tag
    return (lambda message: message.key) if name == "KEYS" else lambda message: message.properties.get(name)


def _of_text(name: str, test: Callable[[str], bool]) -> Condition:
    read = _reader(name)

    def predicate(message: _Message) -> Truth:
        text = read(message)
        return None if text is None else test(text)

    return predicate


def _comparison(left: _Operand, symbol: str, right: _Operand) -> Condition:
    """Compare as numbers where one side is a number, or where the order is asked for; otherwise as texts or truths."""
    compare, sides = _COMPARE[symbol], (left, right)
    if symbol not in ("=", "<>", "!=") or any(type(side) in (int, float) for side in sides):
        convert: Callable[[str], Any] = number_of
    elif any(isinstance(side, bool) for side in sides):
        convert = _says_true
    else:
        convert = str
    first, second = (_value(side, convert) for side in sides)

    def comparison(message: _Message) -> Truth:
        one, other = first(message), second(message)
        return None if one is None or other is None else compare(one, other)

    return comparison


def _value(side: _Operand, convert: Callable[[str], Any]) -> Callable[[_Message], Any]:
    if not isinstance(side, _Name):
        constant = convert(side) if isinstance(side, str) else side
        return lambda message: constant
    read = _reader(side)

    def value(message: _Message) -> Any:
        text = read(message)
        return None if text is None else convert(text)

    return value


def _says_true(text: str) -> bool:
    return len(text) == len("true") and text.lower() == "true"


def _in(name: str, items: list[Any]) -> Condition:
    texts = frozenset(item for item in items if isinstance(item, str))
    contained = _of_text(name, texts.__contains__)
    return _any([contained, *(_comparison(name, "=", item) for item in items if not isinstance(item, str))])


def _like(pattern: str, escape: str | None) -> Callable[[str], Any]:
    """Return a matcher. What stands between two % is taken where it comes first, and never looked for again."""
    pieces, characters = [""], iter(pattern)
    for character in characters:
        if character == escape:
            pieces[-1] += re.escape(next(characters))
        elif character == "%":
            pieces.append("")
        else:
            pieces[-1] += "." if character == "_" else re.escape(character)
    first, *middle = pieces
    last = f".*{middle.pop()}" if middle else ""
    return re.compile(first + "".join(f"(?>.*?{piece})" for piece in middle if piece) + last, re.DOTALL).fullmatch
