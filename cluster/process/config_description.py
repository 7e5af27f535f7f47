"""The options of a node for people and for its log, without anything secret."""

import re
from typing import Final

import msgspec

from cluster.process.config import NodeConfig, options

_CREDENTIALS: Final = re.compile(r"//[^/@]*@")
"""User and password of a URL."""


def describe(config: NodeConfig) -> str:
    """Return all options and their values on one line, as `described` does."""
    return " ".join(f"{name}={value}" for name, value in described(config).items())


def described(config: NodeConfig) -> dict[str, str]:
    """Return the values of all options by name, as JSON. Secrets are in files, of which it names the paths only; what a
    URL may carry besides scheme, host, port and path is left out.
    """
    shown = {option.name: _without_credentials(getattr(config, option.name)) for option in options()}
    return {name: msgspec.json.encode(value).decode() for name, value in shown.items()}


def _without_credentials(value: object) -> object:
    if isinstance(value, str):
        return _CREDENTIALS.sub("//", value).partition("?")[0] if "://" in value else value
    if isinstance(value, list | tuple):
        return [_without_credentials(each) for each in value]
    return value
