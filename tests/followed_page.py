"""A page of docs/, followed word for word: its files are saved, its commands typed, its outputs compared."""

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from tests.documents import blocks_of
from tests.patience import RUN_PATIENCE_S

SAVED: Final = re.compile(r"Save this as\s+`([\w.-]+)`[^`]*$")
MARK: Final = "--- end of step"
KILLED: Final = 128 + signal.SIGKILL


class Step(NamedTuple):
    """The commands of one `sh` block, and the lines that the document says they print."""

    commands: list[str]
    printed: list[str]


def files_and_steps(page: Path, languages: tuple[str, ...]) -> tuple[dict[str, str], list[Step]]:
    """Return the files of the page, which are the blocks of these languages, and its steps. Every block is one of the
    two, or what the step before it prints.
    """
    files: dict[str, str] = {}
    steps: list[Step] = []
    for block in blocks_of(page):
        if block.language in languages:
            saved = SAVED.search(block.before)
            assert saved is not None, f"{page.name} does not say as what to save:\n{block.text}"
            files[saved[1]] = block.text
        elif block.language == "sh":
            steps.append(Step(block.text.replace("\\\n", "").splitlines(), []))
        else:
            assert block.language == "text", f"a block of {page.name} is neither code nor output:\n{block.text}"
            steps[-1].printed.extend(block.text.splitlines())
    return files, steps


def script_of(steps: list[Step]) -> str:
    """Say after each command which step it was of, and with which status it ended."""
    lines: list[str] = []
    for number, step in enumerate(steps):
        for command in step.commands:
            lines += [command, f'echo "{MARK} {number}: $?"']
    return "\n".join(lines) + "\n"


def run(directory: Path, script: str, environment: Mapping[str, str]) -> str:
    """Run a shell script there; return everything that it and its background processes print."""
    program, output = directory / "steps.sh", directory / "steps.out"
    program.write_text(script)
    with open(output, "wb") as written:
        shell = subprocess.Popen(
            ["bash", str(program)],
            cwd=directory,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        shell.wait(RUN_PATIENCE_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()
    return output.read_text(errors="replace")


def require_as_written(steps: list[Step], output: str) -> None:
    """Compare what the commands printed, and how they ended, with what the page says."""
    parts = re.split(rf"^{MARK} (\d+): (\d+)\n", output, flags=re.MULTILINE)
    printed = [""] * len(steps)
    statuses: list[list[int]] = [[] for _ in steps]
    for text, number, status in zip(parts[0::3], parts[1::3], parts[2::3], strict=False):
        printed[int(number)] += text
        statuses[int(number)].append(int(status))
    for step, shown, ended in zip(steps, printed, statuses, strict=True):
        expected = KILLED if "Killed" in step.printed else 0
        assert ended == [expected] * len(step.commands), f"{step.commands} ended with {ended}\n{output}"
        lines = iter(shown.splitlines())
        for wanted in step.printed:
            pattern = pattern_of(wanted)
            assert any(pattern.search(line) for line in lines), f"{step.commands} did not print {wanted!r}\n{output}"


def pattern_of(line: str) -> re.Pattern[str]:
    """Match the line with other words where it has numbers, ids and times; a 0 is a 0."""
    words = (r"\S+" if re.search(r"\d", word) and word != "0" else re.escape(word) for word in line.split())
    return re.compile(r"\s+".join(words))
