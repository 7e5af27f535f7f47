"""Clusters of two versions under load: upgraded in every order, taken back, raised; no acknowledged message is lost.

First the newer version is the one to come that does not exist (next_version.py) and the older one is this tree; then
the newer one is this tree and the older one is the last release (releases.toml). Before there is a release, a copy of
this tree takes its place: the tests then show what has to work between two trees, but no difference between them.
"""

import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cluster.process.exit_codes import ExitCode
from cluster.process.offline.log_command import log_command
from deploy.local_nodes import free_ports, make_secret
from store.features import FEATURES
from store.version import VERSION
from tests.certificates import Authority
from tests.e2e.closed_cluster import closed
from tests.e2e.cluster_process import ClusterProcess, NodeProcess, Reply, wait_for
from tests.e2e.node_template import make_templates
from tests.requirements import skip
from tests.versions.load import Load
from tests.versions.next_version import MISTAKE_VARIABLE, NEXT_VERSION
from tests.versions.releases import PACKAGES, REPOSITORY, releases, unpack

pytestmark = pytest.mark.process

LEVEL = "/v1/cluster/feature-level"
REMARKS = "/v1/remarks"
NEXT_LEVEL = FEATURES.maximum + 1


class Version(NamedTuple):
    """A version to start a node as: a module, and the tree that holds it; None for this tree."""

    module: str
    tree: Path | None = None


THIS = Version("cluster.main")
NEXT = Version("tests.versions.next_node")
FIRST_LEVEL = Version("tests.versions.first_level_node")


@pytest.fixture(scope="module", autouse=True)
def forked_nodes() -> Iterator[None]:
    """Fork nodes of this tree and of the version to come; those of a release are started by their command."""
    make_templates(THIS.module, NEXT.module)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NodeProcess, "are_forked", True)
        yield


def restart(cluster: ClusterProcess, node: NodeProcess, version: Version) -> None:
    """Stop the node gracefully and start it as that version; all nodes are ready on return."""
    if node.running():
        assert node.terminate() == ExitCode.STOPPED, cluster.tails()
    run_as(node, version)
    node.start()
    cluster.wait_ready()
    cluster.wait_leader()


def run_as(node: NodeProcess, version: Version) -> None:
    node.module = version.module
    node.tree = version.tree


def build_of(node: NodeProcess) -> str:
    """Return the version that a node reports."""
    status = node.status()
    assert status is not None
    return str(status["version"])


def known_builds(node: NodeProcess) -> dict[int, tuple[Any, ...]]:
    """Return the builds that a node knows of all nodes; empty while one is unknown."""
    status = node.status()
    if status is None or any(each["version"] is None for each in status["nodes"]):
        return {}
    names = ("version", "feature_level_min", "feature_level_max")
    return {each["node_id"]: tuple(each[name] for name in names) for each in status["nodes"]}


def level_in_force(cluster: ClusterProcess) -> set[int]:
    return {int((node.status() or {"feature_level": 0})["feature_level"]) for node in cluster.alive()}


def ask(cluster: ClusterProcess, method: str, path: str, payload: Any = None) -> Reply:
    """Return the leader's answer; ask again while there is none, or another change is under way."""

    def answer() -> Reply | None:
        try:
            reply = cluster.wait_leader().request(method, path, payload=payload)
        except OSError:
            return None
        passing = reply.status in (307, 503) or (reply.status == 409 and reply.json()["code"] == "change_in_progress")
        return None if passing else reply

    return wait_for(answer, f"an answer to {method} {path}")


def refusal(reply: Reply) -> str:
    assert reply.status == 409, reply
    return str(reply.json()["code"])


def alarms(node: NodeProcess) -> set[str]:
    return {alarm["code"] for alarm in (node.status() or {"alarms": ()})["alarms"]}


def in_order(cluster: ClusterProcess, leader_goes: int) -> Iterator[NodeProcess]:
    """Yield each node once; the leader of the moment is the `leader_goes`-th to go."""
    waiting = list(cluster.nodes.values())
    for turn in range(len(waiting)):
        leader = cluster.wait_leader()
        others = [node for node in waiting if node is not leader]
        node = leader if turn == leader_goes and leader in waiting else (others or waiting)[0]
        waiting.remove(node)
        yield node


