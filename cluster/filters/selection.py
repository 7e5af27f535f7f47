"""Turns the filter of a consumer into a function that decides for each message whether it is delivered."""

import functools
from collections.abc import Callable
from typing import Final

from cluster.filters.evaluation import Attributes, compile_condition
from cluster.filters.parser import parse
from cluster.filters.steps import Evaluation, compile_steps, weight
from cluster.limits import KEY_BYTES_MAX, KEYS_MAX, PROPERTIES_BYTES_MAX

COMPILED_MAX: Final = 256
"""Number of compiled expressions kept, the last used ones: consumers poll with the same expression again and again."""
ALL_TAGS: Final = "*"

ATTRIBUTES_LENGTH_MAX: Final = PROPERTIES_BYTES_MAX + KEYS_MAX * KEY_BYTES_MAX
COSTLY: Final = 640_000
"""Weight of an expression times characters of a message from which on it is evaluated in steps: 2 to 3 ms of work."""

Selects = Callable[[Attributes], bool]


class Expression:
    """Selects the messages for which an SQL92 expression is true. Raises InvalidFilter when the text is not valid."""

    def __init__(self, expression: str) -> None:
        condition = parse(expression)
        self._evaluate = compile_condition(condition)
        self._steps = compile_steps(condition)
        self._weight = weight(condition)

    def __call__(self, message: Attributes) -> bool:
        return self._evaluate(message) is True

    def is_costly(self, message: Attributes) -> bool:
        """Return whether the expression must be evaluated by `steps` on this message."""
        if self._weight * ATTRIBUTES_LENGTH_MAX < COSTLY:
            return False
        length = sum(map(len, message.properties.values())) + sum(map(len, message.keys))
        return self._weight * length >= COSTLY

    def steps(self, message: Attributes) -> Evaluation:
        """Evaluate the expression with a stop before each predicate. Only the value True selects the message."""
        return self._steps(message)


@functools.lru_cache(COMPILED_MAX)
def by_expression(expression: str) -> Expression:
    """Return the compiled expression, from the cache if possible. Raises InvalidFilter when the text is not valid."""
    return Expression(expression)


def tag_set(text: str) -> frozenset[str] | None:
    """Parse `A || B` into a set of tags; `*`, which selects every message, gives None.

    Raises ValueError when a tag is empty.
    """
    if text.strip() == ALL_TAGS:
        return None
    tags = frozenset(part.strip() for part in text.split("||"))
    if "" in tags:
        raise ValueError("tags separated by ||, as in A || B")
    return tags


def by_tags(tags: frozenset[str]) -> Selects:
    return lambda message: message.tag in tags
