"""Options and arguments that take a plainly valid value as it is.

Typer converts every value with pydantic, even a text to a text, and importing pydantic takes as long as all the rest of
a command's start. What these classes do not know, Typer converts, and it words all errors.
"""

import copy
import re
from typing import Any, Final, Literal, TypeVar, get_args, get_origin

from typer.core import TyperArgument, TyperOption

P = TypeVar("P", bound=Any)

UNKNOWN: Final = object()
"""Stands for a value that Typer has to convert."""

_DECIMAL: Final = re.compile(r"-?[0-9]{1,18}")
_FLAGS: Final = {"0": False, "false": False, "1": True, "true": True}
"""Values of environment variables that are flags."""


class PlainOption(TyperOption):
    """An option that behaves as Typer's, with less to import."""

    def process_value(self, ctx: Any, value: Any) -> Any:
        return _process(self, super().process_value, ctx, value)


class PlainArgument(TyperArgument):
    """An argument that behaves as Typer's, with less to import."""

    def process_value(self, ctx: Any, value: Any) -> Any:
        return _process(self, super().process_value, ctx, value)


def plain(parameter: P) -> P:
    """Return a copy of a parameter of Typer that takes plainly valid values as they are."""
    for ours in (PlainOption, PlainArgument):
        if type(parameter) is ours.__base__:
            copied = copy.copy(parameter)
            copied.__class__ = ours
            return copied
    return parameter


def converted(value: Any, annotation: Any, parameter: Any) -> Any:
    """Return the value as Typer would convert it, or UNKNOWN where that needs more than a look at it."""
    known = parameter.type_descriptor.parameter_info
    if known.parser is not None or known.clamp:
        return UNKNOWN
    if get_origin(annotation) is list and isinstance(value, list | tuple):
        (kind,) = get_args(annotation)
        items = [converted(each, kind, parameter) for each in value]
        return UNKNOWN if any(each is UNKNOWN for each in items) else items
    if get_origin(annotation) is Literal and value in get_args(annotation):
        return value
    if annotation in (str, bool) and type(value) is annotation:
        return value
    if annotation is bool:
        return _FLAGS.get(value, UNKNOWN)
    if annotation is int and type(value) in (int, str) and _DECIMAL.fullmatch(str(value)):
        number = int(value)
        low, high = known.min, known.max
        return number if (low is None or number >= low) and (high is None or number <= high) else UNKNOWN
    return UNKNOWN


def _process(parameter: Any, by_typer: Any, ctx: Any, value: Any) -> Any:
    many = parameter.multiple or parameter.nargs == -1
    if value is None:
        done: Any = UNKNOWN if parameter.required else () if many else None
    else:
        done = converted(value, parameter.type_descriptor.annotation, parameter)
    if done is UNKNOWN or (parameter.required and parameter.value_is_missing(done)):
        return by_typer(ctx, value)
    return parameter.callback(ctx, parameter, done) if parameter.callback is not None else done
