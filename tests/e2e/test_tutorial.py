"""docs/tutorial.md, followed word for word: its files are saved, its commands typed, its outputs compared.

A clone of links stands for the reader's clone, so the commands run as they are written. Only the addresses differ: the
SERVERS lines of the files and the environment name ports that are free here.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from deploy.local_nodes import LocalNode, free_ports, local_nodes, port_is_free
from tests.documents import blocks_of
from tests.patience import RUN_PATIENCE_S
from tests.requirements import BASH, MAKE

pytestmark = pytest.mark.process

ROOT: Final = Path(__file__).parents[2]
TUTORIAL: Final = ROOT / "docs" / "tutorial.md"
LINKED: Final = ("Makefile", "pyproject.toml", "client", "deploy")
"""The files and folders of a clone that the tutorial's commands use."""

NODES: Final = 3
SAVED: Final = re.compile(r"Save this as\s+`(\w+\.py)`[^`]*$")
SERVERS: Final = re.compile(r"^SERVERS = .*$", re.MULTILINE)
MARK: Final = "--- end of step"
KILLED: Final = 128 + signal.SIGKILL


class Step(NamedTuple):
    """The commands of one `sh` block, and the lines that the document says they print."""

    commands: list[str]
    printed: list[str]


class Clone:
    """A directory in which a reader of the tutorial could sit; its cluster has ports of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        first = next(port for port in iter(lambda: free_ports(1)[0], 0) if _are_free(port, 2 * NODES))
        self.http_ports, self.peer_ports = range(first, first + NODES), range(first + NODES, first + 2 * NODES)
        environment = directory / ".venv"
        environment.mkdir(parents=True)
        for name in LINKED:
            (directory / name).symlink_to(ROOT / name)
        for path in Path(sys.prefix).iterdir():
            (environment / path.name).symlink_to(path)
        # Newer than the pyproject.toml files: make finds everything installed, whenever those were touched.
        (environment / ".installed-broker").unlink(missing_ok=True)
        (environment / ".installed-broker").touch()

    def nodes(self) -> list[LocalNode]:
        return local_nodes(self.directory / ".data" / "local", self.http_ports, self.peer_ports)

    @property
    def servers(self) -> str:
        return ",".join(f"http://127.0.0.1:{port}" for port in self.http_ports)

    def environment(self) -> dict[str, str]:
        made_by_make = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")
        return {name: value for name, value in os.environ.items() if name not in made_by_make} | {
            "CLUSTER_HTTP_PORT": str(self.http_ports[0]),
            "CLUSTER_PEER_PORT": str(self.peer_ports[0]),
            "KEELMQ_SERVERS": self.servers,
            "KEELMQ_SEGMENT_BYTES": str(4 << 20),  # small: a test would otherwise preallocate 128 MiB per node
            "KEELMQ_MIN_FREE_BYTES": "0",
        }

    def run(self, script: str) -> str:
        """Run a shell script; return everything that it and its background processes print."""
        program, output = self.directory / "steps.sh", self.directory / "steps.out"
        program.write_text(script)
        with open(output, "wb") as written:
            shell = subprocess.Popen(
                ["bash", str(program)],
                cwd=self.directory,
                env=self.environment(),
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


@pytest.fixture
def clone(tmp_path: Path) -> Iterator[Clone]:
    MAKE.require()
    BASH.require()
    made = Clone(tmp_path / "clone")
    try:
        yield made
    finally:
        for node in made.nodes():
            node.kill()


def _are_free(first: int, count: int) -> bool:
    return first + count < 65_000 and all(map(port_is_free, range(first, first + count)))


def files_and_steps() -> tuple[dict[str, str], list[Step]]:
    files: dict[str, str] = {}
    steps: list[Step] = []
    for block in blocks_of(TUTORIAL):
        if block.language == "python":
            saved = SAVED.search(block.before)
            assert saved is not None, f"the tutorial does not say as what to save:\n{block.text}"
            files[saved[1]] = block.text
        elif block.language == "sh":
            steps.append(Step(block.text.replace("\\\n", "").splitlines(), []))
        else:
            assert block.language == "text", f"a block of the tutorial is neither code nor output:\n{block.text}"
            steps[-1].printed.extend(block.text.splitlines())
    return files, steps


def script_of(steps: list[Step]) -> str:
    """Say after each command which step it was of, and with which status it ended."""
    lines: list[str] = []
    for number, step in enumerate(steps):
        for command in step.commands:
            lines += [command, f'echo "{MARK} {number}: $?"']
    return "\n".join(lines) + "\n"


def pattern_of(line: str) -> re.Pattern[str]:
    """Match the line with other words where it has numbers, ids and times; a 0 is a 0."""
    words = (r"\S+" if re.search(r"\d", word) and word != "0" else re.escape(word) for word in line.split())
    return re.compile(r"\s+".join(words))


def test_the_tutorial_does_what_it_says(clone: Clone) -> None:
    files, steps = files_and_steps()
    for name, text in files.items():
        text, replaced = SERVERS.subn(f'SERVERS = "{clone.servers}"', text)
        assert replaced == ("keelmq" in text), f"{name} names the servers once"
        (clone.directory / name).write_text(text)

    output = clone.run(script_of(steps))
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
    missed = [said for said in ("kill:", "already running") if said in output]
    assert missed == [], f"a kill did not reach everything\n{output}"
    assert [node.running_pid() for node in clone.nodes()] == [None] * NODES
    assert not any((clone.directory / name).exists() for name in files), "the tutorial cleans up behind itself"
