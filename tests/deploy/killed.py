"""The tool killed at every step of its longest verbs, under load: run again, it ends as if it had not been killed."""

import asyncio

from tests.deploy.trial import Trial, kill_and_wipe
from tests.e2e.deployment import load
from tests.e2e.killed_tool import kill_at_steps
from tests.e2e.test_deploy_verbs import members, releases


class Killed(Trial):
    """Upgrade to another release, and replacement of a wiped host."""

    name = "killed"

    async def run(self) -> dict[str, object]:
        deployment = self._deployment
        await self._done("bootstrap", "--bundle", str(self._bundles.present))
        before = releases(deployment)
        async with load(deployment) as acknowledged:
            upgrade = await self._killed("upgrade", "--bundle", str(self._bundles.another))
            after = releases(deployment)
            assert (len(after), len(set(after)), set(after) & set(before)) == (3, 1, set()), (before, after)
            number = deployment.leader()
            await asyncio.to_thread(kill_and_wipe, deployment, [number])
            replace = await self._killed("replace", str(number), "--bundle", str(self._bundles.another))
            assert releases(deployment) == after
        await self._done("status")
        assert members(deployment) == {1: "voter", 2: "voter", 3: "voter"}
        await self._destroy()
        assert acknowledged
        # Installation, configuration and restart of three nodes, and the waiting; the steps of a replacement, whose
        # last one, the waiting, is over when the next run of the tool comes late.
        assert upgrade >= 10, upgrade
        assert replace >= 3, replace
        return {"upgrade_killed": upgrade, "replace_killed": replace}

    async def _killed(self, *arguments: str) -> int:
        self._report.step(" ".join(["keelmq-deploy", *arguments, "(killed at every step)"]))
        return await asyncio.to_thread(kill_at_steps, self._deployment, *arguments)
