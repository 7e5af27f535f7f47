"""Fixtures made to order: `cluster = own_cluster(OPTIONS, topic="orders")` in a module is its fixture `cluster`.

What a test may break is its own; what a module shares is only used.
"""

import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from typer.testing import CliRunner, Result

from keelmq import Connection
from keelmq.admin import Admin
from keelmq.cli.app import app
from tests.e2e.cluster_process import OPTIONS, ClusterProcess
from tests.patience import CALL_PATIENCE_MS

KEELMQ: Final = (sys.executable, "-c", "from keelmq.cli.app import main; main()")
"""The command `keelmq` as a process of its own."""

_numbers: Final = itertools.count()


def own_cluster(options: Sequence[str] = OPTIONS, *, topic: str | None = None, settled: bool = False) -> Any:
    """Return a fixture: three nodes of the test's own that are ready, with a `topic` of one queue if it is named.

    With `settled`, all nodes have applied the same entries and one of them leads.
    """

    @pytest.fixture
    def cluster(tmp_path: Path) -> Iterator[ClusterProcess]:
        with ClusterProcess(tmp_path, nodes=3, options=options) as running:
            if topic is not None:
                running.make_topic(topic)
            if settled:
                running.wait_leader()
                running.wait_same_state()
            yield running

    return cluster


def shared_cluster(nodes: int = 3, options: Sequence[str] = OPTIONS) -> Any:
    """Return a fixture: nodes that are ready, shared by a module."""

    @pytest.fixture(scope="module")
    def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
        with ClusterProcess(tmp_path_factory.mktemp("cluster"), nodes=nodes, options=options) as running:
            yield running

    return cluster


def fresh_topic(queues: int) -> Any:
    """Return a fixture: the name of a new topic, made with the fixture `connection`."""

    @pytest.fixture
    async def topic(connection: Connection) -> str:
        name = f"topic-{next(_numbers)}"
        await Admin(connection).put_topic(name, queues=queues)
        return name

    return topic


@pytest.fixture
def patient_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have `cluster status`, `doctor` and `top` in this process wait for each node: for tests that stop none."""
    for module in ("cluster", "doctor"):
        monkeypatch.setattr(f"keelmq.cli.operations.{module}.NODE_TIMEOUT_MS", CALL_PATIENCE_MS)


class Shell:
    """Runs `keelmq` commands in this process, as a shell would with KEELMQ_SERVERS set."""

    def __init__(self, cluster: ClusterProcess) -> None:
        self.cluster = cluster
        self.servers = cluster.servers
        self.environment = {"KEELMQ_SERVERS": self.servers, "COLUMNS": "200"}

    def __call__(self, *arguments: str, stdin: str | bytes | None = None, code: int = 0) -> Result:
        result = CliRunner(env=self.environment).invoke(app, list(arguments), input=stdin)
        assert result.exit_code == code, result.output
        assert "Traceback" not in result.output
        return result

    def json(self, *arguments: str, **options: Any) -> Any:
        return json.loads(self(*arguments, "--json", **options).stdout)

    def lines(self, *arguments: str, **options: Any) -> list[Any]:
        return [json.loads(line) for line in self(*arguments, "--json", **options).stdout.splitlines()]

    def call(self, method: str, path: str, payload: Any) -> Any:
        """Send a request to the leader, which must carry it out; return the answer."""
        reply = self.cluster.wait_leader().request(method, path, payload=payload)
        assert reply.status < 300, reply
        return reply.json()


def shell_topic() -> Any:
    """Return a fixture: the name of a new topic of two queues, made with the fixture `shell`."""

    @pytest.fixture
    def topic(shell: Shell) -> str:
        name = f"topic-{next(_numbers)}"
        shell("topic", "create", name, "--queues", "2")
        return name

    return topic
