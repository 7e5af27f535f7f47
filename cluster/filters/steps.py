"""Evaluates an expression predicate by predicate, for messages on which the whole expression would take too long.

A predicate is linear in the text that it looks at, and a text is as long as the properties of a message may be. So one
predicate is short enough for the loop, but an expression has up to a few hundred of them.
"""

from collections.abc import Callable, Generator
from typing import Final

from cluster.filters.evaluation import Attributes, compile_condition
from cluster.filters.like import looks_at_each_character
from cluster.filters.syntax import And, Condition, Like, Not, Or

Evaluation = Generator[None, None, bool | None]
"""Generator that stops before each predicate and returns the value of the condition."""
Steps = Callable[[Attributes], Evaluation]

CHARACTER_WEIGHT: Final = 32
"""Weight of a LIKE with `_`, which takes a Python step per character; other predicates search at memory speed."""


def weight(condition: Condition) -> int:
    """Return the maximum cost of a character of text, as the equivalent number of searching predicates."""
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
    """Return a function that evaluates the condition as `compile_condition` does, but in steps."""
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
    """Return the steps of an AND, which one False decides, or of an OR, which one True decides."""

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
