"""`keelmq-deploy` killed with SIGKILL, again and again: once at the beginning of every step that it has planned."""

import re
import subprocess
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tests.e2e.deployment import Deployment

STEP: Final = re.compile(r"^ +[\d.]+ s  \d+ of \d+: (.*)$")
"""A line with which the tool says that it begins a step."""


def kill_at_steps(
    deployment: "Deployment",
    *arguments: str,
    chosen: Callable[[str], bool] = lambda _: True,
    after: Callable[[str], None] = lambda _: None,
) -> int:
    """Run the tool until it is done, and kill it at each chosen step when it begins that for the first time. What it
    was doing on a host goes on there. `after(step)` is called after each kill. Return how often it was killed.
    """
    killed: list[str] = []
    while (step := _killed_or_done(deployment, arguments, killed, chosen)) is not None:
        killed.append(step)
        after(step)
    return len(killed)


def _killed_or_done(
    deployment: "Deployment", arguments: Sequence[str], before: list[str], chosen: Callable[[str], bool]
) -> str | None:
    """Return the step at which the tool was killed, None when it came to its end."""
    with deployment.begin(*arguments, errors=subprocess.STDOUT) as process:
        assert process.stdout is not None
        output = ""
        for line in process.stdout:
            output += line
            found = STEP.match(line)
            if found is not None and found[1] not in before and chosen(found[1]):
                process.kill()
                return found[1]
    assert process.returncode == 0, output
    return None
