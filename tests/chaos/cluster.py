"""The cluster under attack: its nodes, the ways to ask them, and a watcher that notices when one ends."""

import asyncio
import contextlib
import shutil
import subprocess
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import aiohttp
import msgspec

from cluster.process.exit_codes import ExitCode
from deploy.local_nodes import free_ports, make_secret
from tests.chaos.broken import BROKEN_VARIABLE
from tests.chaos.history import History
from tests.chaos.isolation import Machine
from tests.chaos.network import CLIENT_HOST, Network, host_of
from tests.chaos.node import ChaosNode
from tests.chaos.skewed_node import set_offset_ns
from tests.chaos.violations import Kind, Violations
from tests.chaos.wall_clocks import WallClocks
from tests.patience import PATIENCE_S

HTTP_PORT: Final = 7081
PEER_PORT: Final = 7091
ASK_TIMEOUT_S: Final = 0.5
READY_TIMEOUT_S: Final = PATIENCE_S
STOP_TIMEOUT_S: Final = PATIENCE_S
WATCH_INTERVAL_S: Final = 0.1
POLL_S: Final = 0.02
RESTARTS_MAX: Final = 10
"""Maximum number of restarts in a run after nodes ended without a reason."""
DISK_BYTES: Final = 8 << 30
"""Size of a node's file system; memory is used only for written data."""
SPARES: Final = 1
"""Number of places for nodes beside those that the cluster begins with."""
PORTS_MAX: Final = 1_000
STAT_BLOCK_BYTES: Final = 512
EXITS_WHEN_FULL: Final = frozenset({ExitCode.FATAL, ExitCode.DISK_REFUSES})


class NodeEnded(RuntimeError):
    """Raised when a node whose process has ended is waited for."""


class ClusterSettings(msgspec.Struct, frozen=True):
    nodes: int = 3
    skewed_clocks: bool = False
    options: tuple[str, ...] = ()
    broken: str | None = None
    """Name of the nodes' defect (tests/chaos/broken.py); None for correct nodes."""


def syncs_by_thread(node_id: int) -> bool:
    """Return whether the node has a thread that syncs its log, as every other node has; elsewhere the kernel does."""
    return node_id % 2 == 1


