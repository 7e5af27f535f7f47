"""Runs real `keelmqd` processes on loopback: start, wait, kill, pause, restart, and leave none behind.

    with ClusterProcess(tmp_path, nodes=3) as cluster:
        leader = cluster.wait_leader()
        leader.kill()
        cluster.wait_leader(among=cluster.alive())

Everything waits on a condition with a deadline; a deadline that passes raises with the tail of the nodes' logs.
"""

import asyncio
import http.client
import inspect
import json
import signal
import ssl
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, ClassVar, Final, NamedTuple, Self, TypeVar

from deploy.broker_process import BrokerProcess, RunningProcess
from deploy.local_nodes import free_ports, make_secret
from tests.e2e.node_template import BROKER, MODULES, can_be_forked, template_of
from tests.patience import PATIENCE_S

POLL_INTERVAL_S: Final = 0.02
OPTIONS: Final = ("--election-timeout-ms", "500", "--heartbeat-ms", "50")
STEADY: Final = ("--election-timeout-ms", "8000", "--heartbeat-ms", "300")
"""Options of nodes one of which leads throughout, also where processes stand for seconds: for clusters whose leader no
test ends. The first election takes some three seconds.
"""

Value = TypeVar("Value")


class Reply(NamedTuple):
    """One HTTP response. The names in `headers` are lower-case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


def wait_for(condition: Callable[[], Value | None], what: str) -> Value:
    """Return the first truthy value of `condition`. Raises TimeoutError, which names `what`, after PATIENCE_S."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {PATIENCE_S:.0f} s for {what}")
        time.sleep(POLL_INTERVAL_S)


async def until(condition: Callable[[], Any]) -> None:
    """Wait until `condition`, or the awaitable that it returns, is true. Raises TimeoutError after PATIENCE_S."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = condition()
            if await found if inspect.isawaitable(found) else found:
                return
            await asyncio.sleep(POLL_INTERVAL_S)


def ok(reply: Reply) -> Any:
    """Return the content of an answer, which must be a success; None if it has no body."""
    assert reply.status < 300, reply
    return reply.json() if reply.body else None


class NodeProcess(BrokerProcess):
    """One broker process. Its addresses and data survive `kill` and `start`."""

    EXIT_TIMEOUT_S: ClassVar[float | None] = PATIENCE_S
    logs: ClassVar[dict[Path, None]] = {}
    """Log files of all nodes that this process has made, in their order."""
    common_environment: ClassVar[Mapping[str, str]] = {}
    """Variables of every node, unless its own `environment` has them."""
    are_forked: ClassVar[bool] = False
    """Tells whether nodes of this tree come from a template (node_template.py)."""

    def __init__(self, node_id: int, directory: Path, http_port: int, peer_port: int) -> None:
        super().__init__(node_id, http_port, peer_port, directory / f"node{node_id}", directory / f"node{node_id}.out")
        self.logs[self.log_path] = None
        self.module = BROKER
        self.arguments: list[str] = []
        self.tree: Path | None = None
        """Working directory of the process, whose tree it runs; None for this tree."""
        self.environment: dict[str, str] = {}
        self.token: str | None = None
        """Bearer token of every request that does not bring its own Authorization header."""

    def command(self) -> list[str]:
        return [sys.executable, "-m", self.module, "run", *self.arguments]

    def start(self, prefix: Sequence[str] = (), extra: Sequence[str] = ()) -> None:
        """Start the process; `prefix` is a wrapper such as strace, `extra` more flags for this start only."""
        self.launch([*prefix, *self.command(), *extra], {**self.common_environment, **self.environment}, self.tree)

    def spawn(
        self, command: Sequence[str], environment: Mapping[str, str], directory: Path | None, log: BinaryIO
    ) -> RunningProcess:
        python, module, arguments = command[:2], command[2], command[3:]
        is_plain = directory is None and list(python) == [sys.executable, "-m"] and module in MODULES
        if self.are_forked and is_plain and can_be_forked(environment):
            return template_of(self.node_id, module).fork(arguments, environment, log)
        return super().spawn(command, environment, directory, log)

    def pause(self) -> None:
        """Have the process stand, with its connections open."""
        self.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.send_signal(signal.SIGCONT)

    def terminate(self) -> int:
        """Stop the process gracefully; returns the exit code."""
        self.send_signal(signal.SIGTERM)
        return self.wait_exit()

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        payload: Any = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = PATIENCE_S,
    ) -> Reply:
        """Send one request to this node; redirects are not followed. Raises OSError when the node cannot be reached."""
        sent = dict(headers or {})
        if payload is not None:
            body = json.dumps(payload).encode()
        if body is not None or method in ("POST", "PUT"):
            sent.setdefault("Content-Type", "application/json")
        if self.token is not None:
            sent.setdefault("Authorization", f"Bearer {self.token}")
        connection = self.connection(timeout_s)
        try:
            connection.request(method, path, body, sent)
            response = connection.getresponse()
            return Reply(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        except http.client.HTTPException as error:
            raise ConnectionError(f"node {self.node_id}: {error!r}") from error
        finally:
            connection.close()

    def call(self, method: str, path: str, payload: Any = None) -> Any:
        """Have this node carry out the request, and return the content of its answer."""
        return ok(self.request(method, path, payload=payload))

    def send(self, path: str, key: str, body: str = "x") -> Reply:
        """Send one message with this key, without following a redirect or repeating it."""
        headers = {"Idempotency-Key": key}
        return self.request("POST", path, payload={"messages": [{"body": body}]}, headers=headers)

    def max_offset(self, topic: str) -> int:
        """Return the end of the first queue of the topic, as this node knows it."""
        return int(self.request("GET", f"/v1/topics/{topic}").json()["queue_offsets"][0]["max_offset"])

    def alarms(self) -> dict[tuple[str, str], str]:
        """Return the details of this node's alarms by code and subject; none while it does not answer."""
        status = self.status() or {"alarms": ()}
        return {(each["code"], each["subject"]): each["detail"] for each in status["alarms"]}

    def status(self) -> dict[str, Any] | None:
        """Return /v1/cluster of this node, or None while it does not answer."""
        try:
            reply = self.request("GET", "/v1/cluster", timeout_s=2.0)
        except OSError:
            return None
        return reply.json() if reply.status == 200 else None

    def known_status(self) -> dict[str, Any]:
        """Return /v1/cluster of this node, which runs: it may only be slow to answer."""
        return wait_for(self.status, f"node {self.node_id} to tell its status")

    def ready(self) -> bool:
        return self.not_ready() is None


