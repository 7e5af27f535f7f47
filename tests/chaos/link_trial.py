"""Measures the real effect of slow links: `python -m tests.chaos.link_trial` prints a line of JSON per trial.

The trial runs three nodes in namespaces of their own, with links of limited bandwidth in each direction. While one
large request, or a follower that is far behind, fills a link, a client keeps writing small messages at the leader.
"""

import argparse
import contextlib
import http.client
import json
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from http import HTTPStatus
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from tests.chaos.isolation import enter_isolation
from tests.chaos.network import Network, host_of
from tests.chaos.node import REPOSITORY, ChaosNode, die_with_parent
from tests.patience import PATIENCE_S

HTTP_PORT: Final = 7081
PEER_PORT: Final = 7091
NODE_IDS: Final = (1, 2, 3)
TOPIC: Final = "link"
MESSAGE_BYTES: Final = 3_500_000
SMALL_INTERVAL_S: Final = 0.05
POLL_S: Final = 0.05
REQUEST_TIMEOUT_S: Final = 60.0
QUEUE_MS: Final = 200
"""Maximum delay of the bottleneck's queue in ms; packets that would wait longer are lost."""


class Trial(NamedTuple):
    name: str
    kbit_per_s: int
    large_bytes: int
    """Bytes of the one large request."""
    behind_bytes: int = 0
    """Bytes by which a follower is behind."""
    needed: bool = False
    """True when that follower is needed for the majority: the third node is off."""
    watch_s: float = 24.0


TRIALS: Final = (
    Trial("large-100mbit", 100_000, 11_500_000),
    Trial("large-16mbit", 16_000, 7_700_000),
    Trial("large-8mbit", 8_000, 3_500_000),
    Trial("behind-10mbit", 10_000, 0, behind_bytes=30_000_000, watch_s=42.0),
    Trial("behind-and-needed-10mbit", 10_000, 0, behind_bytes=30_000_000, needed=True, watch_s=60.0),
)


def post(host: str, path: str, body: bytes, method: str = "POST") -> int:
    """Return the status of the answer; 0 when there is none."""
    connection = http.client.HTTPConnection(host, HTTP_PORT, timeout=REQUEST_TIMEOUT_S)
    with contextlib.closing(connection):
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            return connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return 0


def cluster_of(host: str) -> dict[str, Any] | None:
    connection = http.client.HTTPConnection(host, HTTP_PORT, timeout=1.0)
    with contextlib.closing(connection):
        try:
            connection.request("GET", "/v1/cluster")
            response = connection.getresponse()
            return dict(json.loads(response.read())) if response.status == 200 else None
        except (OSError, http.client.HTTPException, ValueError):
            return None


