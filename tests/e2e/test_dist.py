"""`make dist`: packages are built with identical bytes each time, and the installed wheel of the SDK works."""

import hashlib
import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path
from typing import Any, Final

import pytest

from keelmq.version import VERSION
from tests.requirements import BUILDING, REPOSITORY

LICENSE: Final = (REPOSITORY / "LICENSE").read_text()


def dist(directory: Path, umask: int) -> dict[str, Any]:
    """Build all packages and return the result that the last line has."""
    command = [sys.executable, "-m", "deploy.dist", "--directory", str(directory)]
    done = subprocess.run(command, cwd=REPOSITORY, umask=umask, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    word, _, text = done.stdout.splitlines()[-1].partition(" ")
    assert word == "RESULT"
    result: dict[str, Any] = json.loads(text)
    return result


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    BUILDING.require()
    directory = tmp_path_factory.mktemp("dist")
    dist(directory, 0o022)
    return directory


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment that has the SDK's wheel alone, without the packages that the SDK depends on."""
    environment = tmp_path_factory.mktemp("installed")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python"), "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", "--no-index", str(wheel_of(built, "keelmq"))], check=True)
    return environment


def wheel_of(directory: Path, package: str) -> Path:
    (wheel,) = directory.glob(f"{package}-*.whl")
    return wheel


def run(environment: Path, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program of the environment, which sees nothing of the source tree."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = [str(environment / "bin" / program), *arguments]
    return subprocess.run(command, cwd=environment, env=variables, capture_output=True, text=True)


def test_building_twice_gives_identical_bytes(built: Path, tmp_path: Path) -> None:
    result = dist(tmp_path, 0o077)
    names = [each["name"] for each in result["files"]]
    assert len(names) == 6
    assert names == sorted(path.name for path in built.iterdir())
    for each in result["files"]:
        content = (built / each["name"]).read_bytes()
        assert (each["size"], each["sha256"]) == (len(content), hashlib.sha256(content).hexdigest()), each["name"]
        assert (tmp_path / each["name"]).read_bytes() == content, each["name"]


@pytest.mark.parametrize("package", ["keelmq", "keelmq_broker", "keelmq_spark"])
def test_license_and_readme_are_in_wheel_and_source_distribution(built: Path, package: str) -> None:
    root = f"{package}-{VERSION}"
    with zipfile.ZipFile(wheel_of(built, package)) as wheel:
        assert wheel.read(f"{root}.dist-info/licenses/LICENSE").decode() == LICENSE
        page = wheel.read(f"{root}.dist-info/METADATA").decode().partition("\n\n")[2]
    with tarfile.open(built / f"{root}.tar.gz") as source:
        members = {member.name: member for member in source.getmembers()}
        license, readme = (source.extractfile(members[f"{root}/{name}"]) for name in ("LICENSE", "README.md"))
        assert license is not None
        assert readme is not None
        assert license.read().decode() == LICENSE
        assert page.strip() == readme.read().decode().strip()
        # The time of the last commit, and no user of this machine.
        assert len({member.mtime for member in members.values()}) == 1
        assert {(member.uid, member.gid, member.uname, member.gname) for member in members.values()} == {(0, 0, "", "")}


def test_the_command_of_the_wheel_asks_for_the_extra_and_runs_with_it(installed: Path) -> None:
    alone = run(installed, "keelmq", "--version")
    assert (alone.returncode, alone.stdout) == (1, "")
    assert "pip install 'keelmq[cli]'" in alone.stderr

    (site,) = installed.glob("lib/python*/site-packages")
    # The dependencies come from this environment. Its own path files, which lead to the source tree, are not read.
    (site / "dependencies.pth").write_text("\n".join({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}))
    imported = run(installed, "python", "-c", "import keelmq; print(keelmq.Producer and keelmq.__file__)")
    assert imported.stdout.strip() == str(site / "keelmq" / "__init__.py"), imported.stderr
    shown = run(installed, "keelmq", "--version")
    assert (shown.returncode, shown.stdout) == (0, f"keelmq {VERSION}\n"), shown.stderr
