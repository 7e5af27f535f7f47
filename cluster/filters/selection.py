"""What a consumer asks for, as a function that says of each message whether it is delivered."""

import functools
from collections.abc import Callable
from typing import Final

from cluster.filters.evaluation import Attributes, compile_condition
from cluster.filters.parser import parse

COMPILED_MAX: Final = 256
"""Expressions that are kept compiled, the ones used last: consumers poll with the same ones again and again."""
ALL_TAGS: Final = "*"

Selects = Callable[[Attributes], bool]


@functools.lru_cache(COMPILED_MAX)
def by_expression(expression: str) -> Selects:
    """Messages for which an SQL92 expression is true. InvalidFilter when it is not one."""
    evaluate = compile_condition(parse(expression))
    return lambda message: evaluate(message) is True


def tag_set(text: str) -> frozenset[str] | None:
    """`A || B` as a set; None for `*`, which stands for every message. ValueError when a tag is empty."""
    if text.strip() == ALL_TAGS:
        return None
    tags = frozenset(part.strip() for part in text.split("||"))
    if "" in tags:
        raise ValueError("tags separated by ||, as in A || B")
    return tags


def by_tags(tags: frozenset[str]) -> Selects:
    return lambda message: message.tag in tags
