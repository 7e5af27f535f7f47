"""The verbs on a running cluster, under load."""

import asyncio

from deploy.reporting.result import result_of
from tests.chaos.network import host_of
from tests.deploy.hosts import PEER_PORT
from tests.deploy.trial import Trial, kill_and_wipe, latency_figures
from tests.e2e.deployment import load


class Verbs(Trial):
    """A closed port that preflight names; a second run that changes nothing; restart, upgrade to another release,
    rollback, and a wiped host that is replaced: no call fails, no message is lost.
    """

    name = "verbs"

    async def run(self) -> dict[str, object]:
        deployment = self._deployment
        await self._closed_port()
        await self._done("bootstrap", "--bundle", str(self._bundles.present))
        before = deployment.pids()
        took_s: list[float] = []
        async with load(deployment, took_s) as acknowledged:
            while not acknowledged:
                await asyncio.sleep(0.01)
            await self._done("bootstrap")
            assert deployment.pids() == before, "a second run changes nothing"
            await self._done("restart")
            await self._done("upgrade", "--bundle", str(self._bundles.another))
            await self._done("rollback")
            again = await self._done("rollback")
            assert result_of(again)["steps"] <= 1, again  # it waits until all are healthy
            number = deployment.leader()
            await asyncio.to_thread(kill_and_wipe, deployment, [number])
            await self._done("replace", str(number), "--bundle", str(self._bundles.present))
        await self._done("status")
        await self._destroy()
        return {
            "acknowledged": len(acknowledged),
            "failed_calls": 0,
            "lost": 0,
            **latency_figures(self.name, took_s),
        }

    async def _closed_port(self) -> None:
        network = self._hosts.network
        await network.rules("closed", 2, [f"tcp dport {PEER_PORT} drop"])
        found = await asyncio.to_thread(self._deployment.run, "preflight")
        assert found.returncode == 1, found.stdout
        for number in (1, 3):
            assert f"node {number} (root@{host_of(number)}): {host_of(2)}:{PEER_PORT} cannot be reached" in found.stdout
        await network.remove("closed")
        await self._done("preflight")
