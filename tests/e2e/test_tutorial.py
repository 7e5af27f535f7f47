"""docs/tutorial.md, followed word for word: its files are saved, its commands typed, its outputs compared.

A clone of links stands for the reader's clone, so the commands run as they are written. Only the addresses differ: the
SERVERS lines of the files and the environment name ports that are free here.
"""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from deploy.local_nodes import LocalNode, local_nodes
from tests.followed_page import files_and_steps, require_as_written, run, script_of
from tests.port_runs import run_of_free_ports
from tests.requirements import BASH, MAKE

pytestmark = pytest.mark.process

ROOT: Final = Path(__file__).parents[2]
TUTORIAL: Final = ROOT / "docs" / "tutorial.md"
LINKED: Final = ("Makefile", "pyproject.toml", "client", "deploy")
"""The files and folders of a clone that the tutorial's commands use."""

NODES: Final = 3
SERVERS: Final = re.compile(r"^SERVERS = .*$", re.MULTILINE)


class Clone:
    """A directory in which a reader of the tutorial could sit; its cluster has ports of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        first = run_of_free_ports(2 * NODES)
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


def test_the_tutorial_does_what_it_says(clone: Clone) -> None:
    files, steps = files_and_steps(TUTORIAL, ("python",))
    for name, text in files.items():
        text, replaced = SERVERS.subn(f'SERVERS = "{clone.servers}"', text)
        assert replaced == ("keelmq" in text), f"{name} names the servers once"
        (clone.directory / name).write_text(text)

    output = run(clone.directory, script_of(steps), clone.environment())
    require_as_written(steps, output)
    missed = [said for said in ("kill:", "already running") if said in output]
    assert missed == [], f"a kill did not reach everything\n{output}"
    assert [node.running_pid() for node in clone.nodes()] == [None] * NODES
    assert not any((clone.directory / name).exists() for name in files), "the tutorial cleans up behind itself"
