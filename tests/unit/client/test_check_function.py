"""A function that cannot be called with one argument is refused when it is given, not when it is called."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from keelmq.errors import InvalidRequest
from keelmq.plain_calls import check_function


def _wrapped() -> Callable[..., Any]:
    def takes_two(first: object, second: object) -> None:
        """Refused by its own signature, which `wraps` shows instead of that of the wrapper."""

    @functools.wraps(takes_two)
    def wrapper(*arguments: object) -> None:
        takes_two(*arguments)

    return wrapper


def yields(argument: object) -> Iterator[object]:
    yield argument


async def takes_one(argument: object) -> None:
    """Fits."""


class Handler:
    def handle(self, argument: object) -> None:
        """Fits when it is bound."""


@pytest.mark.parametrize(
    "function",
    [
        takes_one,
        lambda argument: argument,
        lambda *arguments: arguments,
        lambda argument, more=1: (argument, more),
        lambda argument=None: argument,
        lambda argument, *, more=1: (argument, more),
        Handler().handle,
        functools.partial(lambda first, second: (first, second), 1),
        print,
    ],
)
def test_what_takes_one_argument_is_accepted(function: Callable[..., Any]) -> None:
    check_function("handler", function)


@pytest.mark.parametrize(
    "function",
    [
        lambda: None,
        lambda first, second: (first, second),
        lambda argument, *, more: (argument, more),
        lambda *, argument: argument,
        yields,
        _wrapped(),
        Handler.handle,
        Handler,
        1,
    ],
)
def test_all_else_is_refused(function: Callable[..., Any]) -> None:
    with pytest.raises(InvalidRequest):
        check_function("handler", function)
