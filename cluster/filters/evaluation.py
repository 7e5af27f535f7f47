"""Compiles the tree into closures with three-valued logic: a condition is True, False, or None when it is unknown.

A property that a message does not have is NULL, and a comparison with NULL is neither true nor false; nor is a
comparison of a number with a property whose text is not a number. Only messages with the value True are delivered.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from cluster.filters.like import like
from cluster.filters.numeric import number_of
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
    Not,
    Number,
    Operand,
    Operator,
    Or,
    Property,
    Text,
)

TAG_PROPERTY: Final = "TAGS"
KEYS_PROPERTY: Final = "KEYS"


class Attributes(Protocol):
    """The attributes of a message that a filter may read."""

    @property
    def tag(self) -> str | None: ...
    @property
    def keys(self) -> Sequence[str]: ...
    @property
    def properties(self) -> Mapping[str, str]: ...


Evaluate = Callable[[Attributes], bool | None]
Read = Callable[[Attributes], str | None]
Measure = Callable[[Attributes], int | float | None]

_COMPARE: Final[Mapping[Operator, Callable[[int | float, int | float], bool]]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_MIRRORED: Final[Mapping[Operator, Operator]] = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


def compile_condition(condition: Condition) -> Evaluate:
    """Return a function that evaluates the condition on a message. It evaluates each predicate at most once, and has no
    side effects.
    """
    match condition:
        case Boolean(value):
            return lambda message: value
        case Comparison():
            return _comparison(condition)
        case Between():
            return _negated_if(condition.negated, _between(condition))
        case InList():
            return _negated_if(condition.negated, _in_list(condition))
        case Like():
            matches = like(condition.pattern, condition.escape)
            return _negated_if(condition.negated, _of_text(condition.property, matches))
        case Find():
            return _negated_if(condition.negated, _of_text(condition.property, _search(condition)))
        case IsNull(of, negated):
            return _is_null(_reader(of), negated)
        case Not(inner):
            return _negated_if(True, compile_condition(inner))
        case And(parts):
            return _all(tuple(map(compile_condition, parts)))
        case Or(parts):
            return _any(tuple(map(compile_condition, parts)))


# Logic.


def _negated_if(negated: bool, evaluate: Evaluate) -> Evaluate:
    if not negated:
        return evaluate

    def negation(message: Attributes) -> bool | None:
        value = evaluate(message)
        return None if value is None else not value

    return negation


def _all(parts: Sequence[Evaluate]) -> Evaluate:
    def conjunction(message: Attributes) -> bool | None:
        value: bool | None = True
        for part in parts:
            found = part(message)
            if found is False:
                return False
            if found is None:
                value = None
        return value

    return conjunction


def _any(parts: Sequence[Evaluate]) -> Evaluate:
    def disjunction(message: Attributes) -> bool | None:
        value: bool | None = False
        for part in parts:
            found = part(message)
            if found:
                return True
            if found is None:
                value = None
        return value

    return disjunction


# Values.


def _reader(of: Property) -> Read:
    name = of.name
    if name == TAG_PROPERTY:
        return lambda message: message.tag
    if name == KEYS_PROPERTY:
        return lambda message: " ".join(message.keys) if message.keys else None
    return lambda message: message.properties.get(name)


def _measure(of: Operand) -> Measure:
    """Return a function that reads the number of an operand, which must be a property or a number."""
    if isinstance(of, Number):
        value = of.value
        return lambda message: value
    assert isinstance(of, Property)
    read = _reader(of)

    def measure(message: Attributes) -> int | float | None:
        text = read(message)
        return None if text is None else number_of(text)

    return measure


# Predicates.


def _comparison(condition: Comparison) -> Evaluate:
    left, symbol, right = condition.left, condition.operator, condition.right
    if not isinstance(left, Property):
        left, symbol, right = right, _MIRRORED[symbol], left
    if not isinstance(left, Property):
        return _constant(left, symbol, right)
    if isinstance(right, Number):
        return _compare_number(_reader(left), symbol, right.value)
    if symbol not in ("=", "<>"):
        return _compare_measured(_measure(left), symbol, _measure(right))
    if isinstance(right, Property):
        return _negated_if(symbol == "<>", _equal_properties(_reader(left), _reader(right)))
    if isinstance(right, Boolean):
        is_true = right.value
        return _negated_if(symbol == "<>", _of_text(left, lambda text: _says_true(text) is is_true))
    assert isinstance(right, Text)
    return _negated_if(symbol == "<>", _of_text(left, right.value.__eq__))


def _says_true(text: str) -> bool:
    return len(text) == len("true") and text.lower() == "true"


def _constant(left: Operand, symbol: Operator, right: Operand) -> Evaluate:
    if isinstance(left, Number) and isinstance(right, Number):
        value = _COMPARE[symbol](left.value, right.value)
    else:
        value = (left == right) is (symbol == "=")
    return lambda message: value


def _compare_number(read: Read, symbol: Operator, number: int | float) -> Evaluate:
    compare = _COMPARE[symbol]

    def comparison(message: Attributes) -> bool | None:
        text = read(message)
        if text is None:
            return None
        value = number_of(text)
        return None if value is None else compare(value, number)

    return comparison


def _compare_measured(left: Measure, symbol: Operator, right: Measure) -> Evaluate:
    compare = _COMPARE[symbol]

    def comparison(message: Attributes) -> bool | None:
        first, second = left(message), right(message)
        return None if first is None or second is None else compare(first, second)

    return comparison


def _equal_properties(left: Read, right: Read) -> Evaluate:
    def comparison(message: Attributes) -> bool | None:
        first, second = left(message), right(message)
        return None if first is None or second is None else first == second

    return comparison


def _between(condition: Between) -> Evaluate:
    value, low, high = condition.value, condition.low, condition.high
    if isinstance(low, Number) and isinstance(high, Number):
        measure, least, most = _measure(value), low.value, high.value

        def within(message: Attributes) -> bool | None:
            found = measure(message)
            return None if found is None else least <= found <= most

        return within
    above = _compare_measured(_measure(value), ">=", _measure(low))
    return _all((above, _compare_measured(_measure(value), "<=", _measure(high))))


def _in_list(condition: InList) -> Evaluate:
    read = _reader(condition.property)
    texts = frozenset(item.value for item in condition.items if isinstance(item, Text))
    numbers = frozenset(item.value for item in condition.items if isinstance(item, Number))

    def contained(message: Attributes) -> bool | None:
        text = read(message)
        if text is None:
            return None
        if text in texts:
            return True
        if not numbers:
            return False
        value = number_of(text)
        return None if value is None else value in numbers

    return contained


def _of_text(of: Property, test: Callable[[str], bool]) -> Evaluate:
    read = _reader(of)

    def predicate(message: Attributes) -> bool | None:
        text = read(message)
        return None if text is None else test(text)

    return predicate


def _search(condition: Find) -> Callable[[str], bool]:
    wanted = condition.text
    if condition.search == "CONTAINS":
        return lambda text: wanted in text
    if condition.search == "STARTSWITH":
        return lambda text: text.startswith(wanted)
    return lambda text: text.endswith(wanted)


def _is_null(read: Read, negated: bool) -> Evaluate:
    if negated:
        return lambda message: read(message) is not None
    return lambda message: read(message) is None
