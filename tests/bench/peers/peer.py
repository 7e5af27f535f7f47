"""A peer, as the comparison knows it: a cluster of three on loopback, its load generator, and its variants."""

import contextlib
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar, Final, NamedTuple

from deploy.broker_process import HOST
from tests.bench.peers.client import LoadClient, LoadError, LoadResult
from tests.bench.peers.fetch import Cache
from tests.bench.peers.processes import Guard, Sessions
from tests.bench.peers.rows import Row
from tests.bench.peers.usage import Usage

NODES: Final = 3
PORT_TIMEOUT_S: Final = 120.0
POLL_S: Final = 0.1


class Variant(NamedTuple):
    """One line of the comparison: a cluster as it is configured, or one of its topics."""

    name: str
    title: str
    flavour: str = ""
    """Argument for the load generator, where one cluster serves several variants."""


class Slice(NamedTuple):
    """One measured turn: what the load generator counted, and who used the processor meanwhile."""

    result: LoadResult
    usage: Usage


class Cluster:
    """Three nodes of one peer and its load generator. All its processes are paused outside its turns.

    Subclasses start processes with `start_server` and `start_client`; both are measured apart.
    """

    variants: ClassVar[Sequence[Variant]]
    preheat_s: ClassVar[float] = 2.0
    """Seconds for which the peer is loaded before its first turn: JVMs compile what is used often."""

    spent_after: ClassVar[str] = ""
    """Kind of load after which the cluster is replaced before a load of another kind."""

    def __init__(self, directory: Path, guard: Guard, cache: Cache) -> None:
        self.directory = directory
        self.guard = guard
        self.cache = cache
        self.servers = Sessions(guard)
        self.client_sessions = Sessions(guard)
        self._client: LoadClient | None = None

    def fetch(self) -> None:
        """Fetch what the peer needs. Raises FetchError."""

    def launch(self) -> None:
        """Start the three nodes and the load generator. Raises LoadError or OSError."""
        raise NotImplementedError

    @property
    def client(self) -> LoadClient:
        assert self._client is not None
        return self._client

    def start_server(self, name: str, command: Sequence[str | Path], environment: dict[str, str] | None = None) -> None:
        process = self.guard.start(command, self.directory / f"{name}.log", environment, directory=self.directory)
        self.servers.add(process.pid)

    def adopt_server(self, session: int) -> None:
        """Count a session that was started elsewhere among the servers."""
        self.guard.adopt(session)
        self.servers.add(session)

    def start_client(self, command: Sequence[str | Path], environment: dict[str, str] | None = None) -> None:
        log = self.directory / "client.log"
        process = self.guard.start(command, log, environment, piped=True)
        self.client_sessions.add(process.pid)
        self._client = LoadClient(process)

    def start(self) -> None:
        """Start the cluster, and return when its load generator has created what it needs."""
        self.directory.mkdir(parents=True)
        self.launch()
        self.client.wait_ready()

    def pause(self) -> None:
        self.client_sessions.pause()
        self.servers.pause()

    def resume(self, flavour: str) -> None:
        """Let the processes run, and return when the cluster takes messages again."""
        self.servers.resume()
        self.client_sessions.resume()
        self.client.settle(flavour)

    def measure(self, row: Row, flavour: str, warm_up_s: float, seconds: float) -> Slice:
        """Run one load. Raises LoadError, and Missing when the peer has no such load."""
        samples: list[Usage] = []

        def sample() -> None:
            samples.append(Usage.now(self.servers.cpu_s, self.client_sessions.cpu_s))

        result = self.client.load(row, flavour, warm_up_s, seconds, sample, sample)
        before, after = samples
        return Slice(result, after.since(before))

    def end(self) -> None:
        self.client_sessions.end()
        self.servers.end()


def wait_for_port(port: int, why: Callable[[], str] = str) -> None:
    """Return when something listens on the port. Raises LoadError with `why` after PORT_TIMEOUT_S."""
    deadline = time.monotonic() + PORT_TIMEOUT_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout=1.0):
            return
        time.sleep(POLL_S)
    raise LoadError(f"nothing listens on port {port} after {PORT_TIMEOUT_S:.0f} s {why()}")
