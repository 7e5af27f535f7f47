"""`render`: the files by which something else than this tool runs the nodes, from the same inventory."""

import argparse
import os
from pathlib import Path

from deploy.reporting.report import Report
from deploy.rollout.certificates import Certificates
from deploy.rollout.inventory import Inventory
from deploy.rollout.rendering.ansible import ansible, data_dir, etc
from deploy.rollout.rendering.compose import ETC as COMPOSE_ETC
from deploy.rollout.rendering.compose import compose
from deploy.rollout.rendering.files import RenderError, refuse_foreign, write_directory
from deploy.rollout.rendering.image import DATA, USER
from deploy.rollout.rendering.kubernetes import ETC as KUBERNETES_ETC
from deploy.rollout.rendering.kubernetes import kubernetes
from deploy.rollout.rendering.parts import check, in_containers, parts_of
from deploy.rollout.side_by_side import Failed
from deploy.rollout.steps import Step
from deploy.rollout.verbs import Verbs


class RenderVerb(Verbs):
    """Renders the inventory for one target. Raises as Verbs does."""

    def __init__(self, inventory: Inventory, options: argparse.Namespace, report: Report) -> None:
        super().__init__(inventory, options, report)
        self._target: str = options.subject
        self._directory: Path = Path(options.output).absolute()

    def render(self) -> None:
        """Make what is missing of certificates and secret, have keelmqd check every configuration, write the files."""
        try:
            refuse_foreign(self._directory)
            self._do([*self._material_steps(), Step(f"check and write {self._directory}", self._write)])
        except RenderError as error:
            raise Failed(str(error)) from None

    def _material_steps(self) -> list[Step]:
        steps = []
        certificates = Certificates(self._inventory)
        if self._inventory.cluster.tls:
            if not certificates.has_authority:
                steps.append(Step(f"make an authority in {certificates.directory}", certificates.make_authority))
            for node in self._inventory.nodes:
                if self._options.renew or not certificates.has(node):
                    text = f"node {node.id}: {'renew' if certificates.has(node) else 'make'} its certificate"
                    steps.append(Step(text, lambda node=node: certificates.make(node)))  # type: ignore[misc]
        if self._inventory.makes_secret and self._secret(create=False) is None:
            steps.append(Step("make the secret of the nodes", lambda: self._make_secret()))
        return steps

    def _make_secret(self) -> None:
        self._secret(create=True)

    def _write(self) -> None:
        if self._target == "compose" and self._inventory.file.backup.target:
            self._report.event("no backups on schedule: Compose has none, [backup] is left out", "problem")
        is_root = os.geteuid() == 0
        if self._target == "ansible":
            place, where = etc(self._inventory), data_dir(self._inventory)
            nodes = parts_of(self._inventory, where, place)
            files = ansible(self._inventory, nodes)
        elif self._target == "kubernetes":
            place = KUBERNETES_ETC
            nodes = in_containers(parts_of(self._inventory, DATA, place))
            files = kubernetes(self._inventory, nodes)
        else:
            place = COMPOSE_ETC
            nodes = in_containers(parts_of(self._inventory, DATA, place))
            files = compose(self._inventory, nodes, _user(is_root))
        for each in nodes:
            check(each, place)
        write_directory(self._directory, files, USER if is_root and self._target == "compose" else None)


def _user(is_root: bool) -> str:
    """Return the user of the containers, who has to own the secrets: files of Compose keep their owner."""
    return f"{USER}:{USER}" if is_root else f"{os.getuid()}:{os.getgid()}"
