"""Tests `make cluster` and `make cluster-stop`, and the README's example against the started nodes."""

import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.local_nodes import LocalNode, free_ports, local_nodes, port_is_free, wait_ready
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]


def run_of_free_ports(count: int) -> int:
    """Return the first of `count` consecutive free ports."""
    while True:
        first = free_ports(1)[0]
        if first + count < 65000 and all(map(port_is_free, range(first, first + count))):
            return first


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


def test_the_readme_example_runs(made: Made) -> None:
    url = made.nodes()[0].url
    request = urllib.request.Request(f"{url}/v1/topics/greetings", data=b"{}", method="PUT")
    request.add_header("Content-Type", "application/json")
    leader = next(node.url for node in made.nodes() if f'"leader_url":"{node.url}"' in cluster_of(url))
    request.full_url = f"{leader}/v1/topics/greetings"
    with urllib.request.urlopen(request) as response:
        assert response.status in (200, 201)
    (example,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    program = example
    for port, node in zip((7081, 7082, 7083), made.nodes(), strict=True):
        assert f"http://127.0.0.1:{port}" in program
        program = program.replace(f"http://127.0.0.1:{port}", node.url)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S)
    assert ended.returncode == 0, ended.stderr
    assert re.fullmatch(r"stored at \d 0 on nodes \[?\(?\d, \d.*\n", ended.stdout)


def cluster_of(url: str) -> str:
    with urllib.request.urlopen(f"{url}/v1/cluster") as response:
        return response.read().decode()  # type: ignore[no-any-return]


def test_stop_ends_every_node_and_keeps_the_data(made: Made) -> None:
    assert made.run("stop").count("stopped") == 3
    assert [node.running_pid() for node in made.nodes()] == [None, None, None]
    assert all((node.data_dir / "log").is_dir() for node in made.nodes())
    assert "not running" in made.run("stop")
