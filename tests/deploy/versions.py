"""A real upgrade between two versions over ssh, under load: from the last release to this tree, and back, twice."""

from tests.deploy.trial import Trial, latency_figures
from tests.e2e.deployment import load


class Versions(Trial):
    """The feature level stays that of the last release, so that the way back is open."""

    name = "versions"

    async def run(self) -> dict[str, object]:
        if self._bundles.former is None:
            return {"former_version": None}
        deployment = self._deployment
        release, bundle = self._bundles.former
        new = deployment.options
        deployment.options = {number: {} for number in new}  # the last release knows none of these options
        deployment.write()
        await self._done("bootstrap", "--bundle", str(bundle))
        took_s: list[float] = []
        async with load(deployment, took_s) as acknowledged:
            assert await self._versions() == {release.version}
            for _ in range(2):
                deployment.options = new
                deployment.write()
                await self._done("upgrade", "--bundle", str(self._bundles.present))
                (present,) = await self._versions()
                assert present != release.version
                deployment.options = {number: {} for number in new}
                deployment.write()
                await self._done("rollback")
                assert await self._versions() == {release.version}
        await self._done("status")
        await self._destroy()
        return {
            "former_version": release.version,
            "version": present,
            "upgraded_under_load": len(acknowledged),
            **latency_figures(self.name, took_s),
        }

    async def _versions(self) -> set[str]:
        """Return the versions that run, which the table of `status` says."""
        rows = [line.split() for line in (await self._done("status")).splitlines() if line.endswith("ready")]
        assert len(rows) == len(self._deployment.urls), rows
        return {row[-3] for row in rows}
