"""The authority and certificates of a deployment, in a directory beside its inventory."""

import subprocess
import sys
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from deploy.rollout.inventory import CERTIFICATES_END, TLS_FILES, Inventory, Node

AUTHORITY: Final = "ca.crt"


class CertificateError(Exception):
    """A certificate could not be made; the text is that of `keelmq cert`."""


class Certificates:
    """The certificates that `keelmq cert` makes for the nodes of one inventory. Raises CertificateError."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self.directory: Final = inventory.beside(CERTIFICATES_END)

    @property
    def has_authority(self) -> bool:
        return (self.directory / AUTHORITY).exists()

    def has(self, node: Node) -> bool:
        return (self.directory / f"node-{node.id}.crt").exists()

    def make_authority(self) -> None:
        self._keelmq_cert("ca", str(self.directory))

    def make(self, node: Node) -> None:
        """Make the certificate of the node, or another one for its key if it has one."""
        urls = {urlsplit(url).hostname or "" for url in (node.url, node.admin_url)}
        hosts = {node.peer.rsplit(":", 1)[0].strip("[]"), *urls, *node.names} - {""}
        named = [part for host in sorted(hosts) for part in ("--host", host)]
        identity = ["--cluster-id", self._inventory.cluster.id, "--node-id", str(node.id)]
        self._keelmq_cert("node", str(self.directory), *identity, *named, *(["--renew"] if self.has(node) else []))

    def files(self, node: Node) -> list[tuple[str, Path, int]]:
        """Return name and mode at the node, and path here, of each file of the node."""
        here = {"ca.crt": AUTHORITY, "node.crt": f"node-{node.id}.crt", "node.key": f"node-{node.id}.key"}
        return [(name, self.directory / here[name], mode) for name, mode in TLS_FILES.items()]

    def _keelmq_cert(self, *arguments: str) -> None:
        command = [str(Path(sys.executable).parent / "keelmq"), "cert", *arguments]
        done = subprocess.run(command, capture_output=True, text=True)  # noqa: S603
        if done.returncode != 0:
            raise CertificateError(f"keelmq cert: {(done.stderr or done.stdout).strip()}")
