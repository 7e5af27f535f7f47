"""Commands that ask every node of a real cluster, or a named one: clients, log level, drain; also one that is away."""

import re
import socket
import stat
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.e2e.cluster_process import ClusterProcess, NodeProcess, wait_for
from tests.e2e.fixtures import Shell

pytestmark = pytest.mark.process

AGENTS = (b"shop/1 \xc2\x9b31mred", b"shop/2 \x9b31mred", b"shop/3 \xff\xfe")
"""The first would color a terminal. The others are no text."""


@pytest.fixture
def strangers(cluster: ClusterProcess) -> Iterator[None]:
    """Hold a connection to node 2 for each of AGENTS."""
    at = urlsplit(cluster.nodes[2].url)
    assert at.hostname is not None
    with ExitStack() as stack:
        for agent in AGENTS:
            connection = stack.enter_context(socket.create_connection((at.hostname, at.port or 0)))
            host = at.netloc.encode()
            connection.sendall(b"GET /v1/topics HTTP/1.1\r\nHost: %b\r\nUser-Agent: %b\r\n\r\n" % (host, agent))
            assert connection.recv(4096).startswith(b"HTTP/1.1 ")
        yield


@pytest.mark.usefixtures("strangers")
def test_clients_of_every_node_are_listed_and_their_words_color_no_terminal(shell: Shell) -> None:
    clients = shell.json("client", "list")["clients"]
    assert {each["node_id"] for each in clients} == {1, 2, 3}, "the command is a client of each"
    of_strangers = [each for each in clients if (each["user_agent"] or "").startswith("shop/")]
    assert [each["node_id"] for each in of_strangers] == [2] * len(AGENTS)
    table = shell("client", "list", "--node", "2").stdout
    assert "keelmq-python/" in table
    assert "shop/1" in table
    assert "\x9b" not in table


def test_what_the_nodes_log_is_changed_and_taken_back(shell: Shell) -> None:
    before = shell.json("node", "log-level")["nodes"]
    assert [each["node_id"] for each in before] == [1, 2, 3]
    try:
        shell("node", "log-level", "debug", "--logger", "raft", "--node", "2")
        shell("node", "log-level", "warning")
        levels = {
            each["node_id"]: (each["level"], each["loggers"]) for each in shell.json("node", "log-level")["nodes"]
        }
        assert levels == {1: ("warning", {}), 2: ("warning", {"raft": "debug"}), 3: ("warning", {})}
    finally:
        shell("node", "log-level", "reset")
    assert shell.json("node", "log-level")["nodes"] == before


def test_the_configuration_of_the_nodes_is_shown_with_its_sources(shell: Shell) -> None:
    nodes = shell.json("config", "show")["nodes"]
    given = [{"value": number, "source": "--node-id"} for number in (1, 2, 3)]
    assert [each["options"]["node_id"] for each in nodes] == given
    assert all(option["source"] != "default" for each in nodes for option in each["options"].values())
    table = shell("config", "show", "--node", "2", "--effective").stdout
    assert re.search(r"^.*\b2\b.*\bnode_id\b.*\b2\b.*--node-id", table, re.MULTILINE), table
    assert re.search(r"\bscrub_bytes_per_s\b.*\bdefault\b", table), table


def test_a_bundle_has_all_nodes_and_says_what_is_missing(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "support.tar.gz"
    told = shell.json("bundle", str(file))
    parts = ("audit.json", "config.json", "metrics.txt", "status.json")
    of_nodes = [f"node{number}/{part}" for number in (1, 2, 3) for part in parts]
    assert told == {"file": str(file), "documents": ["doctor.json", "missing.json", *of_nodes], "missing": []}
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with tarfile.open(file) as archive:
        metrics = archive.extractfile("keelmq-bundle/node2/metrics.txt")
        assert metrics is not None
        assert b"keelmq_" in metrics.read()
    assert "is there" in shell("bundle", str(file), code=2).stderr


def test_a_call_has_one_request_id_in_the_audit_of_all_nodes(shell: Shell) -> None:
    leader = shell.cluster.wait_leader()
    follower = next(node for node in shell.cluster.nodes.values() if node is not leader)
    shell("topic", "create", "redirected", "--servers", follower.url)
    records = shell.json("audit", "list", "--route", "topics/redirected")["records"]
    assert {each["node_id"] for each in records} == {leader.node_id, follower.node_id}
    assert {each["outcome"] for each in records} == {"redirected", "done"}
    assert len({each["request_id"] for each in records}) == 1


def drained_at(node: NodeProcess) -> set[int]:
    """Return the nodes that are drained as far as this one knows."""
    status = node.status()
    return set() if status is None else {each["node_id"] for each in status["nodes"] if each["drained"]}


def test_a_drained_node_hands_over_and_is_not_asked_to_lead(shell: Shell) -> None:
    drained = shell.cluster.wait_leader().node_id
    try:
        assert shell.json("node", "drain", str(drained)) == {"node_id": drained, "drained": True, "leads": False}
        leader = shell.cluster.wait_leader()
        assert leader.node_id != drained
        wait_for(lambda: drained_at(leader) == {drained}, "the leader to hear of it")
        assert "follower, drained" in shell("cluster", "status").stdout
        refused = shell("cluster", "transfer", str(drained), code=1)
        assert f"next: keelmq node undrain {drained}" in refused.stderr
        assert shell.cluster.wait_leader() is leader
    finally:
        assert f"node {drained} may lead again" in shell("node", "undrain", str(drained)).stdout
    wait_for(lambda: drained_at(leader) == set(), "the leader to hear of the end")
    shell("cluster", "transfer", str(drained))
    assert "no node 9 answers" in shell("node", "drain", "9", code=1).stderr


def test_a_node_that_is_not_there_is_named(shell: Shell) -> None:
    assert "no node 9 answers" in shell("client", "list", "--node", "9", code=1).stderr
    assert "give a level" in shell("node", "log-level", "--logger", "raft", code=2).stderr
