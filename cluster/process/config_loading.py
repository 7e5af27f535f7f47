"""Loads the configuration of a node from three sources and validates it. A source overrides those before it:

    TOML file  <  environment (KEELMQ_<OPTION>)  <  command line (--option)

The options are the fields of `NodeConfig` (config.py), the rules between them are in validation.py.
"""

import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from cluster.process.addresses import ConfigError
from cluster.process.config import NodeConfig, options
from cluster.process.option import CLIENT_VARIABLES, ENVIRONMENT_PREFIX, Option
from cluster.process.quantities import quantity
from cluster.process.validation import validate


class LoadedConfig(NodeConfig, frozen=True, kw_only=True):
    """The options of a node, and where those that were given come from."""

    given_by: dict[str, str] = msgspec.field(default_factory=dict)


def load(file: str | None, environment: Mapping[str, str], flags: Mapping[str, str | Sequence[str]]) -> NodeConfig:
    """Read the three sources and return the validated configuration. Raises ConfigError with option and source."""
    values: dict[str, Any] = {}
    known = {option.name: option for option in options()}
    if file is not None:
        for key, value in _read_file(file).items():
            if key not in known:
                raise ConfigError(f"{file}: unknown option {key!r}; keelmqd --help lists them")
            values[key] = _convert(value, known[key], f"{file}: {key}", strict=True)
    for variable, text in sorted(environment.items()):
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in CLIENT_VARIABLES:
            continue
        key = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
        if key not in known or variable != variable.upper():
            raise ConfigError(f"environment: unknown option {variable!r}; keelmqd --help lists them")
        raw = [part.strip() for part in text.split(",") if part.strip()] if known[key].is_list else text
        values[key] = _convert(raw, known[key], variable, strict=False)
    for key, flag in flags.items():
        values[key] = _convert(flag, known[key], known[key].flag, strict=False)
    return validate(LoadedConfig(**values, given_by=sources(file, environment, flags)))


def sources(
    file: str | None, environment: Mapping[str, str], flags: Mapping[str, str | Sequence[str]]
) -> dict[str, str]:
    """Return where the value of each option that is given comes from. `load` has accepted the same arguments."""
    found = dict.fromkeys(_read_file(file) if file is not None else (), str(file))
    for option in options():
        if option.variable in environment:
            found[option.name] = option.variable
        if option.name in flags:
            found[option.name] = option.flag
    return found


def _read_file(file: str) -> dict[str, Any]:
    """Return the values of a TOML file. Raises ConfigError."""
    try:
        with open(file, "rb") as stream:
            return tomllib.load(stream)
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file}: is not valid TOML: {error}") from None


def _convert(value: Any, option: Option, source: str, *, strict: bool) -> Any:
    """Return the value as the option's type; `strict` takes no text for a number, unless it is one with a unit. Raises
    ConfigError with `source`.
    """
    if isinstance(value, str):
        measured = quantity(value, option.name, source)
        value = value if measured is None else measured
    try:
        return msgspec.convert(value, option.type, strict=strict)
    except ValueError as error:  # msgspec.ValidationError, and UnicodeEncodeError for bytes that are no text
        raise ConfigError(f"{source}: {error}. {option.description}") from None
