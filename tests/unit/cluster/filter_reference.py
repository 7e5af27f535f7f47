"""A second implementation of filters: it prints trees as text, and evaluates them plainly, without closures."""

import math
import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from cluster.filters.syntax import (
    And,
    Between,
    Boolean,
    Comparison,
    Condition,
    Find,
    InList,
    IsNull,
    Like,
    Node,
    Not,
    Number,
    Or,
    Property,
    Text,
)
from cluster.filters.tokens import KEYWORDS

Truth = bool | None


class Attributes(NamedTuple):
    """The attributes of a message that filters look at."""

    properties: Mapping[str, str]
    tag: str | None = None
    keys: tuple[str, ...] = ()


# --- printing --------------------------------------------------------------------------------------------------------


def printed(node: Node) -> str:
    """Return the shortest text that means the tree; parentheses are around every AND and OR within another."""
    match node:
        case Property(name):
            plain = re.fullmatch(r"[A-Za-z_$][A-Za-z0-9_$]*", name) and name.upper() not in KEYWORDS
            return name if plain else '"' + name.replace('"', '""') + '"'
        case Number(value):
            return repr(value)
        case Text(value):
            return quoted(value)
        case Boolean(value):
            return "TRUE" if value else "FALSE"
        case Not(condition):
            return f"NOT {_inner(condition)}"
        case And(parts):
            return " AND ".join(map(_inner, parts))
        case Or(parts):
            return " OR ".join(map(_inner, parts))
    return _printed_predicate(node)


def _printed_predicate(node: Node) -> str:
    match node:
        case Comparison(left, operator, right):
            return f"{printed(left)} {operator} {printed(right)}"
        case Between(value, low, high, negated):
            return f"{printed(value)}{_not(negated)} BETWEEN {printed(low)} AND {printed(high)}"
        case InList(of, items, negated):
            return f"{printed(of)}{_not(negated)} IN ({', '.join(map(printed, items))})"
        case Like(of, pattern, escape, negated):
            escaping = "" if escape is None else f" ESCAPE {quoted(escape)}"
            return f"{printed(of)}{_not(negated)} LIKE {quoted(pattern)}{escaping}"
        case Find(of, search, text, negated):
            return f"{printed(of)}{_not(negated)} {search} {quoted(text)}"
        case IsNull(of, negated):
            return f"{printed(of)} IS{_not(negated)} NULL"
    raise TypeError(node)


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _not(negated: bool) -> str:
    return " NOT" if negated else ""


def _inner(condition: Condition) -> str:
    return f"({printed(condition)})" if isinstance(condition, And | Or) else printed(condition)


# --- evaluating ------------------------------------------------------------------------------------------------------


def evaluated(condition: Condition, message: Attributes) -> Truth:
    """Evaluate the condition by the tables of docs/filters.md, word by word."""
    match condition:
        case Boolean(value):
            return value
        case Not(inner):
            return _unless(True, evaluated(inner, message))
        case And(parts):
            return conjunction([evaluated(part, message) for part in parts])
        case Or(parts):
            return disjunction([evaluated(part, message) for part in parts])
    return _evaluated_predicate(condition, message)


def _evaluated_predicate(predicate: Node, message: Attributes) -> Truth:
    match predicate:
        case Comparison(left, operator, right):
            return compared(left, operator, right, message)
        case Between(value, low, high, negated):
            above, below = compared(value, ">=", low, message), compared(value, "<=", high, message)
            return _unless(negated, conjunction([above, below]))
        case InList(of, items, negated):
            return _unless(negated, disjunction([compared(of, "=", item, message) for item in items]))
        case Like(of, pattern, escape, negated):
            text = text_of(of, message)
            return None if text is None else _unless(negated, is_like(text, pattern, escape))
        case Find(of, search, wanted, negated):
            text = text_of(of, message)
            return None if text is None else _unless(negated, is_found(text, search, wanted))
        case IsNull(of, negated):
            return (text_of(of, message) is None) != negated
    raise TypeError(predicate)


def conjunction(values: list[Truth]) -> Truth:
    if False in values:
        return False
    return None if None in values else True


def disjunction(values: list[Truth]) -> Truth:
    if True in values:
        return True
    return None if None in values else False


def _unless(negated: bool, value: Truth) -> Truth:
    return value if value is None or not negated else not value


def text_of(of: Property, message: Attributes) -> str | None:
    if of.name == "TAGS":
        return message.tag
    if of.name == "KEYS":
        return " ".join(message.keys) or None
    return message.properties.get(of.name)


def number_of(text: str) -> Fraction | None:
    """Return the number in the text: exact if the text is digits, as near as a double otherwise."""
    if len(text) > 40 or not re.fullmatch(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?", text, re.ASCII):
        return None
    if re.fullmatch("[+-]?[0-9]+", text):
        return Fraction(text)
    return Fraction(float(text)) if math.isfinite(float(text)) else None


def _value(of: Node) -> int | float | str | bool:
    assert isinstance(of, Number | Text | Boolean)
    return of.value


def compared(left: Node, operator: str, right: Node, message: Attributes) -> Truth:
    sides = (left, right)
    values: list[Any] = [text_of(side, message) if isinstance(side, Property) else _value(side) for side in sides]
    if None in values:
        return None
    if Number in map(type, sides) or operator not in ("=", "<>"):
        numbers = [number_of(value) if isinstance(value, str) else Fraction(value) for value in values]
        if numbers[0] is None or numbers[1] is None:
            return None
        order = (numbers[0] > numbers[1]) - (numbers[0] < numbers[1])
        return {"=": order == 0, "<>": order != 0, "<": order < 0, "<=": order <= 0, ">": order > 0, ">=": order >= 0}[
            operator
        ]
    if Boolean in map(type, sides):
        values = [value.lower() == "true" if isinstance(value, str) else value for value in values]
    return bool(values[0] == values[1]) is (operator == "=")


def is_found(text: str, search: str, wanted: str) -> bool:
    ends = {
        "CONTAINS": range(len(wanted), len(text) + 1),
        "STARTSWITH": range(len(wanted), len(wanted) + 1),
        "ENDSWITH": range(len(text), len(text) + 1),
    }[search]
    return any(text[max(0, end - len(wanted)) : end] == wanted for end in ends)


def is_like(text: str, pattern: str, escape: str | None) -> bool:
    """Match the pattern with one row of reachable places after the other: slow, and plain to see."""
    elements: list[str | None] = []  # None for %, "" for _
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            elements.append(next(characters))
        else:
            elements.append({"%": None, "_": ""}.get(character, character))
    reachable = [True] + [False] * len(text)
    for element in elements:
        if element is None:
            reachable = [any(reachable[: at + 1]) for at in range(len(reachable))]
        else:
            reachable = [False] + [
                before and element in ("", character) for before, character in zip(reachable, text, strict=False)
            ]
    return reachable[-1]
