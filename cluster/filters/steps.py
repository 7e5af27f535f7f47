"""An expression evaluated predicate by predicate, for messages on which all of it at once would take too long.

A predicate is linear in the text that it looks at, and a text is as long as the properties of a message may be. So one
of them is short enough for the loop, and an expression has up to a few hundred.
"""

from collections.abc import Callable, Generator
from typing import Final

from cluster.filters.evaluation import Attributes, compile_condition
from cluster.filters.like import looks_at_each_character
from cluster.filters.syntax import And, Condition, Like, Not, Or

Evaluation = Generator[None, None, bool | None]
"""Stops before each predicate; its value is that of the condition."""
Steps = Callable[[Attributes], Evaluation]

CHARACTER_WEIGHT: Final = 32
"""A LIKE with `_` takes Python for each character; the other predicates search at the speed of memory."""


def weight(condition: Condition) -> int:
    """What a character of text costs at most, as the number of predicates that search."""
    match condition:
        case Not(inner):
            return weight(inner)
        case And(parts) | Or(parts):
            return sum(map(weight, parts))
        case Like(_, pattern, escape) if looks_at_each_character(pattern, escape):
            return CHARACTER_WEIGHT
        case _:
            return 1


def compile_steps(condition: Condition) -> Steps:
    """The same as compile_condition, step by step."""
    match condition:
        case Not(inner):
            return _negated(compile_steps(inner))
        case And(parts):
            return _combined(tuple(map(compile_steps, parts)), decides=False)
        case Or(parts):
            return _combined(tuple(map(compile_steps, parts)), decides=True)
    evaluate = compile_condition(condition)

    def predicate(message: Attributes) -> Evaluation:
        yield
        return evaluate(message)

    return predicate


def _negated(steps: Steps) -> Steps:
    def negation(message: Attributes) -> Evaluation:
        value = yield from steps(message)
        return None if value is None else not value

    return negation


def _combined(parts: tuple[Steps, ...], *, decides: bool) -> Steps:
    """AND, of which one False decides, or OR, of which one True does."""

    def combination(message: Attributes) -> Evaluation:
        value: bool | None = not decides
        for part in parts:
            found = yield from part(message)
            if found is decides:
                return decides
            if found is None:
                value = None
        return value

    return combination
