"""Tests backups of a real cluster under load, restored at other addresses, and the recovery from one node of three."""

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from cluster.process.data_directory import UNFINISHED_FILE, Unfinished, note_unfinished
from cluster.process.exit_codes import ExitCode
from tests.e2e.cluster_process import ClusterProcess, NodeProcess, ok, wait_for
from tests.e2e.fixtures import KEELMQ, own_cluster
from tests.e2e.test_membership import addresses, empty_node
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.process

ACCEPTED: Final = "--i-accept-the-loss-of-what-only-others-had"
SEGMENT_BYTES: Final = 1 << 20
ORDERS, GROUP = "/v1/topics/orders", "/v1/groups/billing"

cluster = own_cluster()


def cli(*arguments: str, code: int = 0) -> str:
    """Run `keelmq` and return its standard output."""
    done = subprocess.run([*KEELMQ, *arguments], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == code, done
    return done.stdout


def keelmqd(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cluster.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def restore(file: Path, node: NodeProcess, of: ClusterProcess, *more: str) -> subprocess.CompletedProcess[str]:
    peers = [part for each in of.nodes.values() for part in ("--peer", each.peer_option)]
    place = ["--data-dir", str(node.data_dir), "--node-id", str(node.node_id), "--segment-bytes", str(SEGMENT_BYTES)]
    return keelmqd("restore", "--backup", str(file), *place, *peers, *more)


def send(node: NodeProcess, body: str, **fields: Any) -> Any:
    payload = {"messages": [{"body": body, "queue": 0, **fields}]}
    return ok(node.request("POST", f"{ORDERS}/messages", payload=payload))


def prepare(cluster: ClusterProcess) -> None:
    """Put something of every kind into the state: messages, an offset, a half transaction, a timer, a dead letter."""
    leader = cluster.wait_leader()
    ok(leader.request("PUT", ORDERS, payload={"queues": 1}))
    for number in range(20):
        send(leader, f"before-{number}", message_id=f"before-{number}")
    ok(leader.request("PUT", GROUP, payload={"retry_max_attempts": 0}))
    ok(leader.request("PUT", f"{GROUP}/offsets", payload={"offsets": [{"topic": "orders", "queue": 0, "offset": 7}]}))
    given = {"messages": [{"topic": "orders", "queue": 0, "offset": 7}]}
    ok(leader.request("POST", f"{GROUP}/retries", payload=given))
    half = {"transaction_id": "half", "producer_group": "shop", "messages": [{"topic": "orders", "body": "paid"}]}
    ok(leader.request("POST", "/v1/transactions", payload={**half, "check_after_ms": 3_600_000}))
    send(leader, "later", message_id="later", delay_ms=3_600_000)
    cluster.wait_same_state()


@contextmanager
def load(node: NodeProcess) -> Iterator[None]:
    """Send messages to the node all the time."""
    stop = threading.Event()
    errors: list[BaseException] = []

    def run() -> None:
        number = 0
        try:
            while not stop.is_set():
                send(node, "load", message_id=f"load-{number}")
                number += 1
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert not errors, errors


def metric(node: NodeProcess, name: str) -> float | None:
    lines = node.request("GET", "/metrics").body.decode().splitlines()
    return next((float(line.split()[1]) for line in lines if line.startswith(f"{name} ")), None)


def test_a_backup_under_load_is_restored_at_other_addresses(cluster: ClusterProcess, tmp_path: Path) -> None:
    prepare(cluster)
    follower = cluster.follower()
    backups = tmp_path / "backups"
    backups.mkdir()
    with load(cluster.wait_leader()):
        begun = json.loads(cli("backup", "create", str(backups), "--node", follower.url, "--json"))
    assert begun["node_id"] == follower.node_id
    assert (metric(follower, "keelmq_backups_stored_total"), metric(follower, "keelmq_backups_under_way")) == (1, 0)
    age_s = metric(follower, "keelmq_backup_age_seconds")
    assert age_s is not None
    assert 0 <= age_s < 60
    file = Path(begun["file"])
    assert (file.parent, file.stat().st_mode & 0o777) == (backups, 0o600)
    assert [each["state_hash"] for each in json.loads(cli("backup", "list", str(backups), "--json"))] == [
        begun["state_hash"]
    ]
    assert json.loads(cli("backup", "verify", str(file), "--json"))["whole"]
    assert cli("backup", "create", str(file), "--servers", cluster.servers, code=2) == ""
    cluster.stop()

    other = ClusterProcess(tmp_path / "other", nodes=3)
    damaged_bytes_are_named(file, other, tmp_path)
    first = restore(file, other.nodes[1], other, "--restore-id", "drill-1")
    assert (first.returncode, begun["state_hash"] in first.stdout) == (ExitCode.STOPPED, True), first
    again = restore(file, other.nodes[1], other, "--restore-id", "drill-1")
    assert (again.returncode, "is not empty" in again.stderr) == (ExitCode.DATA_DIR_UNUSABLE, True), again
    half_restored_is_refused_and_done_again(file, other)
    with other:
        goes_on(other)
        ok(other.wait_leader().request("POST", "/v1/transactions/half/commit"))
        assert other.wait_same_state()
        uids = {each.request("GET", "/v1/log?from_index=3").headers["keelmq-cluster-uid"] for each in other.alive()}
        assert len(uids) == 1
        assert uids != {begun["cluster_uid"]}
        a_wiped_node_is_filled_again(other)
        old = cluster.nodes[1]
        old.start()  # the old cluster's disk is still there; it neither takes part nor disturbs
        wait_for(lambda: old.status(), "the old node to answer")
        assert other.wait_same_state()
        assert other.wait_leader().request("GET", "/readyz").status == 200


def damaged_bytes_are_named(file: Path, other: ClusterProcess, tmp_path: Path) -> None:
    """One changed byte in each part of the file, a cut, and a longer file."""
    whole = file.read_bytes()
    middle = whole.index(b"before-3")
    damaged = tmp_path / "damaged.backup"
    for content, word in (
        (whole[:40] + bytes([whole[40] ^ 1]) + whole[41:], "frame 0"),
        (whole[:middle] + b"B" + whole[middle + 1 :], "does not match its CRC32C"),
        (whole[:-1], "the file ends within it"),
        (whole + b"x", "goes on behind its end"),
        (b"nothing of the kind", "the file ends before it"),
    ):
        damaged.write_bytes(content)
        said = cli("backup", "verify", str(damaged), code=1)
        assert word in said, (word, said)
        assert "DAMAGED" in said
        refused = restore(damaged, other.nodes[1], other)
        assert (refused.returncode, refused.stdout) == (ExitCode.LOG_CORRUPT, ""), refused
        assert word in refused.stderr, (word, refused.stderr)
        assert not other.nodes[1].data_dir.exists()


def half_restored_is_refused_and_done_again(file: Path, other: ClusterProcess) -> None:
    for node_id in (2, 3):
        node = other.nodes[node_id]
        done = restore(file, node, other, "--restore-id", "drill-1")
        assert done.returncode == ExitCode.STOPPED, done
    note_unfinished(other.nodes[3].data_dir, Unfinished("restore", "whatever"))
    (other.nodes[3].data_dir / "hard_state").unlink()
    other.nodes[3].start()
    assert other.nodes[3].wait_exit() == ExitCode.DATA_DIR_UNUSABLE
    assert "`keelmqd restore` was interrupted here" in other.nodes[3].log_tail(5)
    done = restore(file, other.nodes[3], other, "--restore-id", "drill-1")
    assert done.returncode == ExitCode.STOPPED, done
    assert not (other.nodes[3].data_dir / UNFINISHED_FILE).exists()


def goes_on(cluster: ClusterProcess) -> None:
    """Everything that `prepare` has put there is there, and grows on."""
    leader = cluster.wait_leader()
    offsets = ok(leader.request("GET", f"{GROUP}/offsets"))["offsets"]
    assert [(each["topic"], each["offset"]) for each in offsets if each["topic"] == "orders"] == [("orders", 7)]
    dead = ok(leader.request("GET", f"{GROUP}/dead-letters"))["messages"]
    assert [each["body"] for each in dead] == ["before-7"]
    scheduled = ok(leader.request("GET", f"{ORDERS}/scheduled"))["messages"]
    assert [each["message_id"] for each in scheduled] == ["later"]
    assert ok(leader.request("GET", "/v1/transactions/half"))["state"] == "prepared"
    assert ok(leader.request("GET", "/v1/messages/before-3?topic=orders"))["messages"][0]["body"] == "before-3"
    page = ok(leader.request("GET", f"{ORDERS}/queues/0/messages?offset=0&max_messages=20"))["messages"]
    assert [each["body"] for each in page] == [f"before-{number}" for number in range(20)]
    end = ok(leader.request("GET", f"{ORDERS}/queues/0/offsets?at=latest"))["offset"]
    send(leader, "after")
    assert ok(leader.request("GET", f"{ORDERS}/queues/0/messages?offset={end}"))["messages"][0]["body"] == "after"


def a_wiped_node_is_filled_again(cluster: ClusterProcess) -> None:
    """A node of the new cluster whose disk is lost gets the new cluster's name with the state."""
    node = cluster.follower()
    node.kill()
    shutil.rmtree(node.data_dir)
    node.start()
    wait_for(node.ready, "the wiped node to be ready")
    assert cluster.wait_same_state()


def recovered(survivor: NodeProcess) -> None:
    done = keelmqd("recover", "--data-dir", str(survivor.data_dir), "--segment-bytes", str(SEGMENT_BYTES), ACCEPTED)
    assert (done.returncode, "only voter" in done.stdout) == (ExitCode.STOPPED, True), done
    survivor.start()
    wait_for(survivor.ready, "the survivor to be ready")


def test_one_survivor_of_three_goes_on_alone(cluster: ClusterProcess, tmp_path: Path) -> None:
    prepare(cluster)
    survivor = cluster.follower()
    state_hash = cluster.wait_same_state()
    for node in cluster.nodes.values():
        if node is not survivor:
            node.kill()
    wait_for(lambda: ok(survivor.request("GET", "/v1/cluster"))["leader_id"] is None, "the survivor to be alone")
    assert cli("backup", "create", f"{tmp_path}/made/", "--servers", cluster.servers, code=1) == ""
    read = [*KEELMQ, "backup", "create", f"{tmp_path}/made/", "--servers", cluster.servers, "--node", survivor.url]
    done = subprocess.run(read, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert f"node {survivor.node_id} knows no leader" in done.stderr
    assert [each["state_hash"] for each in json.loads(cli("backup", "list", f"{tmp_path}/made", "--json"))]
    cluster.stop()
    told = keelmqd("recover", "--data-dir", str(survivor.data_dir), "--segment-bytes", str(SEGMENT_BYTES))
    assert (told.returncode, told.stderr) == (ExitCode.STOPPED, "")
    for word in (state_hash, "nothing was changed", "voters 1, 2, 3"):
        assert word in told.stdout, told.stdout
    recovered(survivor)
    goes_on(cluster)
    before = ok(survivor.request("GET", "/v1/cluster"))["configuration_index"]
    survivor.terminate()
    flag = "--i-accept-the-loss-of-what-only-others-had"
    again = keelmqd("recover", "--data-dir", str(survivor.data_dir), "--segment-bytes", str(SEGMENT_BYTES), flag)
    assert (again.returncode, "is the only voter already" in again.stdout) == (ExitCode.STOPPED, True), again
    survivor.start()
    wait_for(survivor.ready, "the survivor to go on")
    assert ok(survivor.request("GET", "/v1/cluster"))["configuration_index"] == before
    ok(survivor.request("POST", "/v1/transactions/half/commit"))
    assert [each["node_id"] for each in ok(survivor.request("GET", "/v1/cluster"))["nodes"]] == [survivor.node_id]


def test_a_recovered_node_is_apart_from_those_who_come_back_and_gets_others(
    cluster: ClusterProcess, tmp_path: Path
) -> None:
    ok(cluster.wait_leader().request("PUT", ORDERS, payload={"queues": 1}))
    cluster.wait_same_state()
    survivor = cluster.follower()
    cluster.stop()
    recovered(survivor)
    send(survivor, "alone")
    lost = [node for node in cluster.nodes.values() if node is not survivor]
    for node in lost:  # they come back after all, as the old cluster: the two refuse each other
        node.start()
    wait_for(lambda: all(node.ready() for node in lost), "the old majority to go on by itself")
    assert ok(survivor.request("GET", "/v1/cluster"))["role"] == "leader"
    ends = [ok(node.request("GET", f"{ORDERS}/queues/0/offsets?at=latest"))["offset"] for node in (survivor, lost[0])]
    assert ends == [1, 0]
    for node in lost:
        node.kill()
        assert "was removed from the cluster" not in node.log_path.read_text()

    cluster.nodes = {1: survivor}  # where the added node asks
    shutil.rmtree(lost[0].data_dir)
    added = empty_node(cluster, lost[0].node_id, tmp_path)
    cluster.nodes = {survivor.node_id: survivor, added.node_id: added}
    added.start()
    node_id, peer, url = addresses(added)
    cli("cluster", "add-node", str(node_id), peer, url, "--servers", survivor.url)
    cli("cluster", "promote", str(node_id), "--wait", "--servers", survivor.url)
    wait_for(added.ready, "the added node to be ready")
    assert cluster.wait_same_state()


def test_recovery_is_refused_where_nothing_can_be_recovered(cluster: ClusterProcess, tmp_path: Path) -> None:
    node = cluster.nodes[1]
    running = keelmqd("recover", "--data-dir", str(node.data_dir), ACCEPTED)
    assert (running.returncode, "in use by another process" in running.stderr) == (ExitCode.DATA_DIR_UNUSABLE, True)
    nothing = keelmqd("recover", "--data-dir", str(tmp_path / "nothing"), ACCEPTED)
    assert (nothing.returncode, "no node has used it" in nothing.stderr) == (ExitCode.DATA_DIR_UNUSABLE, True)
    assert not (tmp_path / "nothing").exists()