class ClusterProcess:
    """Owns `nodes` brokers that know each other. The context starts them and waits until all are ready."""

    def __init__(
        self,
        directory: Path,
        nodes: int = 3,
        *,
        options: Sequence[str] = OPTIONS,
        environment: Mapping[str, str] | None = None,
        ports: Sequence[int] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Create the cluster; `ports` are two reserved ones per node (HTTP, peers), otherwise free ones are taken. With
        `tls`, by which the tests call the nodes, they have https URLs; the caller adds their certificates.
        """
        ports = ports or free_ports(2 * nodes)
        self.directory = directory
        self.nodes = {i: NodeProcess(i, directory, ports[2 * i - 2], ports[2 * i - 1]) for i in range(1, nodes + 1)}
        for node in self.nodes.values():
            node.tls = tls
        peers = [node.peer_option for node in self.nodes.values()]
        for node in self.nodes.values():
            node.arguments = ["--cluster-id", "e2e", "--node-id", str(node.node_id), "--data-dir", str(node.data_dir)]
            node.arguments += [part for peer in peers for part in ("--peer", peer)]
            node.arguments += ["--peer-secret-file", str(make_secret(directory))]
            # Small segments: a test would otherwise preallocate 128 MiB per node.
            node.arguments += ["--segment-bytes", str(4 << 20), "--min-free-bytes", "0", *options]
            node.environment = dict(environment or {})

    @property
    def urls(self) -> list[str]:
        return [node.url for node in self.nodes.values()]

    @property
    def servers(self) -> str:
        """The URLs as the command line and KEELMQ_SERVERS take them."""
        return ",".join(self.urls)

    def __enter__(self) -> Self:
        try:
            self.start()
            self.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        for node in self.nodes.values():
            if not node.running():
                node.start()

    def stop(self) -> None:
        """End every process for certain; nothing is left running when this returns."""
        for node in self.nodes.values():
            node.resume()
            node.send_signal(signal.SIGKILL)
        for node in self.nodes.values():
            if node.process is not None:
                node.wait_exit()

    def alive(self) -> list[NodeProcess]:
        return [node for node in self.nodes.values() if node.running()]

    def wait_ready(self) -> None:
        """Wait until every running node is ready. Raises RuntimeError when a node has ended."""

        def all_ready() -> bool:
            self._require_running(len(self.nodes))
            return all(node.ready() for node in self.alive())

        self._wait(all_ready, "every node to be ready")

    def leader(self, among: Iterable[NodeProcess] | None = None) -> NodeProcess | None:
        """Return the running node that claims to lead the highest term, or None."""
        found: list[tuple[int, NodeProcess]] = []
        for node in self.alive() if among is None else among:
            status = node.status()
            if status is not None and status["role"] == "leader":
                found.append((status["term"], node))
        return max(found, key=lambda claim: claim[0])[1] if found else None

    def wait_leader(self, among: Iterable[NodeProcess] | None = None) -> NodeProcess:
        """Return a leader that is ready, which means that it has committed an entry in its own term."""
        nodes = None if among is None else list(among)

        def ready_leader() -> NodeProcess | None:
            node = self.leader(nodes)
            return node if node is not None and node.ready() else None

        return self._wait(ready_leader, "a leader")

    def follower(self) -> NodeProcess:
        """Return a running node that is not the leader."""
        leader = self.wait_leader()
        return next(node for node in self.alive() if node is not leader)

    def hand_over(self, node: NodeProcess) -> None:
        """Have the node lead, which must be able to."""

        def leads() -> bool:
            leader = self.wait_leader()
            if leader is not node:
                leader.request("POST", f"/v1/cluster/members/{node.node_id}/lead", payload={})
            return leader is node

        self._wait(leads, f"node {node.node_id} to lead")

    def make_topic(self, topic: str) -> NodeProcess:
        """Make a topic of one queue, which must be new, and return the leader."""
        leader = self.wait_leader()
        made = leader.request("PUT", f"/v1/topics/{topic}", payload={"queues": 1})
        assert made.status == 201, made
        return leader

    def call(self, method: str, path: str, payload: Any = None, *, key: str | None = None) -> Any:
        """Have whoever leads carry out the request, and return the content of its answer. Until one does, the request
        is repeated: it must do the same then, as a message with a `key` does.
        """
        headers = {"Idempotency-Key": key} if key else None

        def answer() -> Reply | None:
            reply = self.wait_leader().request(method, path, payload=payload, headers=headers)
            return None if reply.status in (307, 503) else reply

        return ok(self._wait(answer, f"an answer to {method} {path}"))

    def send(self, path: str, count: int, name: str = "k", among: Sequence[NodeProcess] | None = None) -> None:
        """Send messages with keys made of `name`, each to whoever leads (of `among`) until it is taken."""
        leader = self.wait_leader(among)

        def is_taken(key: str) -> bool:
            nonlocal leader
            payload, headers = {"messages": [{"body": "x"}]}, {"Idempotency-Key": key}
            taken = leader.request("POST", path, payload=payload, headers=headers).status == 200
            if not taken:
                leader = self.wait_leader(among)
            return taken

        for number in range(count):
            self._wait(partial(is_taken, f"{name}{number}"), "a message to be taken")

    def wait_same_state(self) -> str:
        """Wait until all running nodes have applied the same entries; return their state hash."""

        def same() -> str | None:
            seen = [node.status() for node in self.alive()]
            pairs = {(s["applied_index"], s["state_hash"]) if s else None for s in seen}
            indexes = {s["applied_index"] if s else None for s in seen}
            if len(indexes) == 1 and len(pairs) > 1:
                raise AssertionError(f"replicas differ: {pairs}")
            only = pairs.pop() if len(pairs) == 1 else None
            return str(only[1]) if only else None

        return self._wait(same, "the same state on every node")

    def tails(self, lines: int = 30) -> str:
        """Return the end of every node's output, for failure messages."""
        return "\n".join(f"--- node {node.node_id}\n" + node.log_tail(lines) for node in self.nodes.values())

    def _require_running(self, count: int) -> None:
        """Raise RuntimeError when fewer than `count` of the nodes that were started still run."""
        ended = [node for node in self.nodes.values() if node.process is not None and not node.running()]
        if ended and len(self.nodes) - len(ended) < count:
            raise RuntimeError(f"node {ended[0].node_id} ended with {ended[0].wait_exit()}\n{self.tails()}")

    def _wait(self, condition: Callable[[], Value | None], what: str) -> Value:
        """Return the first truthy value of `condition`. Raises RuntimeError once no node runs any more."""

        def met() -> Value | None:
            self._require_running(1)
            return condition()

        try:
            return wait_for(met, what)
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{self.tails()}") from None
