"""The way from five bare hosts to the first message that is served."""

import asyncio
import re
import time
from collections.abc import Mapping
from typing import Final

from deploy.reporting.result import result_of
from tests.deploy.trial import Trial
from tests.e2e.deployment import load

FIVE: Final = {1: 1, 2: 2, 3: 3, 4: 4, 5: 5}
GOAL_S: Final = 60.0
"""Time from bare hosts to a message that is served. A missed goal is reported: a busy machine installs slowly."""
_STAGE: Final = re.compile(r"^ *([\d.]+) s  (?:\d+ to )?\d+ of \d+: (.*)$", re.MULTILINE)
_HOST: Final = re.compile(r"node \d+ \([^)]*\): ")


class First(Trial):
    """The tool makes a cluster of five nodes out of hosts that have nothing but Python, and a message is sent. A second
    run changes nothing.
    """

    name = "first"
    places: Mapping[int, int] = FIVE

    async def run(self) -> dict[str, object]:
        deployment = self._deployment
        begun_s = time.monotonic()
        output = await self._done("bootstrap", "--bundle", str(self._bundles.present))
        deployed_s = time.monotonic() - begun_s
        before = deployment.pids()
        assert len(before) == len(FIVE)
        async with load(deployment) as acknowledged:
            while not acknowledged:
                await asyncio.sleep(0.01)
            served_s = time.monotonic() - begun_s
            again = await self._done("bootstrap", "--bundle", str(self._bundles.present))
        assert deployment.pids() == before, "a second run changes nothing"
        assert "install" not in again
        await self._destroy()
        return {
            "served_s": round(served_s, 1),
            "served_goal_met": served_s <= GOAL_S,
            "stages_s": stages_of(output, deployed_s),
            "steps": result_of(output)["steps"],
        }


def stages_of(output: str, end_s: float) -> dict[str, float]:
    """Return how long each kind of step took, by what the tool printed: all hosts together."""
    begun = [(float(at_s), _HOST.sub("", text).replace(",", "").split(" ")[0]) for at_s, text in _STAGE.findall(output)]
    begun = [(0.0, "looking"), *begun]
    took_s: dict[str, float] = {}
    for (at_s, name), (next_s, _) in zip(begun, [*begun[1:], (end_s, "")], strict=True):
        took_s[name] = round(took_s.get(name, 0.0) + next_s - at_s, 1)
    return took_s
