"""All hosts wiped, and a majority lost for good: from a backup, and from a survivor, to a cluster that goes on."""

import asyncio
import shutil
import time
from pathlib import Path

from deploy.reporting.result import result_of
from deploy.rollout.ways_back import ACCEPT
from tests.deploy.trial import OTHER_PLACES, Trial, kill_and_wipe
from tests.e2e.deployment import Deployment, load, messages_of
from tests.e2e.killed_tool import kill_at_steps
from tests.e2e.test_deploy_verbs import members


class WaysBack(Trial):
    """A backup under load is restored on other hosts by a tool that is killed at every step; then one node of three is
    all that is left.
    """

    name = "ways-back"

    async def run(self) -> dict[str, object]:
        bundle = str(self._bundles.present)
        await self._done("bootstrap", "--bundle", bundle)
        async with load(self._deployment) as acknowledged:
            output = await self._done("backup")
        file = Path(result_of(output)["file"])
        kill_and_wipe(self._deployment, self._deployment.urls)
        other = self._hosts.deployment("restored", OTHER_PLACES)
        begun_s = time.monotonic()
        restored = await self._done("restore", "--backup", str(file), "--bundle", bundle, at=other)
        restored_s = time.monotonic() - begun_s
        hashes = {word for word in _hashes(output) | _hashes(restored)}
        assert len(hashes) == 1, (output, restored)
        found = await messages_of(other)
        assert 0 < found <= len(acknowledged)
        await self._goes_on(other, found)
        killed = await self._killed_restore(other, file, bundle)
        return {
            "restored_s": round(restored_s, 1),
            "restored": found,
            "restore_killed": killed,
            "recovered": await self._recover(other),
        }

    async def _killed_restore(self, other: Deployment, file: Path, bundle: str) -> int:
        """Restore the backup once more over the cluster that was made of it, with a tool that is killed."""
        kill_and_wipe(other, other.urls)
        arguments = ("restore", "--backup", str(file), "--bundle", bundle)
        self._report.step(" ".join(["keelmq-deploy", *arguments, "(killed at every step)"]))
        killed = await asyncio.to_thread(kill_at_steps, other, *arguments)
        assert killed >= 20, killed
        await self._done("status", at=other)
        return killed

    async def _recover(self, other: Deployment) -> int:
        """Lose the hosts of two nodes, and make the third one a cluster, to which the others are added."""
        before = await messages_of(other)
        async with load(other) as acknowledged:
            await _beyond(before, acknowledged)
        lost = sorted({1, 2, 3} - {survivor := max(other.urls)})
        kill_and_wipe(other, lost)
        refused = await asyncio.to_thread(other.run, "recover", str(survivor))
        assert refused.returncode == 3, refused.stdout + refused.stderr
        await self._done("recover", str(survivor), ACCEPT, at=other)
        found = await messages_of(other)
        assert found == len(acknowledged)
        async with load(other) as acknowledged:
            for number in lost:
                await self._done("add", str(number), "--bundle", str(self._bundles.present), at=other)
            await _beyond(found, acknowledged)
        assert members(other) == {1: "voter", 2: "voter", 3: "voter"}
        await self._done("status", at=other)
        await self._destroy(at=other)
        shutil.rmtree(other.directory)
        return found

    async def _goes_on(self, deployment: Deployment, found: int) -> None:
        """Send what was sent before, which is recognized, and more; restart node by node meanwhile."""
        async with load(deployment) as acknowledged:
            await _beyond(found, acknowledged)
            await self._done("restart", at=deployment)


def _hashes(output: str) -> set[str]:
    """Return the state hashes that the tool has said: that of the backup, and of each node that was made of it."""
    words = output.replace("(", " ").replace(")", " ").split()
    return {words[at + 2] for at in range(len(words) - 2) if words[at : at + 2] == ["state", "hash"]}


async def _beyond(found: int, acknowledged: list[int]) -> None:
    """Wait until the load has sent more than what the queue had when it began: the rest is recognized."""
    while len(acknowledged) <= found:
        await asyncio.sleep(0)
