"""A program that is missing, or may not be used, is named with its package; nothing fails for it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.requirements import (
    MAKE,
    NAMESPACES,
    NO_SKIP_VARIABLE,
    REPOSITORY,
    Program,
    Requirement,
    programs,
    refusal,
)

PREPARE = REPOSITORY / "tests" / "prepare.sh"
USED_BY_PREPARE = ("bash", "dirname", "sort", "mktemp", "tail", "rm", "env", "true", "python3")
APT = """#!/bin/bash
echo "$@" >>"$0.calls"
[[ $* != *{refused}* ]] || {{ echo 'E: no network' >&2; exit 100; }}
"""


@pytest.fixture
def bin_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a PATH with nothing else of the machine on it: all listed programs, by links that a test may remove."""
    found = {name: program.path() or shutil.which("true") for name, program in programs().items()}
    found |= {name: shutil.which(name) for name in USED_BY_PREPARE}
    directory = tmp_path / "bin"
    directory.mkdir()
    for name, path in found.items():
        assert path is not None
        (directory / name).symlink_to(path)
    (directory / "sudo").write_text('#!/bin/bash\nshift\nexec "$@"\n')
    (directory / "sudo").chmod(0o755)
    monkeypatch.setenv("PATH", str(directory))
    return directory


def with_apt(directory: Path, refused: str) -> Path:
    """Put an apt-get on the PATH that refuses commands with this word. Returns the file of its calls."""
    (directory / "apt-get").write_text(APT.format(refused=refused))
    (directory / "apt-get").chmod(0o755)
    return directory / "apt-get.calls"


def prepare() -> str:
    """Run the preparation and return its output. It never fails."""
    done = subprocess.run([str(PREPARE)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout
    return done.stdout


class TestRequirement:
    @pytest.mark.parametrize("program", NAMESPACES.programs, ids=lambda program: program.name)
    def test_what_is_missing_is_named_with_its_package(self, program: Program, bin_directory: Path) -> None:
        (bin_directory / program.name).unlink()
        found = Requirement(*(each.name for each in NAMESPACES.programs)).reason
        assert found == f"{program.name} not found (Debian: {program.package})"

    @pytest.mark.parametrize("program", NAMESPACES.programs, ids=lambda program: program.name)
    def test_chaos_takes_no_namespaces_when_a_part_is_missing(self, program: Program, bin_directory: Path) -> None:
        (bin_directory / program.name).unlink()
        code = "from tests.chaos.isolation import *; print(look_around(enter_isolation([])).no_namespaces)"
        done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True)
        assert done.stdout == f"{program.name} not found (Debian: {program.package})\n", done.stderr

    def test_what_may_not_be_used_says_why(self) -> None:
        assert Requirement(attempt=lambda: refusal(["bash", "-c", "echo not permitted >&2; false"])).reason == (
            "not permitted"
        )
        assert refusal(["true"]) is None
        assert refusal(["/nonexistent/program"]) is not None
        assert Requirement(root=True).reason == (None if os.geteuid() == 0 else "only root may do this")

    def test_the_attempt_is_made_once(self) -> None:
        answers = ["no"]
        found = Requirement(attempt=answers.pop)
        assert (found.reason, found.reason) == ("no", "no")

    def test_the_newest_version_in_a_directory_comes_before_the_path(self, tmp_path: Path) -> None:
        program = Program("make", "make", f"{tmp_path}/*/bin")
        assert program.path() == shutil.which("make")
        for version in ("9", "15"):
            (tmp_path / version / "bin").mkdir(parents=True)
            (tmp_path / version / "bin" / "make").touch()
        assert program.path() == f"{tmp_path}/15/bin/make"

    def test_a_test_is_skipped_unless_nothing_may_be(self, monkeypatch: pytest.MonkeyPatch) -> None:
        missing = Requirement(attempt=lambda: "no such thing here")
        monkeypatch.delenv(NO_SKIP_VARIABLE, raising=False)
        with pytest.raises(pytest.skip.Exception, match="no such thing here"):
            missing.require()
        monkeypatch.setenv(NO_SKIP_VARIABLE, "1")
        with pytest.raises(pytest.fail.Exception, match=f"no such thing here, and {NO_SKIP_VARIABLE} is set"):
            missing.require()
        Requirement().require()


class TestPrepare:
    def test_nothing_is_said_or_done_when_nothing_is_missing(self, bin_directory: Path) -> None:
        calls = with_apt(bin_directory, refused="install")
        assert prepare() == ""
        assert not calls.exists()

    def test_what_is_missing_is_installed_in_one_go(self, bin_directory: Path) -> None:
        calls = with_apt(bin_directory, refused="nothing")
        for name in ("nft", "ip", "tc"):
            (bin_directory / name).unlink()
        assert prepare() == "prepare: installing iproute2 nftables\n"
        (call,) = calls.read_text().splitlines()
        assert call.endswith("install --no-install-recommends iproute2 nftables")

    def test_without_a_network_it_says_so_and_the_tests_are_skipped(self, bin_directory: Path) -> None:
        calls = with_apt(bin_directory, refused="install")
        (bin_directory / "nft").unlink()
        said = prepare().splitlines()
        assert said[0] == "prepare: installing nftables"
        assert said[-2:] == ["E: no network", "prepare: could not install nftables; tests that need nft are skipped"]
        assert [line.split()[-1] for line in calls.read_text().splitlines()] == ["nftables", "update", "nftables"]

    def test_a_user_who_may_not_install_is_told_the_line_to_run(self, bin_directory: Path) -> None:
        """The machine of this test has no apt-get."""
        (bin_directory / "nft").unlink()
        assert prepare() == (
            "prepare: nft not found; tests that need this are skipped. To run them too: sudo apt-get install nftables\n"
        )


def test_only_the_tests_are_prepared_for() -> None:
    """Neither the checks nor the demo need anything of Debian beside Python and make."""
    MAKE.require()
    for target, prepared in (("test", True), ("check", False), ("demo", False)):
        printed = subprocess.run(["make", "-n", target], cwd=REPOSITORY, capture_output=True, text=True).stdout
        assert ("tests/prepare.sh" in printed) is prepared, target
