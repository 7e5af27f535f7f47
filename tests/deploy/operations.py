"""docs/operations.md, followed word for word on hosts that only ssh and a bundle reach."""

import asyncio
import shutil
from pathlib import Path

from tests.chaos.network import host_of
from tests.deploy.hosts import destination
from tests.deploy.trial import Trial
from tests.operations_page import Surroundings, follow


class Operations(Trial):
    """The way from installing to a restore of everything, with the commands of the page."""

    name = "operations"

    async def run(self) -> dict[str, object]:
        self._report.step("docs/operations.md")
        clone = self._deployment.directory / "clone"
        for folder, bundle in (("dist", self._bundles.present), ("next", self._bundles.another)):
            (clone / folder).mkdir(parents=True)
            shutil.copyfile(bundle, clone / folder / "keelmq-0.0-py3-linux-of-the-test.tar.gz")
            (clone / folder / "keelmq-0.0.tar.gz").touch()  # `make dist` puts source beside it
        given = {name: self._deployment.cluster[name] for name in ("python", "ssh_options")}
        surroundings = Surroundings(lambda host, port: f"{host_of(host)}:{port}", given, destination, has_bundles=True)
        await asyncio.to_thread(follow, Path(clone), surroundings)
        return {"operations_page": "as written"}
