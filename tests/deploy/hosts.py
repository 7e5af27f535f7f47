"""Hosts as network namespaces, each with an sshd, and without this tree: only a bundle brings the program there."""

import contextlib
import functools
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.chaos.network import Network, host_of
from tests.e2e.cluster_process import wait_for
from tests.e2e.test_deploy import Deployment
from tests.patience import PATIENCE_S
from tests.requirements import REPOSITORY, Requirement, path_of

SSH: Final = Requirement("ssh", "ssh-keygen", "sshd", "setpriv", root=True)
HTTP_PORT: Final = 7081
PEER_PORT: Final = 7091


class Hosts:
    """Hosts by number, each reached by ssh, and the deployments that were made on them."""

    def __init__(self, directory: Path, numbers: Sequence[int]) -> None:
        self.network = Network(numbers)
        self._directory = directory
        self._made: list[Deployment] = []
        options = ["-F", "none", "-i", f"{directory}/client", "-o", f"UserKnownHostsFile={directory}/known_hosts"]
        self.ssh_options: Final = [*options, "-o", f"ControlPath={directory}/master-%h"]

    def deployment(self, name: str, places: Mapping[int, int]) -> Deployment:
        """Make the inventory of a cluster whose nodes are at these hosts, in a directory of its own."""
        directory = self._directory / name
        directory.mkdir()
        python = str(Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}")
        made = Deployment(directory, {"program": "", "ssh_options": self.ssh_options, "python": python})
        made.urls = {number: f"http://{host_of(host)}:{HTTP_PORT}" for number, host in places.items()}
        made.peers = {number: f"{host_of(host)}:{PEER_PORT}" for number, host in places.items()}
        made.options = {number: {"insecure_http": True, "insecure_peers": True} for number in places}
        made.hosts = {number: destination(host) for number, host in places.items()}
        made.write()
        self._made.append(made)
        return made

    def end(self) -> None:
        """End all nodes for certain."""
        for each in self._made:
            each.end()


def destination(number: int) -> str:
    """Return where ssh finds the host."""
    return f"root@{host_of(number)}"


@contextlib.contextmanager
def hosts(directory: Path, numbers: Sequence[int]) -> Iterator[Hosts]:
    """Make the hosts for the length of the context, within namespaces of this program's own. All nodes are ended with
    it.
    """
    directory.chmod(0o700)
    for name in ("host", "client"):
        keygen = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(directory / name)]
        subprocess.run(keygen, check=True, stdin=subprocess.DEVNULL)
    public = (directory / "host.pub").read_text()
    (directory / "known_hosts").write_text("".join(f"{host_of(number)} {public}" for number in numbers))
    (directory / "authorized_keys").write_text((directory / "client.pub").read_text())
    Path("/run/sshd").mkdir(exist_ok=True)
    made = Hosts(directory, numbers)
    with contextlib.ExitStack() as stack:
        for number in numbers:
            process = stack.enter_context(subprocess.Popen(_sshd(directory, made.network, number)))
            stack.callback(process.kill)
        try:
            for number in numbers:
                wait_for(functools.partial(_answers, made, number), f"the sshd of host {number}")
                # One connection for all calls: a key exchange for each would take most of the time.
                master = ["ssh", "-M", "-N", *made.ssh_options, destination(number)]
                process = stack.enter_context(subprocess.Popen(master, stdin=subprocess.DEVNULL))
                stack.callback(process.kill)
                wait_for((directory / f"master-{host_of(number)}").exists, f"the connection to host {number}")
            yield made
        finally:
            made.end()


def _sshd(directory: Path, network: Network, number: int) -> list[str]:
    config = directory / f"sshd_config{number}"
    config.write_text(
        f"ListenAddress {host_of(number)}\nHostKey {directory}/host\nPidFile none\nUsePAM no\nStrictModes no\n"
        f"AuthorizedKeysFile {directory}/authorized_keys\nPermitRootLogin prohibit-password\nMaxStartups 100\n"
        "LogLevel ERROR\n"
    )
    hide = f"mount -t tmpfs tmpfs {REPOSITORY} && exec {path_of('sshd')} -D -e -f {config}"
    die_with_parent = ["setpriv", "--pdeathsig", "KILL"]
    unshare = ["unshare", "--mount", "--propagation", "private"]
    return [*network.prefix(number), *die_with_parent, *unshare, "sh", "-c", hide]


def _answers(made: Hosts, number: int) -> bool:
    command = ["ssh", "-o", "BatchMode=yes", *made.ssh_options, destination(number), "test", "!", "-e"]
    command.append(str(REPOSITORY / "pyproject.toml"))
    return subprocess.run(command, capture_output=True, timeout=PATIENCE_S, env=dict(os.environ)).returncode == 0
