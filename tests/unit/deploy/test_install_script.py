"""`install.sh` of a bundle, with a small package in place of the broker: what the host has set changes nothing."""

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from deploy.bundle import BYTECODE, PYTHON, wheel_of_pip, write_bytecode, write_sums
from tests.requirements import REPOSITORY

INFO: Final = "keelmq-1.0.dist-info"
PROGRAM: Final = """
import os, sys
def main():
    unknown = [name for name in os.environ if name.startswith("KEELMQ_")]
    if sys.argv[1:] == ["--check-config"] and (unknown or {is_broken}):
        sys.exit("keelmqd: it does not load here")
    print("keelmqd 1.0")
"""

Install = Callable[..., subprocess.CompletedProcess[str]]


def make_bundle(directory: Path, *, is_broken: bool = False, compiles: bool = False) -> None:
    for name in ("wheels", "pip"):
        (directory / name).mkdir(parents=True)
    shutil.copy(wheel_of_pip(), directory / "pip")
    shutil.copy(REPOSITORY / "deploy" / "install.sh", directory)
    (directory / "PYTHON_VERSION").write_text(f"{PYTHON}\n")
    files = {
        "keelmq_program.py": PROGRAM.format(is_broken=is_broken),
        "keelmq-1.0.data/purelib/keelmq_parts/__init__.py": "PARTS = 1",
        "keelmq-1.0.data/scripts/keelmq_script.py": "print()",
        "keelmq_template.py": "class {{ name }}",
        f"{INFO}/METADATA": "Metadata-Version: 2.1\nName: keelmq\nVersion: 1.0\n",
        f"{INFO}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{INFO}/entry_points.txt": "[console_scripts]\nkeelmqd = keelmq_program:main\n",
    }
    record = "".join(f"{name},,\n" for name in (*files, f"{INFO}/RECORD"))
    with zipfile.ZipFile(directory / "wheels" / "keelmq-1.0-py3-none-any.whl", "w") as wheel:
        for name, text in {**files, f"{INFO}/RECORD": record}.items():
            wheel.writestr(name, text)
    if compiles:
        write_bytecode(directory / "wheels", directory.with_name("site"), directory / BYTECODE)
    write_sums(directory)


@pytest.fixture
def install(tmp_path: Path) -> Install:
    def run(directory: Path, umask: int = 0o022, **variables: str) -> subprocess.CompletedProcess[str]:
        command = ["/bin/sh", str(tmp_path / "bundle" / "install.sh"), str(directory)]
        environment = {"PATH": os.environ["PATH"], "PYTHON": sys.executable, **variables}
        return subprocess.run(command, capture_output=True, text=True, umask=umask, env=environment)

    return run


def test_another_user_runs_what_a_careful_root_installed(tmp_path: Path, install: Install) -> None:
    """Hardened hosts have the mask 077, and the unit runs the node as a user of its own."""
    make_bundle(tmp_path / "bundle")
    target = tmp_path / "opt" / "keelmq"
    done = install(target, umask=0o077)
    assert (done.returncode, done.stdout) == (0, "keelmqd 1.0\n"), done.stderr
    for path in (target, target / "bin" / "keelmqd", *target.glob("lib/*/site-packages/keelmq_program.py")):
        assert path.stat().st_mode & 0o055 == (0o055 if path.is_dir() or path.parent.name == "bin" else 0o044), path


@pytest.mark.parametrize(
    "variables",
    [
        {"PIP_DRY_RUN": "1"},
        {"PIP_TARGET": "/nonexistent/elsewhere"},
        {"PIP_USER": "1"},
        {"PIP_REQUIRE_HASHES": "1"},
        {"PYTHONPATH": "/nonexistent", "PYTHONHOME": "/nonexistent"},
        {"KEELMQ_SERVERS": "http://127.0.0.1:7081"},
    ],
    ids=lambda variables: next(iter(variables)),
)
def test_the_environment_of_the_operator_changes_nothing(
    tmp_path: Path, install: Install, variables: dict[str, str]
) -> None:
    make_bundle(tmp_path / "bundle")
    done = install(tmp_path / "keelmq", **variables)
    assert (done.returncode, done.stdout) == (0, "keelmqd 1.0\n"), done.stderr


def test_an_installation_that_failed_leaves_room_for_the_next(tmp_path: Path, install: Install) -> None:
    make_bundle(tmp_path / "bundle", is_broken=True)
    target = tmp_path / "keelmq"
    for _ in range(2):
        done = install(target)
        assert done.returncode == 1
        assert "it does not load here" in done.stderr
        assert not target.exists()
    target.mkdir()
    (target / "letter").touch()
    refused = install(target)
    assert refused.returncode == 1
    assert "is there already" in refused.stderr
    assert (target / "letter").exists()


@pytest.mark.parametrize("compiles", [True, False])
def test_what_is_installed_is_compiled(tmp_path: Path, install: Install, compiles: bool) -> None:
    """Python of the user of the service cannot keep what it compiles itself."""
    make_bundle(tmp_path / "bundle", compiles=compiles)
    target = tmp_path / "keelmq"
    done = install(target, umask=0o077)
    assert done.returncode == 0, done.stderr
    found = {path.name.partition(".")[0]: path for path in target.glob("lib/*/site-packages/**/*.pyc")}
    assert set(found) == {"keelmq_program", "__init__"}
    program = found["keelmq_program"]
    is_checked_by_its_source = int.from_bytes(program.read_bytes()[4:8], "little") == 0b11
    assert is_checked_by_its_source == compiles
    assert program.stat().st_mode & 0o777 == 0o644
    source = program.parents[1] / "keelmq_program.py"
    command = [
        str(target / "bin" / "python"),
        "-I",
        "-c",
        "import keelmq_program as it; print(it.main.__code__.co_filename)",
    ]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True)
    assert loaded.stdout == f"{source}\n"
    source.write_text("def main(): print('changed by hand')\n")
    changed = subprocess.run([target / "bin" / "keelmqd"], capture_output=True, text=True)
    assert changed.stdout == "changed by hand\n", changed.stderr
