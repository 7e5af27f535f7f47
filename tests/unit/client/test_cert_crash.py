"""A command of `keelmq cert` that is killed, or whose disk fails, at any of its system calls leaves no broken pair."""

import errno
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from typer.testing import CliRunner

from keelmq.cli.app import app
from tests.unit.client.test_cert import NODE_1, keelmq
from tests.unit.client.test_cert_refusals import snapshot

CALLS: Final = ("open", "write", "fsync", "link", "replace", "chmod", "chown", "mkdir", "unlink")
COMMANDS: Final = {
    "ca": ("ca", "pki"),
    "node": ("node", "pki", *NODE_1),
    "renew": ("node", "pki", *NODE_1, "--renew", "--host", "new.example"),
}
every_command: Final = pytest.mark.parametrize("name", COMMANDS)
KILLER: Final = """
# Runs a command in one child after the other, the nth of which is killed before its nth system call, until one ends.
import itertools, os, shutil, signal, sys
import keelmq.cli.security.authority_directory
from typer.testing import CliRunner
from keelmq.cli.app import app

calls, command = sys.argv[1].split(","), sys.argv[2:]
for number in itertools.count():
    shutil.copytree("before", f"after-{number}")
    os.chdir(f"after-{number}")
    child = os.fork()
    if child == 0:
        left = number

        def counted(real):
            def call(*arguments, **options):
                global left
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                left -= 1
                return real(*arguments, **options)

            return call

        for name in calls:
            setattr(os, name, counted(getattr(os, name)))
        os._exit(CliRunner().invoke(app, ["cert", *command]).exit_code)
    status = os.waitpid(child, 0)[1]
    os.chdir("..")
    if os.waitstatus_to_exitcode(status) != -signal.SIGKILL:
        print(number, os.waitstatus_to_exitcode(status))
        break
"""


def prepare(directory: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make what the command needs in the directory, which becomes the working directory."""
    directory.mkdir()
    monkeypatch.chdir(directory)
    if name != "ca":
        keelmq(*COMMANDS["ca"])
    if name == "renew":
        keelmq(*COMMANDS["node"])


def require_pairs(pki: Path) -> None:
    """Require that every file with a name is whole, and that keys and certificates beside each other match."""
    for key_file in pki.glob("[!.]*.key"):
        assert key_file.stat().st_mode & 0o777 == 0o600
        key = load_pem_private_key(key_file.read_bytes(), None)
        certificate_file = key_file.with_suffix(".crt")
        if certificate_file.exists():
            assert x509.load_pem_x509_certificate(certificate_file.read_bytes()).public_key() == key.public_key()
    for certificate_file in pki.glob("[!.]*.crt"):
        assert certificate_file.with_suffix(".key").exists()


@every_command
def test_a_command_that_is_killed_leaves_whole_files_that_match(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(tmp_path / "before", name, monkeypatch)
    former_key = Path("pki/node-1.key").read_bytes() if name == "renew" else None
    command = [sys.executable, "-c", KILLER, ",".join(CALLS), *COMMANDS[name]]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    kills, code = map(int, done.stdout.split())
    assert code == 0
    assert kills >= 6
    left = [tmp_path / f"after-{number}" / "pki" for number in range(kills + 1)]
    certificate = "ca.crt" if name == "ca" else "node-1.crt"
    for pki in left:
        require_pairs(pki)
        if former_key is not None:
            assert (pki / "node-1.key").read_bytes() == former_key
            assert (pki / "node-1.crt").exists()
        if name == "node":  # what the refusal says is the way on
            keelmq("node", pki, *NODE_1, *(("--renew",) if (pki / "node-1.key").exists() else ()))
            require_pairs(pki)
    assert (left[-1] / certificate).exists()


def failing(monkeypatch: pytest.MonkeyPatch, number: int, calls: Sequence[str]) -> list[str]:
    """Let the system call with this number fail for a full disk. Return a list that then has the call's name."""
    failed: list[str] = []
    left = number

    def counted(name: str, real: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left == -1:
                failed.append(name)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(*arguments, **options)

        return call

    for name in calls:
        monkeypatch.setattr(os, name, counted(name, getattr(os, name)))
    return failed


@every_command
def test_a_command_whose_disk_fails_says_so_and_leaves_what_was_there(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures: list[str] = []
    calls = [each for each in CALLS if each != "unlink"]
    while True:
        directory = tmp_path / f"failure-{len(failures)}"
        prepare(directory, name, monkeypatch)
        before = snapshot(directory)
        with monkeypatch.context() as patch:
            failed = failing(patch, len(failures), calls)
            told = CliRunner().invoke(app, ["cert", *COMMANDS[name]])
        if not failed:
            assert told.exit_code == 0
            break
        assert told.exit_code == 1
        assert "No space left on device; free some space, then repeat the command (file_unusable)" in told.stderr
        if "replace" in failures:
            require_pairs(directory / "pki")  # the new certificate has its name, which a power loss may take back
        else:
            assert snapshot(directory) == before
        failures += failed
    assert {"open", "write", "fsync"} <= set(failures)
    assert ("replace" if name == "renew" else "link") in failures


def test_a_file_system_without_hard_links_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    prepare(tmp_path / "usb", "renew", monkeypatch)
    require_pairs(Path("pki"))
    before = snapshot(Path("pki"))
    keelmq(*COMMANDS["node"], code=1)
    assert snapshot(Path("pki")) == before


def test_of_two_commands_at_once_one_makes_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(tmp_path / "shared", "node", monkeypatch)
    script = "from keelmq.cli.app import main; main()"
    command = [sys.executable, "-c", script, "cert", *COMMANDS["node"]]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    told = [process.communicate()[1] for process in running]
    assert sorted(process.returncode for process in running) == [0, 1, 1, 1]
    assert sum("file_exists" in each for each in told) == 3
    require_pairs(Path("pki"))
    assert sorted(path.name for path in Path("pki").iterdir()) == ["ca.crt", "ca.key", "node-1.crt", "node-1.key"]
