"""The authority and certificates of a deployment, in a directory beside its inventory."""

import functools
import glob
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from deploy.broker_process import die_with_parent
from deploy.rollout.inventory import CERTIFICATES_END, TLS_FILES, Inventory, Node

AUTHORITY: Final = "ca.crt"


class CertificateError(Exception):
    """A certificate could not be made; the text is that of `keelmq cert`."""


class Certificates:
    """The certificates that `keelmq cert` makes for the nodes of one inventory. Raises CertificateError.

    The command ends with the tool. So what a killed tool was making is there as a whole, not at all, or a key without
    its certificate, which the next run makes; nobody else goes on with it.
    """

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self.directory: Final = inventory.beside(CERTIFICATES_END)

    @property
    def has_authority(self) -> bool:
        return (self.directory / AUTHORITY).exists()

    def has(self, node: Node) -> bool:
        return (self.directory / f"node-{node.id}.crt").exists()

    def make_authority(self) -> None:
        """Make the authority beside its directory, which it becomes at once."""
        beginning = f".{self.directory.name}.making-"
        # What a tool that was killed has left never signed anything.
        for left in self.directory.parent.glob(f"{glob.escape(beginning)}*"):
            shutil.rmtree(left, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=beginning, dir=self.directory.parent) as beside:
            made = Path(beside) / "pki"
            self._keelmq_cert("ca", str(made))
            try:
                made.rename(self.directory)
            except OSError as error:
                reason = f"{self.directory} is there without {AUTHORITY} ({error.strerror})"
                raise CertificateError(f"{reason}: put the authority's files into it, or remove it") from None
        _sync(self.directory.parent)

    def make(self, node: Node) -> None:
        """Make the certificate of the node, or another one for its key if it has one."""
        urls = {urlsplit(url).hostname or "" for url in (node.url, node.admin_url)}
        hosts = {node.peer.rsplit(":", 1)[0].strip("[]"), *urls, *node.names} - {""}
        named = [part for host in sorted(hosts) for part in ("--host", host)]
        has_key = (self.directory / f"node-{node.id}.key").exists()
        identity = ["--cluster-id", self._inventory.cluster.id, "--node-id", str(node.id)]
        self._keelmq_cert("node", str(self.directory), *identity, *named, *(["--renew"] if has_key else []))

    def files(self, node: Node) -> list[tuple[str, Path, int]]:
        """Return name and mode at the node, and path here, of each file of the node."""
        here = {"ca.crt": AUTHORITY, "node.crt": f"node-{node.id}.crt", "node.key": f"node-{node.id}.key"}
        return [(name, self.directory / here[name], mode) for name, mode in TLS_FILES.items()]

    def _keelmq_cert(self, *arguments: str) -> None:
        command = [str(Path(sys.executable).parent / "keelmq"), "cert", *arguments]
        ends = functools.partial(die_with_parent, os.getpid())
        done = subprocess.run(command, capture_output=True, text=True, preexec_fn=ends)  # noqa: S603
        if done.returncode != 0:
            raise CertificateError(f"keelmq cert: {(done.stderr or done.stdout).strip()}")


def _sync(directory: Path) -> None:
    """Bring the names in the directory to disk."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
