"""`make dist`: packages and SBOMs have identical bytes each time, and the installed wheels of SDK and Spark work."""

import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path
from typing import Any, Final

import pytest

from deploy.dist import commit_time_s, copy_tracked
from deploy.lock_files import path_of, read
from deploy.reporting.result import result_of
from deploy.sbom import LOCKS
from keelmq.version import VERSION
from tests.requirements import BUILDING, REPOSITORY

LICENSE: Final = (REPOSITORY / "LICENSE").read_text()


def dist(directory: Path, umask: int) -> dict[str, Any]:
    """Build all packages and return the result that the last line has."""
    command = [sys.executable, "-m", "deploy.dist", "--directory", str(directory)]
    done = subprocess.run(command, cwd=REPOSITORY, umask=umask, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return result_of(done.stdout)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    BUILDING.require()
    directory = tmp_path_factory.mktemp("dist")
    dist(directory, 0o022)
    return directory


def install(environment: Path, *wheels: Path) -> None:
    """Make an environment that has these wheels alone, without the packages that they depend on."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python"), "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", "--no-index", *map(str, wheels)], check=True)


def lend_dependencies(environment: Path) -> Path:
    """Let the environment see the packages of this one, and return the directory of its own. Path files of this
    environment, which lead to the source tree, are not read.
    """
    (site,) = environment.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text("\n".join({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}))
    return site


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
    assert len(names) == 9
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


@pytest.mark.parametrize("package", LOCKS)
def test_the_sbom_lists_what_the_locks_pin(built: Path, package: str) -> None:
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator  # it takes seconds, which every worker would spend

    begin = package.replace("-", "_")
    text = (built / f"{begin}-{VERSION}.cdx.json").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    sbom = json.loads(text)
    main = sbom["metadata"]["component"]
    assert (main["name"], main["version"], main["licenses"][0]["license"]["id"]) == (package, VERSION, "Apache-2.0")
    files = {each["url"]: each["hashes"][0]["content"] for each in main["externalReferences"]}
    paths = [built / f"{begin}-{VERSION}.tar.gz", wheel_of(built, begin)]
    assert files == {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}

    listed = {
        (each["name"], each["version"]): sorted(hash["content"] for hash in each["externalReferences"][0]["hashes"])
        for each in sbom["components"]
        if "purl" in each
    }
    pins = [pin for name in LOCKS[package] for pin in read(path_of(name, REPOSITORY)).pins]
    assert listed == {(pin.name, pin.version): sorted(h.removeprefix("sha256:") for h in pin.hashes) for pin in pins}
    # No time and no random number; every component is reached from the package.
    assert "timestamp" not in sbom["metadata"]
    graph = {each["ref"]: set(each.get("dependsOn", ())) for each in sbom["dependencies"]}
    reached = {package}
    while more := set().union(*(graph[each] for each in reached)) - reached:
        reached |= more
    assert reached == {package, *(each["bom-ref"] for each in sbom["components"])}


def test_the_sbom_tells_what_only_extras_install_from_the_rest(built: Path) -> None:
    sbom = json.loads((built / f"keelmq-{VERSION}.cdx.json").read_text())
    scopes = {each["name"]: each["scope"] for each in sbom["components"]}
    assert {name for name, scope in scopes.items() if scope == "required"} == {
        "crc32c",
        "httptools",
        "msgspec",
        "zstandard",
    }
    assert {scopes["typer"], scopes["greenlet"], scopes["opentelemetry-api"]} == {"optional"}
    spark = json.loads((built / f"keelmq_spark-{VERSION}.cdx.json").read_text())
    assert ("keelmq", VERSION) in {(each["name"], each["version"]) for each in spark["components"]}


def test_the_command_of_the_wheel_asks_for_the_extra_and_runs_with_it(built: Path, tmp_path: Path) -> None:
    installed = tmp_path / "installed"
    install(installed, wheel_of(built, "keelmq"))
    alone = run(installed, "keelmq", "--version")
    assert (alone.returncode, alone.stdout) == (1, "")
    assert "pip install './client[cli]'" in alone.stderr

    site = lend_dependencies(installed)
    imported = run(installed, "python", "-c", "import keelmq; print(keelmq.Producer and keelmq.__file__)")
    assert imported.stdout.strip() == str(site / "keelmq" / "__init__.py"), imported.stderr
    shown = run(installed, "keelmq", "--version")
    told = rf"keelmq {re.escape(VERSION)}, commit [0-9a-f]{{12}}(\+changes)?\n"
    assert shown.returncode == 0, shown.stderr
    assert re.fullmatch(told, shown.stdout), shown.stdout


def test_the_wheel_of_the_spark_package_runs_beside_that_of_the_sdk(built: Path, tmp_path: Path) -> None:
    installed = tmp_path / "installed"
    install(installed, wheel_of(built, "keelmq"), wheel_of(built, "keelmq_spark"))
    site = lend_dependencies(installed)
    imported = run(installed, "python", "-c", "import keelmq_spark; print(keelmq_spark.__file__)")
    assert imported.stdout.strip() == str(site / "keelmq_spark" / "__init__.py"), imported.stderr
    shown = run(installed, "keelmq-lineage", "--help")
    assert (shown.returncode, "story" in shown.stdout) == (0, True), shown.stderr


def test_the_install_command_of_the_readme_installs_broker_and_sdk(tmp_path: Path) -> None:
    """Packages that both need are left out, so that no package index is asked."""
    BUILDING.require()
    told = re.search(r"bin/pip install (.+?)  ", (REPOSITORY / "README.md").read_text())
    assert told is not None
    tree, installed = tmp_path / "tree", tmp_path / "installed"
    copy_tracked(tree, commit_time_s())
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(installed)]
    pip += ["--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, *shlex.split(told[1])], cwd=tree, check=True)
    variables = os.environ | {"PYTHONPATH": str(installed)}
    for program in ("keelmqd", "keelmq"):
        command = [sys.executable, str(installed / "bin" / program), "--version"]
        shown = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True)
        assert (shown.returncode, VERSION in shown.stdout) == (0, True), shown.stderr
    where = "import cluster, keelmq; print(cluster.__file__, keelmq.__file__)"
    found = subprocess.run([sys.executable, "-c", where], cwd=tmp_path, env=variables, capture_output=True, text=True)
    assert all(each.startswith(str(installed)) for each in found.stdout.split()), found
