"""`keelmq doctor` and `keelmq top` on a real cluster, healthy and with a node down."""

import json
import resource
from pathlib import Path
from typing import Any, Final

import pytest
from typer.testing import CliRunner

from deploy.local_nodes import make_secret
from keelmq.cli.app import app
from tests.chaos.skewed_node import CLOCK_VARIABLE, set_offset_ns
from tests.e2e.cluster_process import ClusterProcess, ok, wait_for
from tests.e2e.fixtures import Shell, own_cluster
from tests.e2e.fixtures import patient_looks as patient_looks
from tests.e2e.small_disk import mounted_at
from tests.requirements import SMALL_DISK

pytestmark = pytest.mark.process

HOUR_NS: Final = 3_600 * 10**9

cluster = own_cluster(topic="orders", settled=True)


def examine(shell: Shell, code: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = shell.json("doctor", "--seconds", "0", code=code)
    return found


def judged(shell: Shell) -> dict[str, Any]:
    """Return what the doctor finds, whatever it is."""
    shown = CliRunner(env=shell.environment).invoke(app, ["doctor", "--seconds", "0", "--json"]).stdout
    found: dict[str, Any] = json.loads(shown)
    return found


def codes(document: dict[str, Any]) -> set[str]:
    return {finding["code"] for finding in document["findings"]}


@pytest.mark.usefixtures("patient_looks")
def test_a_healthy_cluster_has_no_critical_finding(shell: Shell) -> None:
    document = wait_for(lambda: found if (found := judged(shell))["healthy"] else None, "a healthy cluster")
    assert document["nodes_asked"] == 3
    assert "metrics_hidden" not in codes(document)
    assert "checks of 3 nodes" in shell("doctor", "--seconds", "0").stdout


def test_a_node_that_is_down_or_hangs_is_found_with_what_it_means(shell: Shell, cluster: ClusterProcess) -> None:
    cluster.follower().kill()
    wait_for(lambda: {"node_unreachable", "quorum_margin"} <= codes(examine(shell, code=1)), "both findings")
    assert "next: start the node" in shell("doctor", "--seconds", "0", code=1).stdout
    cluster.wait_leader().pause()
    document = wait_for(
        lambda: found if "no_quorum" in codes(found := examine(shell, code=1)) else None, "the lost majority"
    )
    unreachable = [each for each in document["findings"] if each["code"] == "node_unreachable"]
    assert len(unreachable) == 2


@pytest.mark.usefixtures("patient_looks")
def test_dead_letters_are_found_with_the_command_for_them(shell: Shell, cluster: ClusterProcess) -> None:
    leader = cluster.wait_leader()
    ok(leader.request("PUT", "/v1/groups/shop", payload={"retry_max_attempts": 0}))
    ok(leader.request("POST", "/v1/topics/orders/messages", payload={"messages": [{"body": "1"}]}))
    back = {"messages": [{"topic": "orders", "queue": 0, "offset": 0}]}
    assert (
        ok(leader.request("POST", "/v1/groups/shop/retries", payload=back))["results"][0]["outcome"] == "dead_lettered"
    )
    (finding,) = [each for each in examine(shell)["findings"] if each["code"] == "dead_letters"]
    assert finding["next_step"] == "keelmq dlq list shop"
    assert json.loads(shell("dlq", "list", "shop", "--json").stdout)


def test_a_short_limit_a_lagging_group_and_a_cut_off_node_are_found(
    shell: Shell, cluster: ClusterProcess, tmp_path: Path
) -> None:
    leader, node = cluster.wait_leader(), cluster.follower()
    before = codes(examine(shell))
    assert not before & {"few_files", "group_lags", "views_differ"}

    resource.prlimit(node.pid, resource.RLIMIT_NOFILE, (1_024, 1_024))
    (found,) = [each for each in examine(shell)["findings"] if each["code"] == "few_files"]
    assert found["what"].startswith(f"node {node.node_id} ")

    ok(leader.request("PUT", "/v1/groups/slow", payload={}))
    offsets = {"offsets": [{"topic": "orders", "queue": 0, "offset": 0}]}
    ok(leader.request("PUT", "/v1/groups/slow/offsets", payload=offsets))
    ok(leader.request("POST", "/v1/groups/slow/members", payload={"topics": ["orders"]}))
    ok(leader.request("POST", "/v1/topics/orders/messages", payload={"messages": [{"body": "1"}]}))

    def lags() -> bool:
        document = shell.json("doctor", "--seconds", "0", "--waiting", "1ms")
        return any((each["code"], "slow" in each["what"]) == ("group_lags", True) for each in document["findings"])

    wait_for(lags, "the group to be found, which has a member")

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    node.terminate()
    node.start(extra=["--peer-secret-file", str(make_secret(elsewhere))])
    wait_for(lambda: "views_differ" in codes(judged(shell)), "the node without peers to be found")


def finding(document: dict[str, Any], code: str) -> dict[str, Any] | None:
    return next((each for each in document["findings"] if each["code"] == code), None)


@pytest.mark.usefixtures("patient_looks")
def test_a_pause_that_was_forgotten_and_a_backup_that_nobody_made_are_found(tmp_path: Path) -> None:
    """The node was stopped for more than a day, as far as its clock tells."""
    cluster = ClusterProcess(tmp_path, nodes=1)
    node = cluster.nodes[1]
    node.module, node.environment[CLOCK_VARIABLE] = "tests.chaos.skewed_node", str(tmp_path / "clock")
    set_offset_ns(tmp_path / "clock", 0)
    with cluster:
        shell = Shell(cluster)
        shell.call("PUT", "/v1/topics/orders", {"queues": 1})
        shell.call("POST", "/v1/topics/orders/messages", {"messages": [{"body": "1"}]})
        shell.call("PUT", "/v1/groups/shop", {})
        shell("group", "pause", "shop", "--reason", "a test")
        wait_for(lambda: not codes(judged(shell)) & {"group_paused", "backup_none"}, "neither to be found yet")

        node.terminate()
        set_offset_ns(tmp_path / "clock", 25 * HOUR_NS)
        node.start()
        cluster.wait_ready()
        paused = wait_for(lambda: finding(judged(shell), "group_paused"), "the pause to be found")
        assert paused["next_step"] == "keelmq group show shop; then keelmq group resume shop"
        unsaved = wait_for(lambda: finding(judged(shell), "backup_none"), "the missing backup to be found")
        assert unsaved["evidence"].startswith("the oldest message is 25 h old")

        shell("group", "resume", "shop")
        shell("backup", "create", str(tmp_path / "now.backup"))
        wait_for(lambda: not codes(judged(shell)) & {"group_paused", "backup_none"}, "both to be mended")


@pytest.mark.usefixtures("patient_looks")
def test_servers_of_two_clusters_are_found(tmp_path: Path) -> None:
    clusters = [ClusterProcess(tmp_path / name, nodes=1) for name in ("shop", "other")]
    for cluster, name in zip(clusters, ("shop", "other"), strict=True):
        cluster.directory.mkdir(exist_ok=True)
        arguments = cluster.nodes[1].arguments
        arguments[arguments.index("--cluster-id") + 1] = name
    with clusters[0], clusters[1]:
        shell = Shell(clusters[0])
        both = ",".join(cluster.servers for cluster in clusters)
        (found,) = shell.json("doctor", "--seconds", "0", "--servers", both, code=1)["findings"]
        assert (found["code"], found["evidence"]) == ("two_clusters", "other, shop")


@pytest.mark.usefixtures("patient_looks")
def test_a_file_system_with_few_inodes_is_found(tmp_path: Path) -> None:
    SMALL_DISK.require()
    with mounted_at(tmp_path / "node1", inodes=900), ClusterProcess(tmp_path, nodes=1) as cluster:
        assert "few_inodes" in codes(examine(Shell(cluster)))


def test_top_prints_a_line_per_node_and_round(shell: Shell, cluster: ClusterProcess) -> None:
    ok(cluster.wait_leader().request("POST", "/v1/topics/orders/messages", payload={"messages": [{"body": "1"}]}))
    rounds = shell.lines("top", "--interval", "0.2", "--rounds", "2")
    assert len(rounds) == 2
    assert [node["node_id"] for node in rounds[-1]["nodes"]] == [1, 2, 3]
    assert [node["role"] for node in rounds[-1]["nodes"]].count("leader") == 1
    shown = shell("top", "--interval", "0.1", "--rounds", "1").stdout
    assert "leader" in shown
    cluster.follower().kill()
    (after,) = shell.lines("top", "--interval", "0.1", "--rounds", "1")
    assert [node["role"] for node in after["nodes"]].count("unreachable") == 1