@pytest.mark.parametrize("leader_goes", [0, 1, 2], ids=["leader-first", "leader-second", "leader-last"])
def test_a_cluster_is_upgraded_under_load(tmp_path: Path, leader_goes: int) -> None:
    with ClusterProcess(tmp_path, nodes=3) as cluster:
        load = Load(cluster)
        with load:
            for node in in_order(cluster, leader_goes):
                restart(cluster, node, NEXT)
                load.wait_for_more()
                assert level_in_force(cluster) == {FEATURES.maximum}
                if cluster.wait_leader().module == NEXT.module:
                    assert refusal(ask(cluster, "POST", REMARKS)) == "feature_not_enabled"
            assert {build_of(node) for node in cluster.nodes.values()} == {NEXT_VERSION}
            if leader_goes == 0:
                taken_back_and_upgraded_again(cluster, load)
            raised(cluster, load)
        load.check()
        cluster.wait_same_state()
        if leader_goes == 0:
            old_nodes_are_refused_by_name(cluster, tmp_path)


def taken_back_and_upgraded_again(cluster: ClusterProcess, load: Load) -> None:
    """Check that a node can be taken back: until the level is raised, the old version knows everything that has
    happened.
    """
    node = cluster.follower()
    restart(cluster, node, THIS)
    load.wait_for_more()
    builds = wait_for(lambda: known_builds(cluster.wait_leader()), "the leader to know all builds")
    assert builds[node.node_id] == (VERSION, FEATURES.minimum, FEATURES.maximum)
    reply = ask(cluster, "POST", LEVEL, {"level": NEXT_LEVEL})
    assert refusal(reply) == "feature_level_not_known"
    assert f"node {node.node_id} (KeelMQ {VERSION}, " in reply.json()["detail"]
    node.kill()
    reply = ask(cluster, "POST", LEVEL)
    assert refusal(reply) == "feature_level_not_known"
    assert f"nodes [{node.node_id}] are not connected" in reply.json()["detail"]
    restart(cluster, node, NEXT)


def raised(cluster: ClusterProcess, load: Load) -> None:
    """Check that the level is raised on request only; then the new features work, and there is no way back."""
    wait_for(lambda: "feature_level_behind" in alarms(cluster.wait_leader()), "the leader to remind")
    reply = ask(cluster, "POST", LEVEL)
    assert reply.status == 200, reply
    assert (reply.json()["feature_level"], reply.json()["raised"]) == (NEXT_LEVEL, True)
    assert ask(cluster, "POST", LEVEL).json()["raised"] is False
    assert refusal(ask(cluster, "POST", LEVEL, {"level": FEATURES.maximum})) == "feature_level_in_force"
    assert refusal(ask(cluster, "POST", LEVEL, {"level": NEXT_LEVEL + 1})) == "feature_level_not_known"
    assert ask(cluster, "POST", REMARKS).json()["text"] == "as of the next version"
    wait_for(lambda: level_in_force(cluster) == {NEXT_LEVEL}, "the level to be in force everywhere")
    wait_for(lambda: "feature_level_behind" not in alarms(cluster.wait_leader()), "the leader to be content")
    load.wait_for_more()


def old_nodes_are_refused_by_name(cluster: ClusterProcess, tmp_path: Path) -> None:
    """Check that an old node refuses to start with its own disk, which it leaves alone, and with an empty one, at the
    handshake.
    """
    node = cluster.follower()
    assert node.terminate() == ExitCode.STOPPED
    before = contents(node.data_dir)
    run_as(node, THIS)
    said = ends_with_the_version_it_needs(node)
    assert f"this log needs feature level {NEXT_LEVEL}, which KeelMQ {NEXT_VERSION} and later know" in said
    assert f"this is KeelMQ {VERSION}, which knows {FEATURES.describe()}" in said
    assert contents(node.data_dir) == before, "nothing is changed"
    joining = empty_node(cluster, 4, tmp_path)
    address = {"peer_address": f"127.0.0.1:{joining.peer_port}", "http_address": joining.url}
    joining.start()
    assert ask(cluster, "POST", "/v1/cluster/members", {"node_id": 4, **address}).status == 200
    assert joining.wait_exit() == ExitCode.WRONG_VERSION, joining.output()
    assert f"feature level {NEXT_LEVEL}, which KeelMQ {NEXT_VERSION} and later know" in joining.output()


