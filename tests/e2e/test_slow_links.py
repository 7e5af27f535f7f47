"""Tests entries that are large for the links between real nodes: they cause no election, and nothing is sent twice."""

import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pytest

from deploy.local_nodes import free_ports
from tests.e2e.cluster_process import ClusterProcess, NodeProcess, Reply, wait_for
from tests.e2e.undisturbed import judged_unless, terms, undisturbed
from tests.thin_link import ThinLink

pytestmark = pytest.mark.process

NODES: Final = 3
BYTES_PER_S: Final = 2_000_000
MESSAGE_BYTES: Final = 3_800_000
PATH: Final = "/v1/topics/large/messages"
OPTIONS: Final = ("--election-timeout-ms", "500", "--heartbeat-ms", "50", "--request-timeout-ms", "20000")
SENT_AGAIN_MAX: Final = 1.2
STOOD: Final = "this node did nothing for"
"""Words of a node's log for a process that was not run for longer than an election timeout."""

Links = dict[int, ThinLink]
"""The link by which each node hears its peers, by the node's id."""


@contextmanager
def thin_cluster(directory: Path) -> Iterator[tuple[ClusterProcess, Links]]:
    """Yield nodes whose incoming peer traffic passes a thin link per node, which is fast at first, and these links."""
    directory.mkdir()
    running, links = ClusterProcess(directory, nodes=NODES, options=OPTIONS), Links()
    with ExitStack() as stack:
        for node in running.nodes.values():
            (port,) = free_ports(1)
            node.arguments += ["--peer-listen", f"127.0.0.1:{port}"]
            links[node.node_id] = stack.enter_context(ThinLink(node.peer_port, port, 1_000_000_000))
        with running:
            leader = running.wait_leader()
            assert leader.request("PUT", "/v1/topics/large", payload={"queues": 2}).status == 201
            yield running, links


def judged(scenario: Callable[[ClusterProcess, Links], None], directory: Path) -> None:
    """Run the scenario; run it again when it fails after a node's process stood, as on a machine with other work: such
    a node steps down, whatever its links do.
    """

    def once(its_own: Path) -> None:
        with thin_cluster(its_own) as (cluster, links):

            def stood() -> str | None:
                logs = "".join(node.log_path.read_text() for node in cluster.nodes.values())
                return "a node's process stood" if STOOD in logs else None

            with judged_unless(stood):
                scenario(cluster, links)

    undisturbed(once, directory)


def large_request() -> bytes:
    """Return two messages that nobody can compress, each in a queue of its own."""
    bodies = [secrets.token_hex(MESSAGE_BYTES // 2) for _ in range(2)]
    return json.dumps({"messages": [{"body": body, "queue": queue} for queue, body in enumerate(bodies)]}).encode()


def test_a_request_that_takes_seconds_changes_no_leader_and_is_sent_once(tmp_path: Path) -> None:
    judged(send_for_seconds, tmp_path)


def test_a_follower_that_is_far_behind_slows_nobody_down(tmp_path: Path) -> None:
    judged(catch_up, tmp_path)


def send_for_seconds(cluster: ClusterProcess, links: Links) -> None:
    leader = cluster.wait_leader()
    before = terms(cluster)
    for link in links.values():
        link.bytes_per_s, link.carried_bytes = BYTES_PER_S, 0
    body, replies = large_request(), list[Reply]()
    sender = threading.Thread(target=lambda: replies.append(leader.request("POST", PATH, body)))
    begun_s = time.monotonic()
    sender.start()
    seen = set(before)
    while sender.is_alive():
        seen |= terms(cluster)
    sender.join()
    took_s = time.monotonic() - begun_s
    assert [reply.status for reply in replies] == [200], replies
    assert took_s > len(body) / BYTES_PER_S, "the links are thin"
    assert seen == before == terms(cluster), "nobody stood for election"
    small = leader.request("POST", PATH, payload={"messages": [{"body": "small"}]})
    assert small.status == 200
    cluster.wait_same_state()
    for node_id, link in links.items():
        if node_id != leader.node_id:
            assert link.carried_bytes < SENT_AGAIN_MAX * len(body)


def catch_up(cluster: ClusterProcess, links: Links) -> None:
    leader = cluster.wait_leader()
    away = cluster.follower()
    away.kill()
    body = large_request()
    for _ in range(2):
        assert leader.request("POST", PATH, body).status == 200
    before, missed = terms(cluster), applied(leader)
    link = links[away.node_id]
    link.bytes_per_s, link.carried_bytes = BYTES_PER_S, 0
    away.start()
    beside = 0

    def caught_up() -> bool:
        nonlocal beside
        is_halfway = link.carried_bytes >= len(body)
        assert leader.request("POST", PATH, payload={"messages": [{"body": "small"}]}).status == 200
        is_done = applied(away) >= missed
        beside += is_halfway and not is_done
        return is_done

    wait_for(caught_up, "the follower to catch up")
    assert link.carried_bytes >= 2 * len(body)
    assert terms(cluster) == before, "nobody stood for election"
    assert beside > 0, "no send was acknowledged while it caught up"
    assert link.carried_bytes < SENT_AGAIN_MAX * 2 * len(body)


def applied(node: NodeProcess) -> int:
    status = node.status()
    return 0 if status is None else int(status["applied_index"])
