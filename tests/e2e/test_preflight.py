"""`keelmq-deploy preflight`: each planted defect of a host is named, with the host, and nothing is changed."""

import socket
import sys

import pytest

from tests.e2e.deployment import Deployment
from tests.e2e.small_disk import mounted_disk
from tests.requirements import SMALL_DISK

pytestmark = pytest.mark.process


def defects(deployment: Deployment) -> str:
    """Run preflight, which must fail, and return what it printed."""
    ended = deployment.run("preflight")
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert not deployment.root(1).exists()
    return ended.stdout


def plant(deployment: Deployment, code: str) -> None:
    """Have the hosts' Python run this code before anything else."""
    python = deployment.directory / "python"
    begin = f"import os, sys, time\nHERE = {str(deployment.directory)!r}\n{code}\nexec(sys.argv[1])"
    python.write_text(f"#!{sys.executable} -I\nimport sys\nsys.argv = ['-c', sys.argv[3]]\n{begin}\n")
    python.chmod(0o700)
    deployment.cluster["python"] = str(python)
    deployment.write()


def test_a_port_that_is_used(deployment: Deployment) -> None:
    host, port = deployment.peers[2].split(":")
    with socket.create_server((host, int(port))):
        assert f"node 2 (this machine): port {port} cannot be used" in defects(deployment)
    deployment.done("preflight")


def test_a_port_that_is_closed(deployment: Deployment) -> None:
    deployment.peers[3] = "192.0.2.1:7091"  # for documentation: nobody has it
    deployment.write()
    found = defects(deployment)
    for number in (1, 2):
        assert f"node {number} (this machine): 192.0.2.1:7091 cannot be reached (" in found


def test_a_full_disk(deployment: Deployment) -> None:
    SMALL_DISK.require()
    (parent := deployment.directory / "small").mkdir()
    with mounted_disk(parent) as disk:
        deployment.cluster["root"] = str(disk / "hosts")
        deployment.write()
        assert f"MiB are free at {disk}/hosts/node1, 1 GiB is needed" in defects(deployment)
        assert list(disk.iterdir()) == []


def test_an_old_python(ssh_deployment: Deployment) -> None:
    plant(ssh_deployment, "sys.version_info = (3, 9, 2, 'final', 0)")
    found = defects(ssh_deployment)
    for number in (1, 2, 3):
        assert f"node {number} (root@127.0.0.1): facts: Python 3.9.2 is older than 3.11.4" in found


def test_clocks_that_differ(ssh_deployment: Deployment) -> None:
    later = "open(HERE + '/calls', 'a').write('x'); calls = os.path.getsize(HERE + '/calls')"
    plant(ssh_deployment, f"{later}\nright = time.time_ns\ntime.time_ns = lambda: right() + calls * 60 * 10**9")
    found = defects(ssh_deployment)
    assert "the clocks of the hosts differ; start NTP" in found
    assert "node 3 (root@127.0.0.1) +" in found


def test_a_disk_that_cannot_sync(ssh_deployment: Deployment) -> None:
    plant(ssh_deployment, "def failing(_):\n    raise OSError(5, 'Input/output error')\nos.fdatasync = failing")
    found = defects(ssh_deployment)
    assert "cannot make writes durable: [Errno 5] Input/output error" in found
