"""Checks the logs that nodes printed: who led which term, and traces that no fault explains."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tests.chaos.violations import Kind, Violations

_LEADER: Final = re.compile(r"-> leader in term (\d+)")
_TRACE: Final = "Traceback (most recent call last)"
TRACE_LINES: Final = 120
"""Maximum lines of a trace: the word that a fault explains is in the last line, behind two lines for each frame."""


def leaders_in(node_id: int, path: Path, leaders: dict[int, int], violations: Violations) -> None:
    """Add the terms that this node claims to have led to `leaders`; two leaders of one term are a violation."""
    for line in _lines(path):
        found = _LEADER.search(line)
        if found is not None:
            term = int(found[1])
            known = leaders.setdefault(term, node_id)
            if known != node_id:
                violations.add(Kind.TWO_LEADERS, f"nodes {known} and {node_id} both say that they led term {term}")


def traces_in(node_id: int, path: Path, explained: Iterable[str], violations: Violations) -> None:
    """Report each trace in the log as a bug of the node, unless it contains one of the words that a fault explains."""
    lines = list(_lines(path))
    words = tuple(explained)
    for number, line in enumerate(lines):
        if _TRACE not in line:
            continue
        trace = "\n".join(lines[max(0, number - 1) : number + TRACE_LINES])
        if not any(word in trace for word in words):
            violations.add(Kind.NODE_ERROR, f"node {node_id}:\n{trace}")


def _lines(path: Path) -> Iterable[str]:
    return path.read_text(errors="replace").splitlines() if path.exists() else ()
