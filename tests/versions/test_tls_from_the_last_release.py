"""Clusters of 0.2.0 without TLS that get it by the same restart that upgrades them, in every order, and go back."""

import contextlib
from pathlib import Path

import pytest

from cluster.process.exit_codes import ExitCode
from tests.certificates import Authority
from tests.e2e.cluster_process import ClusterProcess, NodeProcess, ok, wait_for
from tests.requirements import skip
from tests.versions.load import Load
from tests.versions.releases import releases, unpack
from tests.versions.test_mixed_versions import Version, alarms, build_of, forked_nodes, in_order, made, run_as

__all__ = ["forked_nodes"]  # a fixture of this module, too
pytestmark = pytest.mark.process

THIS = Version("cluster.main")
MIXED = "--peers-without-tls"


@pytest.fixture
def before(tmp_path: Path) -> Version:
    """Return 0.2.0."""
    (release,) = [each for each in releases() if each.version == "0.2.0"]
    (tmp_path / "old").mkdir()
    if not unpack(release.commit, tmp_path / "old"):
        skip("this clone does not have 0.2.0")
    return Version("cluster.main", tmp_path / "old")


def exchange(cluster: ClusterProcess, node: NodeProcess, version: Version, *options: str) -> None:
    """Stop the node, and start it as that version, with TLS if these options say so; all are ready on return."""
    assert node.terminate() == ExitCode.STOPPED, cluster.tails()
    with contextlib.suppress(ValueError):
        del node.arguments[node.arguments.index("--tls-cert") :]
    node.arguments += options
    run_as(node, version)
    node.start()
    cluster.wait_ready()
    cluster.wait_leader()


@pytest.mark.parametrize("leader_goes", [0, 2], ids=["leader-first", "leader-last"])
def test_one_restart_upgrades_and_closes_the_links(tmp_path: Path, before: Version, leader_goes: int) -> None:
    ca = Authority()

    def tls_of(node: NodeProcess) -> list[str]:
        files = ca.issue(tmp_path, node.node_id, "e2e")
        return ["--tls-cert", files.certificate_file, "--tls-key", files.key_file, "--tls-ca", files.ca_file]

    with made(tmp_path, [before] * 3) as cluster:
        load = Load(cluster)
        with load:
            if leader_goes == 0:  # back, half way: two of three have TLS then
                turns = list(cluster.nodes.values())[:2]
                for node in turns:
                    exchange(cluster, node, THIS, *tls_of(node), MIXED)
                    load.wait_for_more()
                for node in turns:
                    exchange(cluster, node, before)
                    load.wait_for_more()
                assert {build_of(node) for node in cluster.nodes.values()} == {"0.2.0"}
            for node in in_order(cluster, leader_goes):
                exchange(cluster, node, THIS, *tls_of(node), MIXED)
                load.wait_for_more()
            for node in cluster.nodes.values():
                wait_for(lambda node=node: "insecure" not in alarms(node), "the end of the alarm")  # type: ignore[misc]
            if leader_goes == 2:  # back, from the end: the others take no connection without TLS any more
                node = cluster.follower()
                exchange(cluster, node, before, *tls_of(node))
                load.wait_for_more()
        load.check()
        cluster.wait_same_state()


def test_a_node_with_tls_alone_is_not_ready_beside_those_without(tmp_path: Path, before: Version) -> None:
    """Whoever forgets the option is stopped by the first /readyz, while the others serve."""
    with made(tmp_path, [before] * 3) as cluster:
        ok(cluster.wait_leader().request("PUT", "/v1/topics/kept", payload={"queues": 1}))
        node = cluster.follower()
        assert node.terminate() == ExitCode.STOPPED
        run_as(node, THIS)
        files = Authority().issue(tmp_path, node.node_id, "e2e")
        node.arguments += ["--tls-cert", files.certificate_file, "--tls-key", files.key_file, "--tls-ca", files.ca_file]
        node.start()
        wait_for(lambda: "has no TLS handshake with this node" in node.output(), "it to refuse the others")
        wait_for(lambda: node.request("GET", "/readyz").json()["code"] == "not_ready", "it to say so")
        message = {"messages": [{"body": "x"}]}
        ok(cluster.wait_leader().request("POST", "/v1/topics/kept/messages", payload=message))
        exchange(cluster, node, THIS, "--tls-cert", *node.arguments[node.arguments.index("--tls-cert") + 1 :], MIXED)
        cluster.wait_same_state()
