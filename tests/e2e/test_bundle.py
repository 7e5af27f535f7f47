"""`make bundle`, a cluster whose hosts have nothing but what the bundle brings, and `make deb` of the same bundle."""

import os
import shlex
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from deploy.reporting.result import result_of
from keelmq.version import VERSION
from tests.e2e.deployment import Deployment
from tests.patience import PATIENCE_S
from tests.requirements import BUILDING, DEBIAN_ROOT, REPOSITORY

pytestmark = pytest.mark.process

DEBIAN: Final = """
set -eu
mount -t tmpfs tmpfs {work}
mkdir {work}/upper {work}/work {work}/root
mount -t overlay overlay -o lowerdir=/,upperdir={work}/upper,workdir={work}/work {work}/root
cd {work}/root
mount --rbind /proc proc && mount --rbind /dev dev
mkdir -p .{prefix} && mount --bind {prefix} .{prefix}
[ -e usr/bin/{python} ] || ln -s {prefix}/bin/{python} usr/bin/{python}
cp {package} keelmq.deb
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot . /bin/sh -eu -c {steps}
"""
"""Carries steps out as root of a copy of this machine, of which nothing stays."""
INSTALLED: Final = """
dpkg --force-depends -i keelmq.deb
dpkg --verify keelmq
echo "version: $(cd /tmp && keelmqd --version)"
echo "command: $(keelmq --version)"
echo "modes: $(stat -c '%U:%G:%a' /etc/keelmq /var/lib/keelmq | tr '\\n' ' ')"
echo "unit: $(grep '^ExecStart=' /lib/systemd/system/keelmqd@.service)"
echo "backups: $(grep '^ExecStart=' /lib/systemd/system/keelmq-backup@.service)"
runuser -u keelmq -- keelmqd --config /etc/keelmq/single.toml --check-config
runuser -u keelmq -- mkdir /var/lib/keelmq/single
echo '# mine' >>/etc/keelmq/single.toml
dpkg --force-depends -i keelmq.deb
echo "after an upgrade: $(tail -n 1 /etc/keelmq/single.toml)"
dpkg -r keelmq
echo "after a removal: $(tail -n 1 /etc/keelmq/single.toml) $(ls /var/lib/keelmq) $(ls -d /usr/lib/keelmq || echo none)"
dpkg -P keelmq
echo "after a purge: $(ls -d /etc/keelmq /var/lib/keelmq 2>/dev/null)$(getent passwd keelmq)."
"""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    BUILDING.require()
    directory = tmp_path_factory.mktemp("bundle")
    command = [sys.executable, "-m", "deploy.bundle", "--directory", str(directory)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    return directory / str(result_of(done.stdout)["name"])


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    made = Deployment(tmp_path, {"program": ""}, numbers=(1,))
    try:
        yield made
    finally:
        made.end()


def test_a_bundle_is_enough_for_a_host_with_python(bundle: Path, deployment: Deployment) -> None:
    refused = deployment.run("bootstrap")
    assert refused.returncode == 1
    assert "next: keelmq-deploy install --bundle FILE" in refused.stderr
    deployment.done("bootstrap", "--bundle", str(bundle))
    before = deployment.pids()
    assert list(before) == [1]
    program = deployment.root(1) / "current" / "bin" / "keelmqd"
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    shown = subprocess.run(
        [program, "--version"], cwd=deployment.root(1), env=variables, capture_output=True, text=True
    )
    assert shown.stdout.startswith(f"keelmqd {VERSION} ")
    again = deployment.done("upgrade", "--bundle", str(bundle))
    assert "nothing is left to do" in again
    assert deployment.pids() == before


def test_a_damaged_bundle_is_refused(bundle: Path, tmp_path: Path) -> None:
    with tarfile.open(bundle) as archive:
        archive.extractall(tmp_path, filter="data")
    (root,) = tmp_path.iterdir()
    wheel = next((root / "wheels").glob("keelmq_broker-*.whl"))
    wheel.write_bytes(wheel.read_bytes()[:-1])
    command = ["/bin/sh", str(root / "install.sh"), str(tmp_path / "here")]
    done = subprocess.run(command, env={**os.environ, "PYTHON": sys.executable}, capture_output=True, text=True)
    assert done.returncode == 1
    assert f"wheels/{wheel.name} is missing or damaged" in done.stderr
    assert not (tmp_path / "here").exists()


@pytest.fixture(scope="module")
def deb(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    DEBIAN_ROOT.require()
    return made_deb(bundle, tmp_path_factory.mktemp("deb"))


def made_deb(bundle: Path, directory: Path) -> Path:
    command = [sys.executable, "-m", "deploy.deb", "--bundle", str(bundle), "--directory", str(directory)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    return directory / str(result_of(done.stdout)["name"])


def test_a_package_for_debian_is_the_same_each_time(bundle: Path, tmp_path: Path) -> None:
    """The packages are of our own wheels alone: the others take most of the time, and are treated alike."""
    DEBIAN_ROOT.require()
    own = tmp_path / bundle.name
    with tarfile.open(bundle) as source, tarfile.open(own, "w:gz") as target:
        for member in source.getmembers():
            if "/wheels/keelmq" in member.name or "@" in member.name:  # the units have an @
                target.addfile(member, source.extractfile(member))
    first, second = (made_deb(own, tmp_path / name) for name in ("first", "second"))
    assert first.read_bytes() == second.read_bytes()
    listed = subprocess.run(["dpkg-deb", "--contents", str(first)], check=True, capture_output=True, text=True).stdout
    assert "/usr/lib/keelmq/keelmq/__init__.py" in listed


def test_a_package_runs_where_it_is_unpacked(deb: Path, tmp_path: Path) -> None:
    subprocess.run(["dpkg-deb", "--extract", str(deb), str(tmp_path)], check=True)
    command = [sys.executable, "-I", str(tmp_path / "usr" / "bin" / "keelmqd"), "--version"]
    shown = subprocess.run(command, cwd=tmp_path, env={}, capture_output=True, text=True, timeout=PATIENCE_S)
    assert shown.stdout.startswith(f"keelmqd {VERSION} "), shown.stderr
    assert not list(tmp_path.rglob("direct_url.json"))


def test_a_package_is_installed_upgraded_removed_and_purged(deb: Path, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    values = {"work": tmp_path / "work", "prefix": sys.base_prefix, "python": python, "package": deb}
    script = DEBIAN.format(**values, steps=shlex.quote(INSTALLED))
    command = ["unshare", "--mount", "--propagation", "private", "/bin/sh", "-c", script]
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    said = dict(line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line)
    assert said["version"].startswith(f"keelmqd {VERSION} ")
    assert VERSION in said["command"]
    assert said["modes"].split() == ["root:keelmq:750", "keelmq:keelmq:750"]
    assert said["unit"] == "ExecStart=/usr/bin/keelmqd --config /etc/keelmq/%i.toml"
    assert said["backups"] == "ExecStart=/usr/bin/keelmq backup create ${BACKUP_TARGET}"
    assert said["after an upgrade"] == "# mine"
    assert said["after a removal"] == "# mine single none"
    assert said["after a purge"] == "."
