"""The command with standard streams that are closed, full, or without the characters that it prints."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from keelmq.cli import output


def keelmq(home: Path, redirection: str, *arguments: str, **variables: str) -> "subprocess.CompletedProcess[bytes]":
    """Run the command with a shell's redirection of its streams."""
    program = "from keelmq.cli.entry import main; main()"
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {redirection}', "sh", sys.executable, "-c", program, *arguments],
        capture_output=True,
        env={"XDG_CONFIG_HOME": str(home), "PYTHONPATH": ":".join(sys.path), **variables},
    )


@pytest.mark.parametrize("arguments", [("--version",), ("--help",), ("context", "list"), ("context", "list", "--json")])
def test_a_full_disk_behind_the_output_is_an_error(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = keelmq(tmp_path, "> /dev/full", *arguments)
    why = b"error: standard input or output: No space left on device; what was asked for may be done\n"
    assert (done.returncode, done.stderr) == (1, why)


@pytest.mark.parametrize("redirection", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_read_and_written_in_vain(tmp_path: Path, redirection: str) -> None:
    done = keelmq(tmp_path, redirection, "context", "list", "--json")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == (b"" if ">&- " in redirection or redirection == ">&-" else b'{"contexts": []}\n')
    assert keelmq(tmp_path, redirection, "context", "show").returncode == 1


def test_a_message_without_a_standard_input_has_no_body(tmp_path: Path) -> None:
    done = keelmq(tmp_path, "<&-", "send", "orders", "-")
    assert done.returncode == 2
    assert done.stderr == b"error: a message needs a body of at least one byte (empty_body)\n"


def test_what_an_output_cannot_encode_is_escaped_and_json_is_json(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="latin-1"))
    output.prepare()
    output.print_json({"body": "grün 🎉"})
    output.say("grün 🎉", flush=True)
    document, text = written.getvalue().splitlines()
    assert json.loads(document.decode("ascii")) == {"body": "grün 🎉"}
    assert text.decode("latin-1") == r"grün \U0001f389"


def test_other_errors_stay_what_they_are() -> None:
    for error in (ConnectionRefusedError(111, "no"), OSError("no number")):
        with pytest.raises(type(error)):
            output.fail_on_os_error(error)


def test_a_home_that_cannot_be_written_gets_no_completion(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.write_text("a file")
    # The word counts, and not which shell runs the tests: that one may have ended.
    undetected = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    done = keelmq(tmp_path, "", "--install-completion", "bash", HOME=str(home), **undetected)
    why = f"error: {home}: File exists\n"
    assert (done.returncode, done.stdout.decode(), done.stderr.decode()) == (1, "", why)