def ends_with_the_version_it_needs(node: NodeProcess) -> str:
    before = len(node.output())
    node.start()
    assert node.wait_exit() == ExitCode.WRONG_VERSION, node.output()
    return node.output()[before:]


def contents(directory: Path) -> dict[str, bytes]:
    """Return the contents of all files but the lock."""
    files = [path for path in directory.rglob("*") if path.is_file() and path.name != "lock"]
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def empty_node(cluster: ClusterProcess, node_id: int, directory: Path) -> NodeProcess:
    """Return a node of this version that is told to join."""
    http_port, peer_port = free_ports(2)
    node = NodeProcess(node_id, directory, http_port, peer_port)
    member = cluster.wait_leader()
    node.arguments = [*member.arguments[:2], "--node-id", str(node_id), "--data-dir", str(node.data_dir)]
    node.arguments += ["--peer-secret-file", str(make_secret(cluster.directory))]
    node.arguments += ["--join", member.url, "--min-free-bytes", "0", "--segment-bytes", str(4 << 20)]
    node.arguments += ["--http-listen", f"127.0.0.1:{http_port}", "--peer-listen", f"127.0.0.1:{peer_port}"]
    return node


def test_a_new_cluster_begins_with_what_all_of_its_nodes_know(tmp_path: Path) -> None:
    with made(tmp_path, [NEXT, NEXT, NEXT]) as cluster:
        wait_for(lambda: level_in_force(cluster) == {NEXT_LEVEL}, "the highest level")
        assert ask(cluster, "POST", REMARKS).status == 200


def test_a_new_cluster_with_an_old_node_begins_with_what_that_one_knows(tmp_path: Path) -> None:
    with made(tmp_path, [NEXT, THIS, NEXT]) as cluster:
        assert ask(cluster, "PUT", "/v1/topics/orders", {"queues": 1}).status in (200, 201)
        assert level_in_force(cluster) == {FEATURES.maximum}


def test_entries_name_principals_once_every_node_can_read_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with run_as_each(closed(tmp_path), [THIS, FIRST_LEVEL, THIS]) as cluster:
        assert ask(cluster, "PUT", "/v1/topics/orders", {"queues": 1}).status in (200, 201)
        cluster.wait_same_state()
        # A node of the first level has no such command; the stand-in for it has the code, and would carry it out.
        assert ask(cluster, "POST", "/v1/cluster/members/1/lead", {}).status == 200
        wait_for(lambda: cluster.wait_leader() is cluster.nodes[1], "node 1 to lead")
        assert ask(cluster, "POST", "/v1/topics/orders/purge", {}).json()["code"] == "feature_not_enabled"
        restart(cluster, cluster.nodes[2], THIS)
        assert ask(cluster, "POST", LEVEL, {}).status == 200
        assert ask(cluster, "POST", "/v1/topics/orders/purge", {}).status == 200
        assert ask(cluster, "DELETE", "/v1/topics/orders").status == 204
        cluster.wait_same_state()
        for node in cluster.nodes.values():
            assert node.terminate() == ExitCode.STOPPED
            assert log_command("dump", str(node.data_dir), 0) == ExitCode.STOPPED
            lines = capsys.readouterr().out.splitlines()
            assert any(line.endswith(" PutTopic") for line in lines), "nobody is named while a node cannot read it"
            assert any(line.endswith(" DeleteTopic by admin") for line in lines)


def made(directory: Path, versions: Sequence[Version]) -> ClusterProcess:
    return run_as_each(ClusterProcess(directory, nodes=len(versions)), versions)


def run_as_each(cluster: ClusterProcess, versions: Sequence[Version]) -> ClusterProcess:
    for node, version in zip(cluster.nodes.values(), versions, strict=True):
        run_as(node, version)
    return cluster


