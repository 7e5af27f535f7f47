"""Sizes and times with a unit, as options of a node take them: `1G`, `512M`, `90s`, `15m`, `7d`."""

import re
from collections.abc import Mapping
from typing import Final

from cluster.process.addresses import ConfigError

_QUANTITY: Final = re.compile(r"([0-9]{1,18})([A-Za-z]{1,3})")
_SIZES: Final = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
SIZE_UNITS: Final[Mapping[str, int]] = {**_SIZES, **{f"{unit}iB": size for unit, size in _SIZES.items()}}
"""Units of options in bytes: powers of 1,024."""
TIME_UNITS: Final[Mapping[str, int]] = {
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}
"""Units of options in milliseconds."""
_IS_SIZE: Final = re.compile(r"_bytes(_|$)")
_IS_TIME: Final = re.compile(r"_ms(_|$)")


def units_of(name: str) -> Mapping[str, int]:
    """Return the units that an option takes, by its name; empty for an option that is neither a size nor a time."""
    return SIZE_UNITS if _IS_SIZE.search(name) else TIME_UNITS if _IS_TIME.search(name) else {}


def quantity(text: str, name: str, source: str) -> int | None:
    """Return the value of a text such as 1G in the unit of the option's name; None when it names no unit.

    Raises ConfigError with `source` for a unit that the option does not take.
    """
    units, found = units_of(name), _QUANTITY.fullmatch(text.strip())
    if not units or found is None:
        return None
    if found[2] not in units:
        what, example = ("size", "1G, 512M or 64K") if units is SIZE_UNITS else ("time", "90s, 15m, 2h or 7d")
        raise ConfigError(f"{source}: {text!r} is no {what} such as {example}; the units are {', '.join(units)}")
    return int(found[1]) * units[found[2]]
