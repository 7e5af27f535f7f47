"""The last line of a long command, `RESULT {json}`: written for programs, and read back by them."""

import json
from collections.abc import Mapping
from typing import Any, Final

PREFIX: Final = "RESULT "


def result_line(result: Mapping[str, Any]) -> str:
    """Return the line without its line end. Raises TypeError when a value cannot be written as JSON."""
    return PREFIX + json.dumps(result)


def result_of(output: str) -> dict[str, Any]:
    """Return the result at the end of a command's output.

    Raises ValueError when the last line is not a result, or when an earlier line is one too.
    """
    lines = output.splitlines()
    found = [number for number, line in enumerate(lines, 1) if line.startswith(PREFIX)]
    if not found or found != [len(lines)]:
        raise ValueError(f"the output does not end with its only line of a result:\n{output[-8_000:]}")
    result: dict[str, Any] = json.loads(lines[-1].removeprefix(PREFIX))
    return result
