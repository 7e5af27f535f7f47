"""Parsing of sizes from a command line, and printing of them."""

import re
from typing import Final

import typer

_SIZE: Final = re.compile(r"(\d{1,18})(?:([KMGT])(?:iB)?)?")
_UNITS: Final = {None: 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parse_size(text: str, option: str) -> int:
    """Parse 1500, 64K, 512M, 1G, 2T, also 1GiB, to bytes. Raises BadParameter for other texts."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        hint = "a number of bytes, or a size such as 64K, 512M, 1G or 2T (powers of 1,024)"
        raise typer.BadParameter(f"{text!r} is not {hint}", param_hint=option)
    return int(found[1]) * _UNITS[found[2]]


def size(count: int | None) -> str | None:
    """Format a number of bytes for people, in the largest unit of which it is at least one."""
    if count is None:
        return None
    for unit, unit_bytes in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= unit_bytes:
            return f"{count / unit_bytes:.1f} {unit}"
    return f"{count} B"
