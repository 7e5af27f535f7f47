"""Parsing of times and durations from a command line."""

import re
from datetime import UTC, datetime
from typing import Final

import typer

_DURATION: Final = re.compile(r"(\d{1,18})(ms|s|min|m|h|d)?")
_UNITS_MS: Final = {None: 1, "ms": 1, "s": 1_000, "min": 60_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_duration(text: str, option: str) -> int:
    """Parse 1500, 1500ms, 90s, 15m or 15min, 2h, 3d to milliseconds. Raises BadParameter for other texts."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise typer.BadParameter(f"{text!r} is not a duration such as 1500ms, 90s, 15m, 2h or 3d", param_hint=option)
    return int(found[1]) * _UNITS_MS[found[2]]


def parse_past(text: str, option: str, now_ms: int) -> int:
    """Parse how long ago (1h, 15m; with a unit), or a time as parse_time does, to Unix milliseconds. Raises
    BadParameter.
    """
    found = _DURATION.fullmatch(text.strip())
    if found is not None and found[2] is not None:
        return max(now_ms - int(found[1]) * _UNITS_MS[found[2]], 0)
    return parse_time(text, option)


def parse_time(text: str, option: str) -> int:
    """Parse Unix milliseconds, or ISO 8601 (UTC without an offset), to Unix milliseconds. Raises BadParameter."""
    if text.isascii() and text.isdigit() and len(text) <= 18:
        return int(text)
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        hint = "a Unix time in ms, or ISO 8601 such as 2030-01-31T09:00:00+01:00"
        raise typer.BadParameter(f"{text!r} is not {hint}", param_hint=option) from None
    if parsed.tzinfo is None:
        parsed = parsed.replace(tzinfo=UTC)
    return round(parsed.timestamp() * 1000)
