"""Values of options, as a file or a text gives them."""

import tomllib
from typing import Any

import msgspec

from cluster.process.addresses import ConfigError
from cluster.process.option import Option
from cluster.process.quantities import quantity


def read_file(file: str) -> dict[str, Any]:
    """Return the values of a TOML file. Raises ConfigError."""
    try:
        with open(file, "rb") as stream:
            return tomllib.load(stream)
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file}: is not valid TOML: {error}") from None


def convert(value: Any, option: Option, source: str, *, strict: bool) -> Any:
    """Return the value as the option's type; `strict` takes no text for a number, unless it is one with a unit. Raises
    ConfigError with `source`.
    """
    if isinstance(value, str):
        measured = quantity(value, option.name, source)
        value = value if measured is None else measured
    try:
        return msgspec.convert(value, option.type, strict=strict)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{source}: {error}. {option.description}") from None