@pytest.mark.parametrize(
    ("mistake", "seen"),
    [
        ("proposes-above-the-level", "ValidationError"),
        ("encodes-above-the-level", "ValidationError"),
        ("sends-above-the-level", "closing a peer connection: malformed header"),
    ],
)
def test_a_version_without_levels_is_found_out(tmp_path: Path, mistake: str, seen: str) -> None:
    """Old nodes end, or understand nothing, as they did before there were levels."""
    cluster = made(tmp_path, [NEXT, THIS, THIS])
    cluster.nodes[1].environment[MISTAKE_VARIABLE] = mistake
    old = [cluster.nodes[2], cluster.nodes[3]]
    try:
        cluster.start()

        def found() -> bool:
            new = cluster.nodes[1]
            assert new.running(), new.output()
            leader = cluster.leader()
            if leader is new:
                new.request("PUT", "/v1/topics/orders", payload={"queues": 1}, timeout_s=5.0)
                new.request("POST", "/v1/topics/orders/messages", payload={"messages": [{"body": "x"}]}, timeout_s=5.0)
                new.request("POST", REMARKS, timeout_s=5.0)
            elif leader is not None:
                leader.terminate()
                leader.start()
            return any(seen in node.output() for node in old)

        def seen_now() -> bool:
            try:
                return found()
            except OSError:
                return any(seen in node.output() for node in old)

        wait_for(seen_now, f"an old node to say {seen}")
    finally:
        cluster.stop()


# --- with the last release -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Version:
    """Return the last release; a copy of this tree while there is none, or where the clone does not have it."""
    directory = tmp_path_factory.mktemp("released")
    known = releases()
    if not known or not unpack(known[-1].commit, directory):
        for package in PACKAGES:
            shutil.copytree(REPOSITORY / package, directory / package, ignore=shutil.ignore_patterns("__pycache__"))
    return Version("cluster.main", directory)


@pytest.mark.parametrize("leader_goes", [0, 2], ids=["leader-first", "leader-last"])
def test_this_tree_takes_over_from_the_last_release_and_gives_back(
    tmp_path: Path, released: Version, leader_goes: int
) -> None:
    with made(tmp_path, [released] * 3) as cluster:
        was = {build_of(node) for node in cluster.nodes.values()}
        before = level_in_force(cluster)
        load = Load(cluster)
        with load:
            for node in in_order(cluster, leader_goes):
                restart(cluster, node, THIS)
                load.wait_for_more()
            assert {build_of(node) for node in cluster.nodes.values()} == {VERSION}
            assert level_in_force(cluster) == before
            if leader_goes == 0:
                for node in in_order(cluster, 1):
                    restart(cluster, node, released)
                    load.wait_for_more()
                assert {build_of(node) for node in cluster.nodes.values()} == was
            else:
                restart(cluster, cluster.follower(), released)
                cluster.wait_leader().kill()
                load.wait_for_more()
                cluster.start()
                cluster.wait_ready()
        load.check()
        cluster.wait_same_state()


def test_a_cluster_of_0_2_0_with_tls_gets_certificates_with_names_first(tmp_path: Path) -> None:
    old = [each for each in releases() if each.version == "0.2.0"]
    (tmp_path / "old").mkdir()
    if not unpack(old[0].commit, tmp_path / "old"):
        skip("this clone does not have 0.2.0")
    before, ca = Version("cluster.main", tmp_path / "old"), Authority()
    cluster = made(tmp_path, [before] * 3)
    for node in cluster.nodes.values():
        tls = ca.issue(tmp_path, node.node_id, "e2e", uris=())
        node.arguments += ["--tls-cert", tls.certificate_file, "--tls-key", tls.key_file, "--tls-ca", tls.ca_file]
    with cluster:
        load = Load(cluster)
        with load:
            first = cluster.follower()
            assert first.terminate() == ExitCode.STOPPED
            run_as(first, THIS)
            first.start()
            assert first.wait_exit() == ExitCode.BAD_CONFIG
            assert f"URI:keelmq://e2e/node/{first.node_id}" in first.output(), "the next step"
            for version in (before, THIS):
                for node in in_order(cluster, 1):
                    ca.issue(tmp_path, node.node_id, "e2e")
                    restart(cluster, node, version)
                    load.wait_for_more()
        load.check()
        cluster.wait_same_state()


def test_the_tree_of_a_release_is_what_runs(released: Version) -> None:
    """The node runs the tree of the release, not this one, which python would find first in its working directory."""
    assert released.tree is not None
    code = "import cluster, store.version; print(cluster.__file__)"
    done = subprocess.run([sys.executable, "-c", code], cwd=released.tree, capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()).is_relative_to(released.tree)
