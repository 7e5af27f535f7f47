"""Tests `make cluster` and `make cluster-stop`, and the README's examples against the started nodes."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.local_nodes import LocalNode, local_nodes, wait_ready
from tests.documents import blocks_of
from tests.patience import PATIENCE_S
from tests.port_runs import run_of_free_ports

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]


class Made:
    """Runs the make targets with ports and data of their own."""

    def __init__(self, data: Path) -> None:
        self.data = data
        first = run_of_free_ports(6)
        self.http_ports, self.peer_ports = range(first, first + 3), range(first + 3, first + 6)
        self.environment = os.environ | {
            "CLUSTER_DATA": str(data),
            "CLUSTER_HTTP_PORT": str(self.http_ports[0]),
            "CLUSTER_PEER_PORT": str(self.peer_ports[0]),
        }

    def run(self, action: str) -> str:
        command = [sys.executable, "-m", "deploy.local_cluster", action]
        ended = subprocess.run(
            command, cwd=ROOT, env=self.environment, capture_output=True, text=True, timeout=PATIENCE_S
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    def nodes(self) -> list[LocalNode]:
        return local_nodes(self.data, self.http_ports, self.peer_ports)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    made = Made(tmp_path_factory.mktemp("local"))
    try:
        assert "ready. Try:" in made.run("start")
        yield made
    finally:
        for node in made.nodes():
            node.kill()


def test_starting_again_says_so_and_starts_nothing(made: Made) -> None:
    before = [node.running_pid() for node in made.nodes()]
    assert None not in before
    assert "already running" in made.run("start")
    assert [node.running_pid() for node in made.nodes()] == before


def test_starting_again_brings_a_killed_node_back(made: Made) -> None:
    victim = made.nodes()[1]
    before = victim.running_pid()
    victim.kill()
    assert victim.running_pid() is None
    made.run("start")
    assert victim.running_pid() not in (None, before)
    wait_ready(made.nodes())


def test_the_readme_examples_run(made: Made, tmp_path: Path) -> None:
    """The commands that make topics and the programs run in the README's order, with the addresses of this cluster."""
    urls = [node.url for node in made.nodes()]
    environment = os.environ | {"KEELMQ_SERVERS": ",".join(urls)}
    printed = []
    for block in blocks_of(ROOT / "README.md"):
        commands: list[list[str]] = []
        if block.language == "python":
            program = block.text
            for port, url in zip((7081, 7082, 7083), urls, strict=True):
                assert f"http://127.0.0.1:{port}" in program
                program = program.replace(f"http://127.0.0.1:{port}", url)
            commands = [[sys.executable, "-c", program]]
        elif "keelmq topic create" in block.text:
            words = [line.split() for line in block.text.splitlines()]
            assert {line[0] for line in words} == {".venv/bin/keelmq"}
            commands = [[str(Path(sys.executable).parent / "keelmq"), *line[1:]] for line in words]
        for command in commands:
            ended = subprocess.run(
                command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE_S
            )
            assert ended.returncode == 0, ended.stderr
            printed.append(ended.stdout)
    assert len(printed) == 4
    assert re.fullmatch(r"stored at \d 0 on nodes \[?\(?\d, \d.*\n", printed[2])
    assert re.fullmatch(r"committed \(Position\(topic='payments', queue=\d, offset=0, count=1.*\n", printed[3])


def test_stop_ends_every_node_and_keeps_the_data(made: Made) -> None:
    assert made.run("stop").count("stopped") == 3
    assert [node.running_pid() for node in made.nodes()] == [None, None, None]
    assert all((node.data_dir / "log").is_dir() for node in made.nodes())
    assert "not running" in made.run("stop")
