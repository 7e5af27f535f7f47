"""Checks that no request of a test keeps the event loop of a node for longer than a step may take.

Every test of this directory is judged (`no_long_steps` in conftest.py): its nodes measure each step in processor time
without garbage collections, and log each step beyond the bound. Why the bounds are as they are, and what is not judged,
is in docs/decisions.md (34).
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from cluster.process.option import ENVIRONMENT_PREFIX
from tests.e2e.cluster_process import NodeProcess

STEP_MS_MAX: Final = 20
"""The bound for the costliest requests within the limits (test_loop_steps.py), as the least of all attempts."""
ATTEMPTS_MAX: Final = 4
BUSY_STEP_MS_MAX: Final = 100
"""The bound for all other tests, of one attempt: cores, caches and memory that others use, and time that the machine
takes from its guest, count as processor time. A refused request of 12 MB had 62 ms at a load of 14.
"""
VARIABLE: Final = f"{ENVIRONMENT_PREFIX}LOOP_STEP_MS_MAX"
LOGGED: Final = "a step of the event loop took"
SHOWN_CHARACTERS: Final = 4_000
"""Length of what a failure shows of one node's log, from its first long step on."""


def metric(node: NodeProcess, name: str) -> float:
    found = re.search(rf"^{name} (\S+)$", node.request("GET", "/metrics").body.decode(), re.MULTILINE)
    assert found is not None, f"node {node.node_id} shows no {name}"
    return float(found[1])


class StepLogs:
    """Reads the logs of all nodes that tests have started, each part once."""

    def __init__(self) -> None:
        self._read: dict[Path, int] = {}

    def long_steps(self) -> Iterator[str]:
        """Yield what each log has said of long steps since the last call."""
        for path in [*NodeProcess.logs]:
            try:
                output = path.read_bytes()
            except FileNotFoundError:
                continue
            text = output[self._read.get(path, 0) :].decode(errors="replace")
            self._read[path] = len(output)
            if LOGGED in text:
                yield f"{path.name}: {text[text.find(LOGGED) :][:SHOWN_CHARACTERS]}"


step_logs: Final = StepLogs()


def in_short_steps(attempt: Callable[[int], None]) -> None:
    """Call `attempt(number)` until none of its steps was long; its cost is the least of its attempts, since other
    programs only add to it. Raises AssertionError after ATTEMPTS_MAX attempts.
    """
    found: list[str] = []
    for number in range(ATTEMPTS_MAX):
        attempt(number)
        found = list(step_logs.long_steps())
        if not found:
            return
    raise AssertionError(f"each of {ATTEMPTS_MAX} attempts had a long step:\n" + "\n".join(found))
