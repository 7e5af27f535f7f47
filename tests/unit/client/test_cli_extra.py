"""The SDK works without the extra `keelmq[cli]`, and the command then says how to install it."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

import pytest

CLIENT: Final = Path(__file__).parents[3] / "client"
REFUSING: Final = """
import importlib.abc, sys

class Refuses(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {refused!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
        return None

sys.meta_path.insert(0, Refuses())
"""
IMPORTS: Final = """
import keelmq, keelmq.admin, keelmq.log.log_records, keelmq.tracing
for name in keelmq.__all__:
    getattr(keelmq, name)
print("imported")
"""


def run(refused: tuple[str, ...], code: str) -> subprocess.CompletedProcess[str]:
    """Run the code in an interpreter that cannot import the refused packages."""
    command = [sys.executable, "-c", REFUSING.format(refused=refused) + code]
    return subprocess.run(command, capture_output=True, text=True)


def console_script(*arguments: str) -> str:
    """Return the code that the installed script `keelmq` runs with the arguments, `--version` if there is none."""
    project = tomllib.loads((CLIENT / "pyproject.toml").read_text())["project"]
    module, function = project["scripts"]["keelmq"].split(":")
    argv = ["keelmq", *(arguments or ("--version",))]
    return f"import sys; sys.argv = {argv!r}; from {module} import {function}; {function}()"


def test_the_sdk_is_imported_without_the_extra() -> None:
    done = run(("typer", "rich", "cryptography", "sqlalchemy", "opentelemetry"), IMPORTS)
    assert (done.stdout, done.stderr) == ("imported\n", "")


@pytest.mark.parametrize("refused", [("typer",), ("rich",), ("typer", "rich")], ids="+".join)
def test_the_command_says_how_to_install_the_extra(refused: tuple[str, ...]) -> None:
    done = run(refused, console_script())
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert refused[0] in line
    assert "from a clone of KeelMQ with pip install './client[cli]'" in line


def test_another_missing_package_is_not_taken_for_the_extra() -> None:
    done = run(("shellingham",), console_script())
    assert done.returncode == 1
    assert "No module named 'shellingham'" in done.stderr
    assert "pip install" not in done.stderr


def test_the_command_runs_with_the_extra() -> None:
    done = run((), console_script())
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("keelmq ")


def test_the_package_for_certificates_is_imported_by_their_commands_alone(tmp_path: Path) -> None:
    directory = str(tmp_path / "pki")
    commands = (["ca", directory], ["node", directory, "--cluster-id", "c", "--node-id", "1"])
    for command in (*commands, ["client", directory, "--name", "a"], ["show", __file__]):
        done = run(("cryptography",), console_script("cert", *command))
        assert (done.returncode, done.stdout) == (1, "")
        (line,) = done.stderr.splitlines()
        assert "the command needs the package cryptography: install it from a clone" in line
    done = run(("cryptography",), console_script("cert", "ca", directory, "--json"))
    assert json.loads(done.stderr)["error"]["code"] == "package_missing"
    assert not Path(directory).exists()
    for other in (["--version"], ["cert", "--help"], ["topic", "create", "--help"]):
        assert run(("cryptography",), console_script(*other)).returncode == 0


def test_the_extra_is_no_part_of_the_core() -> None:
    project = tomllib.loads((CLIENT / "pyproject.toml").read_text())["project"]
    assert [each for each in project["dependencies"] if each.startswith(("typer", "rich", "cryptography"))] == []
    assert [each.split(">")[0] for each in project["optional-dependencies"]["cli"]] == ["cryptography", "rich", "typer"]
