"""Fixtures of real clusters. `cluster` is shared by a module: a test that breaks it makes its own."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from keelmq.transport.connection import Connection
from tests.certificates import Authority
from tests.databases import database_url as database_url
from tests.databases import engine as engine
from tests.databases import postgresql_url as postgresql_url
from tests.databases import sqlite_engine as sqlite_engine
from tests.e2e.cluster_process import STEADY, ClusterProcess, NodeProcess
from tests.e2e.deployment import Deployment
from tests.e2e.deployment import ssh_deployment as ssh_deployment
from tests.e2e.fixtures import Shell, shared_cluster
from tests.e2e.forked_command import make_program
from tests.e2e.loop_steps import BUSY_STEP_MS_MAX, VARIABLE, step_logs
from tests.e2e.node_template import BROKER, make_templates
from tests.e2e.small_disk import mounted_disk
from tests.patience import CALL_PATIENCE_MS


@pytest.fixture(scope="module", autouse=True)
def measured_steps() -> Iterator[None]:
    """Have every node that this module starts measure its steps. Demos and chaos start theirs themselves: nobody judges
    those steps, and the loop that measures is slower.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NodeProcess, "common_environment", {VARIABLE: str(BUSY_STEP_MS_MAX)})
        yield


@pytest.fixture(scope="module", autouse=True)
def forked_nodes() -> Iterator[None]:
    """Fork the nodes that this module starts from templates."""
    make_templates(BROKER)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NodeProcess, "are_forked", True)
        yield


@pytest.fixture(autouse=True)
def patient_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the commands that run in this process wait for a busy machine."""
    monkeypatch.setattr("keelmq.cli.output.CALL_TIMEOUT_MS", CALL_PATIENCE_MS)


@pytest.fixture(scope="session")
def keelmqd(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the path of a program that behaves as the command and costs little."""
    return str(make_program(tmp_path_factory.mktemp("keelmqd")))


@pytest.fixture
def deployment(tmp_path: Path, keelmqd: str) -> Iterator[Deployment]:
    """Yield an inventory of three nodes on this machine, which are stopped afterwards."""
    made = Deployment(tmp_path, {"program": keelmqd})
    made.fork_tool()
    try:
        yield made
    finally:
        made.end()


@pytest.fixture(autouse=True)
def no_long_steps(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail the test if a node had a step of more than BUSY_STEP_MS_MAX. Marked `long_steps`, it must have had one."""
    yield
    found = list(step_logs.long_steps())
    if request.node.get_closest_marker("long_steps") is not None:
        assert found, "no step was long: remove the mark"
    else:
        assert not found, "\n".join(found)


cluster = shared_cluster(nodes=3, options=STEADY)
single = shared_cluster(nodes=1)
"""The cheapest real broker, for tests that need no replication."""


@pytest.fixture
def shell(cluster: ClusterProcess) -> Shell:
    """Return `keelmq` as a shell would run it beside the module's cluster."""
    return Shell(cluster)


@pytest.fixture
async def connection(cluster: ClusterProcess) -> AsyncIterator[Connection]:
    """Return a connection of the SDK to the three nodes."""
    made = Connection(cluster.urls)
    yield made
    made.close()


@pytest.fixture(scope="module")
def ca() -> Authority:
    """Return a certificate authority of the module's own."""
    return Authority()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Return a file system of its own with little space."""
    with mounted_disk(tmp_path) as mounted:
        yield mounted
