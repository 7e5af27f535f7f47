"""The commands of docs/security.md lead from nothing to a closed cluster, as they stand there."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.local_nodes import free_ports
from tests.e2e.cluster_process import wait_for

pytestmark = pytest.mark.process

PAGE = Path(__file__).parents[2] / "docs" / "security.md"


class Terminal:
    """A shell in a directory of its own, for which the ports of the page are free ones."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._ports = dict(zip((7081, 7082, 7083, 7091, 7092, 7093), free_ports(6), strict=True))
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith("KEELMQ_")}
        self._environment |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "COLUMNS": "200"}

    def run(self, commands: str) -> "subprocess.CompletedProcess[str]":
        mapped = re.sub(r"\b70[89][123]\b", lambda found: str(self._ports[int(found[0])]), commands)
        return subprocess.run(
            ["bash", "-c", mapped],
            cwd=self.directory,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def done(self, commands: str) -> str:
        """Run commands that must succeed, and return what they print."""
        ended = self.run(commands)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    yield Terminal(tmp_path)
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line = (entry / "cmdline").read_bytes()
            is_here = (entry / "cwd").readlink() == tmp_path
        except OSError:
            continue  # it has ended, or is somebody else's
        if is_here and b"keelmqd" in line:
            os.kill(int(entry.name), signal.SIGKILL)


def blocks() -> list[str]:
    section = PAGE.read_text().split("## A closed cluster from nothing")[1].split("\n## ")[0]
    return re.findall(r"```\n(.*?)```", section, re.DOTALL)


def test_the_commands_of_the_page_make_a_closed_cluster(terminal: Terminal) -> None:
    from_nothing, service = blocks()
    terminal.done(from_nothing.replace("2> node$n.log &", "> node$n.out 2> node$n.log &"))
    asked = "KEELMQ_SERVERS=https://127.0.0.1:7081 KEELMQ_CA_FILE=pki/ca.crt"
    status = f"{asked} KEELMQ_TOKEN_FILE=admin_token keelmq cluster status"
    wait_for(lambda: terminal.run(status).returncode == 0, "the closed cluster to be healthy")
    assert "insecure" not in terminal.done(status)
    service = "set -e\n" + service
    assert "orders" in terminal.done(service)

    shop = f"{asked} KEELMQ_CERTIFICATE_FILE=pki/client-shop.crt KEELMQ_KEY_FILE=pki/client-shop.key"
    assert terminal.done(f"{shop} keelmq auth whoami").startswith("shop, from 127.0.0.1")
    for refused, code in (
        (f"{shop} keelmq topic create other", "forbidden"),
        (f"{asked} keelmq send orders hello", "unauthenticated"),
        (f"{asked} KEELMQ_TOKEN=keelmq_wrong keelmq send orders hello", "unauthenticated"),
        ("KEELMQ_SERVERS=https://127.0.0.1:7081 KEELMQ_TOKEN_FILE=admin_token keelmq topic list", "server_not_trusted"),
        ("KEELMQ_SERVERS=http://127.0.0.1:7081 KEELMQ_TOKEN_FILE=admin_token keelmq topic list", "no_leader"),
    ):
        ended = terminal.run(refused)
        assert ended.returncode == 1, (refused, ended)
        assert code in ended.stderr, (refused, ended)

    terminal.done("keelmq cert client pki --name stranger")
    stranger = shop.replace("client-shop", "client-stranger")
    assert "belong to no user" in terminal.run(f"{stranger} keelmq send orders hello").stderr
    secret = (terminal.directory / "admin_token").read_text().strip()
    for log in terminal.directory.glob("node*.log"):
        assert secret not in log.read_text()
