"""Hosts as network namespaces, each with an sshd, and without this tree: only a bundle brings the program there."""

import contextlib
import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.chaos.network import Network, host_of
from tests.e2e.cluster_process import wait_for
from tests.e2e.deployment import Deployment
from tests.patience import PATIENCE_S
from tests.requirements import REPOSITORY, Requirement, path_of

SSH: Final = Requirement("ssh", "ssh-keygen", "sshd", "setpriv", root=True)
HTTP_PORT: Final = 7081
PEER_PORT: Final = 7091


OWN: Final = ("/etc", "/opt", "/root", "/usr/local", "/var")
"""Directories that machines have for themselves, with what is in those of this machine."""
SYSTEMCTL: Final = Path(__file__).with_name("systemctl.py")
PATH: Final = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"


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
def hosts(directory: Path, numbers: Sequence[int], machines: Collection[int] = ()) -> Iterator[Hosts]:
    """Make the hosts for the length of the context, within namespaces of this program's own. All nodes are ended with
    it.

    On those that are `machines`, services can be installed: each has the directories `OWN` for itself, and a program in
    place of systemd; its processes end with it.
    """
    directory.chmod(0o700)
    shutil.copyfile(SYSTEMCTL, directory / SYSTEMCTL.name)
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
            process = stack.enter_context(subprocess.Popen(_sshd(directory, made.network, number, number in machines)))
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


def _sshd(directory: Path, network: Network, number: int, is_machine: bool) -> list[str]:
    config, home = directory / f"sshd_config{number}", directory / f"home{number}"
    home.mkdir()  # what the shell of this machine's root does when it starts is no part of a host
    config.write_text(
        f"ListenAddress {host_of(number)}\nHostKey {directory}/host\nPidFile none\nUsePAM no\nStrictModes no\n"
        f"AuthorizedKeysFile {directory}/authorized_keys\nPermitRootLogin prohibit-password\nMaxStartups 100\n"
        f"LogLevel ERROR\nSetEnv PATH={PATH} HOME={home}\nSubsystem sftp internal-sftp\n"
    )
    mounts, unshare = "", ["unshare", "--mount", "--propagation", "private"]
    if is_machine:
        mounts = _own_root(directory, number)
        unshare += ["--pid", "--fork", "--kill-child", "--mount-proc"]
    hide = f"set -e; mount -t tmpfs tmpfs {REPOSITORY}; {mounts} exec {path_of('sshd')} -D -e -f {config}"
    die_with_parent = ["setpriv", "--pdeathsig", "KILL"]
    return [*network.prefix(number), *die_with_parent, *unshare, "sh", "-c", hide]


def _own_root(directory: Path, number: int) -> str:
    """Return the commands that give a machine its own directories."""
    place = directory / f"root{number}"
    place.mkdir()
    lines = [f"mount -t tmpfs tmpfs {place}"]
    for path in OWN:
        upper, work = (f"{place}/{path[1:].replace('/', '-')}{end}" for end in ("", ".work"))
        lines.append(f"mkdir {upper} {work}")
        lines.append(f"mount -t overlay overlay -o lowerdir={path},upperdir={upper},workdir={work} {path}")
    lines.append("chmod 0755 /root")  # the Python that runs this may be there, and services have users of their own
    lines.append(f"install -m 0755 {directory}/{SYSTEMCTL.name} /usr/local/bin/systemctl")
    return "".join(f"{line}; " for line in lines)


def _answers(made: Hosts, number: int) -> bool:
    command = ["ssh", "-o", "BatchMode=yes", *made.ssh_options, destination(number), "test", "!", "-e"]
    command.append(str(REPOSITORY / "pyproject.toml"))
    return subprocess.run(command, capture_output=True, timeout=PATIENCE_S, env=dict(os.environ)).returncode == 0