class ChaosCluster:
    """Owns `nodes` real brokers, and calls `event(kind, text)` when something happens to them."""

    def __init__(
        self,
        settings: ClusterSettings,
        directory: Path,
        machine: Machine,
        network: Network | None,
        violations: Violations,
        history: History,
        event: Callable[[str, str], None],
    ) -> None:
        self.machine = machine
        self.violations = violations
        self.history = history
        self.event = event
        self.directory = directory
        ids = range(1, settings.nodes + 1)
        self.network = network
        self._settings = settings
        self.nodes = {node_id: self._node(node_id) for node_id in ids}
        self.clocks = WallClocks({node_id: node.clock_file for node_id, node in self.nodes.items()})
        self.leader_id: int | None = None
        self.unreachable: set[int] = set()
        self.full: set[int] = set()
        """Nodes whose disks are full: every start of them may end or fail."""
        self.may_end_late: dict[int, int] = {}
        """Nodes whose disks were full, with the number of the start that may still end of it: they are started anew, as
        by a supervisor, until the round is over.
        """
        self.removed: set[int] = set()
        """First nodes that are removed, or are about to be."""
        self.has_changed = False
        """True once the log holds the members and addresses: a node that loses its disk joins then, and founds no
        cluster.
        """
        self.spare: ChaosNode | None = None
        """A node that was added; not among `nodes`, which faults choose from and whose logs are compared in the end."""
        self.retired: dict[int, Path] = {}
        """Log files of nodes that were added and have gone, by node id."""
        self._overrides = 0
        self._restarts = 0
        self._was_ready = False
        """True once all nodes were ready: from then on one that ends without a reason is started again."""
        self._reported: set[tuple[int, int]] = set()  # ends that were judged: node, number of the start
        for node in self.nodes.values():
            node.data_dir.mkdir(parents=True)
            self.configure(node)
            self._break(node)
            if machine.isolated:
                mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(node.data_dir)]
                subprocess.run(mount, check=True, capture_output=True)

    async def __aenter__(self) -> Self:
        # No connection is kept: one from before a fault would show the fault's effect, not the node's state.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(force_close=True, limit=0),
            timeout=aiohttp.ClientTimeout(total=ASK_TIMEOUT_S),
        )
        self._watcher = asyncio.create_task(self._watch())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watcher.cancel()
        await asyncio.gather(self._watcher, return_exceptions=True)
        await self._session.close()
        if self.spare is not None:
            self.spare.kill()
        for node in self.nodes.values():
            node.kill()
            if self.machine.isolated:
                await (await asyncio.create_subprocess_exec("umount", str(node.data_dir))).wait()

    def configure(self, node: ChaosNode, *, override: int = 0) -> None:
        """Set the arguments of the node's next starts: all nodes' addresses, or the node to join once the log knows
        them.
        """
        others = [other for other in self.nodes.values() if other is not node]
        joins = (self.has_changed and not override) or node.node_id not in self.nodes
        node.arguments = ["--cluster-id", "chaos", "--node-id", str(node.node_id), "--data-dir", str(node.data_dir)]
        if joins:
            node.arguments += ["--join", others[0].url, "--http-listen", f"{node.host}:{node.http_port}"]
            node.arguments += ["--peer-listen", f"{node.host}:{node.peer_port}"]
        else:
            node.arguments += [part for each in self.nodes.values() for part in ("--peer", each.peer_option)]
        if override:
            node.arguments += ["--override-addresses", str(override)]
        node.arguments += [
            "--peer-secret-file",
            str(make_secret(self.directory)),
            "--insecure-peers",
            "--insecure-http",
        ]
        node.arguments += self._settings.options
        if syncs_by_thread(node.node_id):
            node.arguments += ["--log-sync", "thread"]

    def _break(self, node: ChaosNode) -> None:
        if self._settings.broken is not None:
            node.module = "tests.chaos.broken_node"
            node.environment[BROKEN_VARIABLE] = self._settings.broken
        elif self._settings.skewed_clocks:
            node.module = "tests.chaos.skewed_node"

    def move(self, node: ChaosNode) -> None:
        """Give the node another peer port, at which its peers find it from its next start on."""
        if self.network is None:
            node.peer_port = free_ports(1)[0]
        else:
            node.peer_port = PEER_PORT + (node.peer_port - PEER_PORT + 1) % PORTS_MAX

    def next_override(self) -> int:
        self._overrides += 1
        return self._overrides

    def start_spare(self) -> ChaosNode:
        """Start a new node with an empty disk and an id that no node had before."""
        node_id = len(self.nodes) + 1 + len(self.retired)
        self.spare = node = self._node(node_id, place=len(self.nodes) + 1)
        node.data_dir.mkdir(parents=True)
        self.configure(node)
        self._break(node)
        set_offset_ns(node.clock_file, 0)
        node.start()
        return node

    def retire_spare(self) -> None:
        if self.spare is not None:
            self.spare.kill()
            shutil.rmtree(self.spare.data_dir)
            self.retired[self.spare.node_id] = self.spare.log_path
            self.spare = None

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(node.url for node in self.nodes.values())

    @property
    def client_host(self) -> str:
        return CLIENT_HOST

    @property
    def majority(self) -> int:
        return len(self.nodes) // 2 + 1

    def ids(self) -> list[int]:
        return list(self.nodes)

    def allow_exit(self, node_id: int, codes: Iterable[ExitCode]) -> None:
        """Let a fault explain these exit codes of the node until its next start."""
        self.nodes[node_id].exits_allowed.update(int(code) for code in codes)

    def start(self, node_ids: Sequence[int] = ()) -> None:
        for node_id in node_ids or self.ids():
            node = self.nodes[node_id]
            if not node.running():
                self._judge_end(node)
                node.start()

    def disk_bytes(self) -> int:
        """Return the bytes that the data of all nodes takes on disk at the moment."""
        files = (file for node in self.nodes.values() for file in node.data_dir.rglob("*"))
        total = 0
        for file in files:
            with contextlib.suppress(FileNotFoundError):  # the nodes remove files meanwhile
                total += file.stat().st_blocks * STAT_BLOCK_BYTES
        return total

    async def stop(self, node_id: int) -> int:
        """Stop the node gracefully and return its exit code. A node that takes too long is killed, which is a
        violation.
        """
        node = self.nodes[node_id]
        node.terminate()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                while node.running():
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            self.violations.add(
                Kind.UNEXPECTED_EXIT, f"node {node_id} did not stop within {STOP_TIMEOUT_S:.0f} s of SIGTERM"
            )
            node.kill()
        return node.exit_code() or 0

    async def ask(self, node_id: int, path: str = "/v1/cluster", timeout_s: float = ASK_TIMEOUT_S) -> Any:
        """Return the JSON answer of one node to a GET; None when it does not answer with 200."""
        try:
            timeout = aiohttp.ClientTimeout(total=timeout_s)
            async with self._session.get(self.nodes[node_id].url + path, timeout=timeout) as response:
                return await response.json() if response.status == 200 else None
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
            return None

    async def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until every node says that it is ready. Raises NodeEnded at once when one has ended and is not started
        again, and TimeoutError otherwise, both with the ends of logs.
        """
        waiting = set(self.nodes)
        try:
            async with asyncio.timeout(timeout_s):
                while waiting:
                    for node_id in list(waiting):
                        if await self.ask(node_id, "/readyz") is not None:
                            waiting.discard(node_id)
                        self._require_running(self.nodes[node_id])
                    await asyncio.sleep(POLL_S)
            self._was_ready = True
        except TimeoutError:
            tails = "\n".join(f"--- node {each}\n{self.nodes[each].log_tail()}" for each in sorted(waiting))
            raise TimeoutError(f"not ready after {timeout_s:.0f} s: {sorted(waiting)}\n{tails}") from None

    def _require_running(self, node: ChaosNode) -> None:
        self._judge_end(node)
        code = node.exit_code()
        if code is not None:
            raise NodeEnded(f"node {node.node_id} ended with exit code {code}:\n{node.log_tail()}")

    async def known_leader(self) -> int | None:
        """Return the node that claims to lead the highest term among the answers; None if none claims to lead."""
        views = await asyncio.gather(*(self.ask(node_id) for node_id in self.nodes))
        claims = [(view["term"], view["node_id"]) for view in views if view is not None and view["role"] == "leader"]
        return max(claims)[1] if claims else None

    def _node(self, node_id: int, place: int = 0) -> ChaosNode:
        """Make a node; `place` is the number of its namespace, if that is not its id."""
        place = place or node_id
        if self.network is not None:
            prefix = self.network.prefix(place)
            return ChaosNode(node_id, host_of(place), HTTP_PORT, PEER_PORT, self.directory, prefix)
        http_port, peer_port = free_ports(2)
        return ChaosNode(node_id, "127.0.0.1", http_port, peer_port, self.directory, ())

    async def _watch(self) -> None:
        while True:
            for node in (*self.nodes.values(), *([self.spare] if self.spare is not None else [])):
                self._judge_end(node)
            await asyncio.sleep(WATCH_INTERVAL_S)

    def _judge_end(self, node: ChaosNode) -> None:
        """Check, once per end of a process, that a fault explains the exit code."""
        code = node.exit_code()
        if code is None or (node.node_id, node.starts) in self._reported:
            return
        self._reported.add((node.node_id, node.starts))
        self.history.write("exit", node=node.node_id, code=code)
        explained = node.exits_allowed | (EXITS_WHEN_FULL if node.node_id in self.full else set())
        if code in explained and code in EXITS_WHEN_FULL and self.may_end_late.get(node.node_id) == node.starts:
            self.event("recovery", f"node {node.node_id} has ended of its full disk, and is started anew")
            node.start()
        if code not in explained:
            tail = node.log_tail()
            self.violations.add(Kind.UNEXPECTED_EXIT, f"node {node.node_id} ended with {code}:\n{tail}")
            self.event("fault", f"node {node.node_id} ended by itself with {code}")
            self._restarts += 1
            if self._was_ready and self._restarts <= RESTARTS_MAX:
                node.start()  # the run goes on, since it may find more
