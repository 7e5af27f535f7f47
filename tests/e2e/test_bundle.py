"""`make bundle`, and a cluster whose hosts have nothing of this project but what the bundle brings."""

import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.reporting.result import result_of
from keelmq.version import VERSION
from tests.e2e.test_deploy import Deployment
from tests.patience import PATIENCE_S
from tests.requirements import BUILDING, REPOSITORY

pytestmark = pytest.mark.process


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
    made = Deployment(tmp_path, {"program": ""})
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
    assert len(before) == 3
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