def large_request(size_bytes: int) -> bytes:
    """Return a request with `size_bytes` of incompressible bodies, in messages of at most MESSAGE_BYTES."""
    sizes = [MESSAGE_BYTES] * (size_bytes // MESSAGE_BYTES)
    sizes += [rest] if (rest := size_bytes % MESSAGE_BYTES) else []
    bodies = [secrets.token_hex(size // 2) for size in sizes]
    return json.dumps({"messages": [{"body": body, "queue": queue} for queue, body in enumerate(bodies)]}).encode()


def write(host: str, large_bytes: int, watch_s: float) -> dict[str, Any]:
    """Write at one node for `watch_s`: one large request, and small ones all the time. Returns their outcomes; times
    are in ms.
    """
    acked: list[float] = []
    refused: list[int] = []
    begun_s = time.monotonic()
    large: dict[str, Any] = {}

    def send_large() -> None:
        status = post(host, f"/v1/topics/{TOPIC}/messages", large_request(large_bytes))
        large.update(status=status, ms=round((time.monotonic() - begun_s) * 1000))

    sender = threading.Thread(target=send_large, daemon=True)
    if large_bytes:
        sender.start()
    small = json.dumps({"messages": [{"body": "small", "queue": 0}]}).encode()
    while time.monotonic() < begun_s + watch_s:
        status = post(host, f"/v1/topics/{TOPIC}/messages", small)
        if status == HTTPStatus.OK:
            acked.append(time.monotonic() - begun_s)
        else:
            refused.append(status)
        time.sleep(SMALL_INTERVAL_S)
    if large_bytes:
        sender.join(REQUEST_TIMEOUT_S)
    ends = [0.0, *acked, watch_s]
    gaps = [later - earlier for earlier, later in pairwise(ends)]
    return {"large": large, "small": len(acked), "refused": len(refused), "longest_stall_ms": round(max(gaps) * 1000)}


class Cluster:
    """Owns three nodes in namespaces; use it as a context manager. `at` runs `write` in a node's namespace, so it does
    not pass the slow link.
    """

    def __init__(self, network: Network, directory: Path) -> None:
        self.network = network
        prefixes = {node_id: network.prefix(node_id) for node_id in NODE_IDS}
        self.nodes = {
            node_id: ChaosNode(node_id, host_of(node_id), HTTP_PORT, PEER_PORT, directory, prefix)
            for node_id, prefix in prefixes.items()
        }
        peers = [part for node in self.nodes.values() for part in ("--peer", node.peer_option)]
        secret = directory / "peer_secret"
        secret.touch(0o600)
        secret.write_text(secrets.token_hex() + "\n")
        for node in self.nodes.values():
            node.data_dir.mkdir(parents=True)
            node.arguments = ["--cluster-id", "trial", "--node-id", str(node.node_id), "--min-free-bytes", "0"]
            node.arguments += ["--data-dir", str(node.data_dir), *peers, "--peer-secret-file", str(secret)]
            node.arguments += ["--insecure-peers", "--insecure-http"]

    def __enter__(self) -> "Cluster":
        for node in self.nodes.values():
            node.start()
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.nodes.values():
            node.kill()

    def statuses(self) -> list[dict[str, Any]]:
        found = (cluster_of(node.host) for node in self.nodes.values() if node.running())
        return [status for status in found if status is not None]

    def wait_leader(self) -> int:
        deadline_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline_s:
            leaders = [each["node_id"] for each in self.statuses() if each["role"] == "leader"]
            if len(leaders) == 1 and post(host_of(leaders[0]), f"/v1/topics/{TOPIC}", b'{"queues":4}', "PUT") == 200:
                return int(leaders[0])
            time.sleep(POLL_S)
        raise TimeoutError("\n".join(node.log_tail() for node in self.nodes.values()))

    def wait_connected(self, leader: int, peer: int) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline_s:
            status = cluster_of(host_of(leader))
            if status is not None and any(each["node_id"] == peer and each["connected"] for each in status["nodes"]):
                return
            time.sleep(POLL_S)
        raise TimeoutError(f"node {peer} does not connect")

    def term(self) -> int:
        return max((int(each["term"]) for each in self.statuses()), default=0)

    def at(self, node_id: int, large_bytes: int, watch_s: float) -> dict[str, Any]:
        command = [*die_with_parent(), *self.network.prefix(node_id), sys.executable, "-m", "tests.chaos.link_trial"]
        command += ["--write", host_of(node_id), "--bytes", str(large_bytes), "--watch-s", str(watch_s)]
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
        return dict(json.loads(done.stdout))

    def shape(self, node_ids: Sequence[int], kbit_per_s: int) -> None:
        """Limit the links of these nodes to `kbit_per_s` in each direction from now on."""
        shape = ("root", "tbf", "rate", f"{kbit_per_s}kbit", "burst", "32kb", "latency", f"{QUEUE_MS}ms")
        for node_id in node_ids:
            inside = [*self.network.prefix(node_id), "tc", "qdisc", "replace", "dev", "eth0", *shape]
            outside = ["tc", "qdisc", "replace", "dev", f"link{node_id}", *shape]
            for command in (inside, outside):
                subprocess.run(command, check=True, capture_output=True)

    def unshape(self, node_ids: Sequence[int]) -> None:
        for node_id in node_ids:
            inside = [*self.network.prefix(node_id), "tc", "qdisc", "delete", "dev", "eth0", "root"]
            for command in (inside, ["tc", "qdisc", "delete", "dev", f"link{node_id}", "root"]):
                subprocess.run(command, check=False, capture_output=True)


def play(cluster: Cluster, trial: Trial) -> dict[str, Any]:
    leader = cluster.wait_leader()
    if trial.behind_bytes:
        follower = next(node_id for node_id in NODE_IDS if node_id != leader)
        cluster.nodes[follower].kill()
        body = large_request(2 * MESSAGE_BYTES)
        for _ in range(trial.behind_bytes // (2 * MESSAGE_BYTES)):
            post(host_of(leader), f"/v1/topics/{TOPIC}/messages", body)
    cluster.shape(NODE_IDS, trial.kbit_per_s)
    if trial.behind_bytes:
        cluster.nodes[follower].start()
    if trial.needed:
        cluster.wait_connected(leader, follower)
        cluster.nodes[({*NODE_IDS} - {leader, follower}).pop()].kill()
    term = cluster.term()
    try:
        found = cluster.at(leader, trial.large_bytes, trial.watch_s)
    finally:
        cluster.unshape(NODE_IDS)
    indexes = {each["node_id"]: each["applied_index"] for each in cluster.statuses()}
    return {"trial": trial.name, **found, "new_terms": cluster.term() - term, "applied": indexes}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.link_trial", description=__doc__)
    parser.add_argument("--write", help=argparse.SUPPRESS)
    parser.add_argument("--bytes", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--watch-s", type=float, default=0.0, help=argparse.SUPPRESS)
    parser.add_argument("--only", action="append", choices=[trial.name for trial in TRIALS])
    given = parser.parse_args()
    if given.write:
        print(json.dumps(write(given.write, given.bytes, given.watch_s)))
        return 0
    refused = enter_isolation(sys.argv[1:], module="tests.chaos.link_trial")
    if refused is not None:
        print(msgspec.json.encode({"skipped": refused}).decode())
        return 0
    network = Network(NODE_IDS)
    for trial in TRIALS:
        if given.only is None or trial.name in given.only:
            with tempfile.TemporaryDirectory() as directory, Cluster(network, Path(directory)) as cluster:
                print(json.dumps(play(cluster, trial)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
