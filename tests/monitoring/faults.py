"""Faults of a real cluster, each with the alerts that it has to raise, and its end."""

import contextlib
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Generic, NamedTuple, TypeVar

from tests.chaos.skewed_node import CLOCK_VARIABLE, set_offset_ns
from tests.e2e.cluster_process import ClusterProcess, NodeProcess, Reply, ok, wait_for
from tests.e2e.small_disk import MIB
from tests.e2e.test_faults_disk import inject
from tests.requirements import Requirement

MIN_FREE_BYTES: Final = 40 * MIB
DISK_BYTES: Final = 144 * MIB
"""An empty disk takes the state of another node, for which 96 MiB have to be free: logs are cut by earlier faults."""
BALLAST_BYTES: Final = 118 * MIB
"""Leaves less than MIN_FREE_BYTES on the disk."""
OPTIONS: Final = (
    *("--election-timeout-ms", "500", "--heartbeat-ms", "50", "--segment-bytes", str(2 * MIB)),
    *("--min-free-bytes", str(MIN_FREE_BYTES), "--check-immunity-ms", "600000"),
    *("--check-interval-ms", "500", "--check-max", "2"),
    *("--retention-check-ms", "500", "--log-held-alarm-bytes", str(MIB)),
    *("--log-sync", "thread"),  # strace can slow down a thread, and not the kernel
)
CLOCK_AHEAD_NS: Final = 5 * 10**9
STOPPED_S: Final = 1.5
"""A node that is stopped for this long has stalled, and nobody needs it meanwhile."""
SLOW_SYNC: Final = "fdatasync:delay_enter=400000"
SLOWER_SYNC: Final = "fdatasync:delay_enter=700000"
"""Delay of syncs with which, on two of three disks, a commit takes longer than the alert allows."""
HANGING_SYNC: Final = "fdatasync:delay_enter=15000000"
"""A node that has applied nothing for 5 s is behind."""
NO_FLUSH: Final = "fdatasync,fsync,sync_file_range:delay_enter=600000000"
BATCHES_MAX: Final = 24
BATCH_IDS: Final = 6_400
ID_BYTES: Final = 128
"""So many batches of so many ids, as many and as long as a request may have them, are more of the index than RocksDB
keeps in memory."""
DELAY_MS: Final = 2_000
LATE_MS: Final = 6_000
"""More than the alert allows a delayed message to be late."""
BODY: Final = "x" * (MIB // 4)
HELD_BODIES: Final = 12
TOPIC: Final = "orders"
GROUP: Final = "shop"
ONE_MESSAGE: Final = {"messages": [{"body": "1"}]}
REFUSED_SENDS: Final = 30
QUOTAS: Final = "[default]\n"
UNAVAILABLE: Final = 503
NEXT_NODE: Final = "tests.versions.next_node"
CHANGES: Final = 7
"""Changes of leader within the window of the alert, which allows four."""

Victim = TypeVar("Victim")


class Fault(NamedTuple, Generic[Victim]):
    """A fault lasts as long as the context of `provoke`. `alerts` have to fire meanwhile, and end after it. The doctor
    has to find `findings` meanwhile.
    """

    name: str
    alerts: tuple[str, ...]
    findings: tuple[str, ...]
    provoke: Callable[[Victim], AbstractContextManager[None]]
    needs: Requirement | None = None
    stir: Callable[[Victim], None] | None = None
    """Work while the doctor looks: it sees of slow or lost things only what happens between its two looks."""
    look_s: float = 2.0
    """Time between the two looks."""
    labels: Mapping[str, Mapping[str, str]] = MappingProxyType({})
    """Labels that an alert has to have, by its name: an alert for another group or another alarm is none."""


class Faults:
    """Provokes faults in a cluster of three nodes."""

    def __init__(self, cluster: ClusterProcess) -> None:
        self.cluster = cluster
        for node in cluster.nodes.values():
            node.module = "tests.monitoring.short_node"
            node.environment[CLOCK_VARIABLE] = str(self._clock_of(node))
            set_offset_ns(self._clock_of(node), 0)
            self.quotas_of(node).write_text(QUOTAS)
            node.arguments += ["--quota-file", str(self.quotas_of(node))]

    def quotas_of(self, node: NodeProcess) -> Path:
        return self.cluster.directory / f"quotas{node.node_id}.toml"

    def _clock_of(self, node: NodeProcess) -> Path:
        return self.cluster.directory / f"clock{node.node_id}"

    def prepare(self) -> None:
        """Make the topic and the group, with one message that the group has processed."""
        self.call("PUT", f"/v1/topics/{TOPIC}", {"queues": 1})
        self.call("PUT", f"/v1/groups/{GROUP}", {"retry_max_attempts": 1, "retry_delays_ms": [1]})
        self.send()
        ok(self.cluster.wait_leader().request("GET", f"/v1/topics/{TOPIC}/queues/0/messages?offset=0"))
        self.commit(1)

    def call(self, method: str, path: str, payload: Any) -> Any:
        """Send a request to the leader until the cluster has carried it out: a busy machine may cost a leadership."""

        def is_done() -> Reply | None:
            reply = self.cluster.wait_leader().request(method, path, payload=payload)
            return None if reply.status == UNAVAILABLE else reply

        return ok(wait_for(is_done, f"{method} {path} to be carried out"))

    def send(self) -> None:
        self.call("POST", f"/v1/topics/{TOPIC}/messages", ONE_MESSAGE)

    def commit(self, offset: int) -> None:
        offsets = [{"topic": TOPIC, "queue": 0, "offset": offset}]
        self.call("PUT", f"/v1/groups/{GROUP}/offsets", {"offsets": offsets})

    def end_of_queue(self) -> int:
        answer = self.cluster.wait_leader().request("GET", f"/v1/topics/{TOPIC}/queues/0/offsets?at=latest")
        return int(ok(answer)["offset"])

    # --- what goes wrong with messages ------------------------------------------------------------------------------

    @contextlib.contextmanager
    def lag(self) -> Iterator[None]:
        self.send()
        yield
        self.commit(self.end_of_queue())

    @contextlib.contextmanager
    def dead_letter(self) -> Iterator[None]:
        offset = self.end_of_queue()
        self.send()
        self._give_back(TOPIC, offset)
        retries = f"%RETRY%{GROUP}"
        path = f"/v1/topics/{retries.replace('%', '%25')}/queues/0/messages?offset=0"
        node = self.cluster.wait_leader()
        found = wait_for(lambda: ok(node.request("GET", path))["messages"], "the message to come again")
        assert self._give_back(retries, found[0]["offset"]) == "dead_lettered"
        yield
        self.commit(self.end_of_queue())

    def _give_back(self, topic: str, offset: int) -> str:
        messages = [{"topic": topic, "queue": 0, "offset": offset}]
        answer = self.call("POST", f"/v1/groups/{GROUP}/retries", {"messages": messages})
        return str(answer["results"][0]["outcome"])

    @contextlib.contextmanager
    def undecided(self) -> Iterator[None]:
        half = {"transaction_id": "t", "producer_group": "p", "messages": [{"topic": TOPIC, "body": "1"}]}
        self.call("POST", "/v1/transactions", half)
        yield
        self.call("POST", "/v1/transactions/t/rollback", {"source": "producer"})

    @contextlib.contextmanager
    def discarded(self) -> Iterator[None]:
        """Have a transaction whose producer asks for its checks and answers none."""
        half = {"transaction_id": "d", "producer_group": "silent", "messages": [{"topic": TOPIC, "body": "1"}]}
        self.call("POST", "/v1/transactions", {**half, "check_after_ms": 1})

        def is_discarded() -> bool:
            node = self.cluster.wait_leader()
            ok(node.request("GET", "/v1/producer-groups/silent/checks"))
            return bool(ok(node.request("GET", "/v1/transactions/d"))["state"] == "discarded")

        wait_for(is_discarded, "the transaction to be discarded")
        yield
        by_force = {"source": "operator", "force": True, "operator": "ann", "reason": "a test"}
        self.call("POST", "/v1/transactions/d/rollback", by_force)

    @contextlib.contextmanager
    def log_held(self) -> Iterator[None]:
        """Have a transaction that nobody decides hold what is sent after it, though all messages are purged."""
        half = {"transaction_id": "h", "producer_group": "p", "messages": [{"topic": TOPIC, "body": "1"}]}
        self.call("POST", "/v1/transactions", half)
        self._fill_log()
        yield
        self.call("POST", "/v1/transactions/h/rollback", {"source": "producer"})

    @contextlib.contextmanager
    def filling_disk(self) -> Iterator[None]:
        self._fill_log()
        yield
        self.call("POST", f"/v1/topics/{TOPIC}/purge", {})
        self.commit(self.end_of_queue())

    def send_large(self) -> None:
        self.call("POST", f"/v1/topics/{TOPIC}/messages", {"messages": [{"body": BODY}]})

    def _fill_log(self) -> None:
        for _ in range(HELD_BODIES):
            self.call("POST", f"/v1/topics/{TOPIC}/messages", {"messages": [{"body": BODY}]})
        self.call("POST", f"/v1/topics/{TOPIC}/purge", {})
        self.commit(self.end_of_queue())

    @contextlib.contextmanager
    def late_timers(self) -> Iterator[None]:
        """Have no majority while messages become due, and for longer than the alert allows."""
        self.have_late()
        yield
        self.commit(self.end_of_queue())

    def have_late(self) -> None:
        message = {"body": "1", "delay_ms": DELAY_MS}
        answer = self.call("POST", f"/v1/topics/{TOPIC}/messages", {"messages": [message]})
        late_ms = answer["results"][0]["deliver_at_ms"] + LATE_MS
        followers = self._followers()
        for node in followers:
            node.pause()
        wait_for(lambda: time.time() * 1000 > late_ms, "the message to be late")
        for node in followers:
            node.resume()

    @contextlib.contextmanager
    def no_space(self) -> Iterator[None]:
        """Leave too little space on all disks, while a producer goes on sending."""
        ballasts = [node.data_dir / "ballast" for node in self.cluster.alive()]
        for ballast in ballasts:
            ballast.write_bytes(bytes(BALLAST_BYTES))
        refused = 0

        def is_refused() -> bool:
            nonlocal refused
            answer = self.cluster.wait_leader().request("POST", f"/v1/topics/{TOPIC}/messages", payload=ONE_MESSAGE)
            refused += answer.status == 507
            return refused >= REFUSED_SENDS

        wait_for(is_refused, "sends to be refused")
        yield
        for ballast in ballasts:
            ballast.unlink()
        wait_for(lambda: self._sends(), "a send to succeed")
        self.commit(self.end_of_queue())

    def _sends(self) -> bool:
        leader = self.cluster.wait_leader()
        return leader.request("POST", f"/v1/topics/{TOPIC}/messages", payload=ONE_MESSAGE).status < 300

    # --- what goes wrong with one node ------------------------------------------------------------------------------

    @contextlib.contextmanager
    def wrong_clock(self) -> Iterator[None]:
        node = self.cluster.follower()
        set_offset_ns(self._clock_of(node), CLOCK_AHEAD_NS)
        yield
        set_offset_ns(self._clock_of(node), 0)

    @contextlib.contextmanager
    def low_disk(self) -> Iterator[None]:
        ballast = self.cluster.follower().data_dir / "ballast"
        ballast.write_bytes(bytes(BALLAST_BYTES))
        yield
        ballast.unlink()

    @contextlib.contextmanager
    def slow_sync(self) -> Iterator[None]:
        with self._delayed(SLOW_SYNC, self.cluster.follower()):
            yield

    @contextlib.contextmanager
    def slow_commits(self) -> Iterator[None]:
        with self._delayed(SLOWER_SYNC, *self._followers()):
            yield

    @contextlib.contextmanager
    def hanging_sync(self) -> Iterator[None]:
        with self._delayed(HANGING_SYNC, self.cluster.follower()):
            yield

    def _followers(self) -> list[NodeProcess]:
        leader = self.cluster.wait_leader()
        return [node for node in self.cluster.alive() if node is not leader]

    @contextlib.contextmanager
    def stalled_index(self) -> Iterator[None]:
        """Have the index of one node written while its disk takes nothing, until RocksDB stops the writes."""
        node = self.cluster.follower()
        with self._delayed(NO_FLUSH, node, threads="rocksdb"):
            for batch in range(BATCHES_MAX):
                ids = (f"{batch}.{place}.".ljust(ID_BYTES, "x") for place in range(BATCH_IDS))
                messages = [{"message_id": each, "body": "1"} for each in ids]
                self.call("POST", f"/v1/topics/{TOPIC}/messages", {"messages": messages})
                if b"\nkeelmq_index_writes_stopped 1" in node.request("GET", "/metrics").body:
                    break
            yield
        self.call("POST", f"/v1/topics/{TOPIC}/purge", {})
        self.commit(self.end_of_queue())

    @contextlib.contextmanager
    def _delayed(self, what: str, *nodes: NodeProcess, threads: str | None = None) -> Iterator[None]:
        """Delay calls of these nodes, and send messages."""
        tracers = [inject(node, what, threads) for node in nodes]
        try:
            for _ in range(3):
                self.send()
            yield
        finally:
            for tracer in tracers:
                tracer.send_signal(signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    tracer.wait(timeout=30)
            self.commit(self.end_of_queue())

    @contextlib.contextmanager
    def stalled_loop(self) -> Iterator[None]:
        self.stall()
        yield

    def stall(self) -> None:
        node = self.cluster.follower()
        node.pause()
        time.sleep(STOPPED_S)
        node.resume()

    @contextlib.contextmanager
    def other_version(self) -> Iterator[None]:
        node = self.cluster.follower()
        module = node.module
        self._restart(node, NEXT_NODE)
        yield
        self._restart(node, module)

    def _restart(self, node: NodeProcess, module: str) -> None:
        node.terminate()
        node.module = module
        self.start(node)

    @contextlib.contextmanager
    def leader_changes(self) -> Iterator[None]:
        for _ in range(CHANGES):
            self.change()
        yield

    def change(self) -> None:
        leader = self.cluster.wait_leader()
        leader.pause()
        self.cluster.wait_leader(node for node in self.cluster.alive() if node is not leader)
        leader.resume()

    # --- nodes that are gone ----------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def new_disk(self) -> Iterator[None]:
        """Give one node an empty disk while the only other one that could fill it is down too."""
        leader = self.cluster.wait_leader()
        emptied, down = (node for node in self.cluster.alive() if node is not leader)
        for node in (emptied, down):
            node.kill()
        empty(emptied.data_dir)
        emptied.start()
        yield
        self.start(down)

    @contextlib.contextmanager
    def one_down(self) -> Iterator[None]:
        with self._down([self.cluster.follower()]):
            yield

    @contextlib.contextmanager
    def two_down(self) -> Iterator[None]:
        leader = self.cluster.wait_leader()
        with self._down([leader, next(node for node in self.cluster.alive() if node is not leader)]):
            yield

    @contextlib.contextmanager
    def all_down(self) -> Iterator[None]:
        with self._down(self.cluster.alive()):
            yield

    @contextlib.contextmanager
    def _down(self, nodes: Sequence[NodeProcess]) -> Iterator[None]:
        for node in nodes:
            node.kill()
        yield
        self.start(*nodes)

    def start(self, *nodes: NodeProcess) -> None:
        for node in nodes:
            node.start()
        self.cluster.wait_ready()


def empty(directory: Path) -> None:
    """Remove everything in a data directory, which may be a mount point."""
    for path in sorted(directory.rglob("*"), reverse=True):
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink()
