"""Tests the reports of real nodes while others are stopped, gone or not there yet, and that a hang-up stops no node."""

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cluster_process import ClusterProcess, NodeProcess, wait_for
from tests.e2e.fixtures import Shell, own_cluster

pytestmark = pytest.mark.process

cluster = own_cluster()


def alarm_of(node: NodeProcess, code: str, subject: str = "") -> dict[str, Any] | None:
    status = node.status()
    alarms = [] if status is None else status["alarms"]
    return next((alarm for alarm in alarms if (alarm["code"], alarm["subject"]) == (code, subject)), None)


def connected(node: NodeProcess, peer: NodeProcess) -> bool:
    status = node.known_status()
    (shown,) = [bool(each["connected"]) for each in status["nodes"] if each["node_id"] == peer.node_id]
    metric = f'keelmq_peer_connected{{node_id="{peer.node_id}"}} 1.0'.encode()
    return shown and metric in node.request("GET", "/metrics").body


def line_with(node: NodeProcess, text: str) -> str | None:
    return next((line for line in node.output().splitlines() if text in line), None)


def sorted_by_id(*nodes: NodeProcess) -> list[NodeProcess]:
    return sorted(nodes, key=lambda node: node.node_id)


def test_a_node_that_is_stopped_is_not_connected_though_its_kernel_is(cluster: ClusterProcess) -> None:
    leader = cluster.wait_leader()
    stopped = cluster.follower()
    wait_for(lambda: connected(leader, stopped), "the follower to be heard")
    stopped.pause()
    wait_for(lambda: not connected(leader, stopped), "its silence to be noticed")
    alarm = wait_for(lambda: alarm_of(leader, "node_unreachable", str(stopped.node_id)), "the alarm")
    assert f"cluster remove-node {stopped.node_id}" in alarm["detail"]
    stopped.resume()
    wait_for(lambda: connected(leader, stopped), "it to be heard again")
    wait_for(lambda: not alarm_of(leader, "node_unreachable", str(stopped.node_id)), "the alarm to end")


def test_who_has_lost_the_majority_says_whom_it_waits_for(cluster: ClusterProcess) -> None:
    left = cluster.wait_leader()
    gone = [node for node in cluster.alive() if node is not left]
    assert left.request("GET", "/readyz?for=writes").status == 200
    wait_for(lambda: line_with(left, " voters answer: "), "it to have noticed that it has a quorum to lose")
    for node in gone:
        node.kill()
    alarm = wait_for(lambda: alarm_of(left, "no_leader"), "the alarm")
    said = [
        alarm["detail"],
        str(left.known_status()["waits_for"]),
        left.request("GET", "/readyz").json()["detail"],
        left.request("PUT", "/v1/topics/t", payload={"queues": 1}).json()["detail"],
    ]
    for text in said:
        assert "2 of 3 voters are needed, not heard: " in text
        assert all(f"{node.node_id} (last heard " in text for node in gone)
    assert "alarm no_leader: 2 of 3 voters are needed" in left.output()
    silent = ", ".join(f"node {node.node_id} ({node.url})" for node in gone)
    lost = f"quorum lost: 1 of 3 voters answer; silent: {silent}"
    assert "WARNING" in wait_for(lambda: line_with(left, lost), "the log to say that the quorum is lost")
    gone[0].start()
    cluster.wait_leader()
    wait_for(lambda: left.known_status()["waits_for"] is None, "it to wait for nobody")
    won = wait_for(lambda: line_with(left, "quorum won again after "), "the log to say that the quorum is won")
    heard = ", ".join(f"node {node.node_id} ({node.url})" for node in sorted_by_id(left, gone[0]))
    assert won.endswith(f" s: 2 of 3 voters answer: {heard}")
    assert "WARNING" in won


def test_a_first_start_says_that_it_needs_every_node(tmp_path: Path) -> None:
    cluster = ClusterProcess(tmp_path, nodes=3)
    try:
        first, second, third = cluster.nodes.values()
        first.start()
        second.start()
        rule = "the first election of a cluster needs every node: no vote from 3 (never heard)"
        wait_for(lambda: (first.status() or {}).get("waits_for") == rule, "it to say whom it waits for")
        assert rule in first.request("GET", "/readyz").json()["detail"]
        wait_for(lambda: f"no leader: {rule}" in first.output(), "the log to say it")
        found = {each["code"]: each for each in Shell(cluster).json("doctor", "--seconds", "0", code=1)["findings"]}
        said = [f"node {node.node_id}: {rule}" for node in (first, second)]
        assert all(each in found["no_leader"]["evidence"] for each in said)
        assert found["no_leader"]["next_step"].startswith("start these nodes, with their own disks: 3 (systemctl ")
        assert found["node_unreachable"]["what"] == f"{third.url} does not answer"
        third.start()
        cluster.wait_ready()
    finally:
        cluster.stop()


@pytest.mark.parametrize("prefix", [(), ("nohup",)], ids=["plain", "nohup"])
def test_a_hang_up_does_not_end_a_node(tmp_path: Path, prefix: tuple[str, ...]) -> None:
    cluster = ClusterProcess(tmp_path, nodes=1)
    try:
        (node,) = cluster.nodes.values()
        node.start(prefix)
        cluster.wait_leader()
        for times in (1, 2):
            node.send_signal(signal.SIGHUP)
            wait_for(lambda: node.output().count("SIGHUP: the log level is info") == times, "the line")  # noqa: B023
        assert node.ready()
    finally:
        cluster.stop()
