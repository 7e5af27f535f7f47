"""The audit of a closed cluster of real processes: each node keeps its own, and `keelmq audit list` merges them."""

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.closed_cluster import ADMINISTRATOR, bearer, closed_cluster, code, rule, someone
from tests.e2e.cluster_process import ClusterProcess, NodeProcess, ok, wait_for
from tests.e2e.fixtures import KEELMQ, Shell
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.process

cluster = closed_cluster()


@pytest.fixture
def shell(cluster: ClusterProcess) -> Shell:
    made = Shell(cluster)
    made.environment["KEELMQ_TOKEN"] = ADMINISTRATOR
    return made


def records(node: NodeProcess, query: str = "") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ok(node.request("GET", f"/v1/audit{query}"))["records"]
    return found


def recorded(node: NodeProcess, query: str, number: int = 1) -> list[dict[str, Any]]:
    """Return the records that the node has once there are so many."""
    return wait_for(lambda: found if len(found := records(node, query)) >= number else None, f"{number} of {query}")


def files(node: NodeProcess) -> list[Path]:
    return sorted((node.data_dir / "audit").iterdir())


def test_each_node_has_what_it_was_asked_and_the_command_merges_them(cluster: ClusterProcess, shell: Shell) -> None:
    leader, follower = cluster.wait_leader(), cluster.follower()
    operator = someone(leader, rule("create", on="topic:merged-*"))
    cluster.wait_same_state()
    by = bearer(operator.token)
    ok(leader.request("PUT", "/v1/topics/merged-1", payload={"queues": 1}, headers=by))
    sent_on = follower.request("PUT", "/v1/topics/merged-2", payload={"queues": 1}, headers=by)
    assert sent_on.status == 307
    assert follower.request("DELETE", "/v1/topics/merged-1", headers=by).status == 307, "the leader may know better"
    recorded(leader, f"?principal={operator.name}")
    recorded(follower, f"?principal={operator.name}&outcome=denied")
    recorded(follower, f"?principal={operator.name}&outcome=redirected")
    listed = shell.json("audit", "list", "--principal", operator.name, "--since", "1h")
    assert [(each["node_id"], each["auth"], each["unreadable"]) for each in listed["nodes"]] == [
        (node_id, "enforce", 0) for node_id in (1, 2, 3)
    ]
    told = [(each["node_id"], each["method"], each["outcome"]) for each in listed["records"]]
    assert told == [
        (leader.node_id, "PUT", "done"),
        (follower.node_id, "PUT", "redirected"),
        (follower.node_id, "DELETE", "denied"),
    ]
    assert listed["unanswered"] == []
    entry = listed["records"][0]["raft_index"]
    assert f"{entry:>10} " in shell("log", "dump", "--from-index", str(entry), "--max", "1").stdout
    table = shell("audit", "list", "--principal", operator.name, "--denied", "--node", str(follower.node_id)).stdout
    assert "denied delete topic:merged-1" in table
    assert "/v1/topics/merged-2" not in table


def test_only_administrators_may_read_it_and_that_is_recorded_too(cluster: ClusterProcess, shell: Shell) -> None:
    leader = cluster.wait_leader()
    reader = someone(leader, rule("describe", on="cluster"), rule("read", "describe", on="log"))
    refused = leader.request("GET", "/v1/audit", headers=bearer(reader.token))
    assert (refused.status, code(refused)) == (403, "forbidden")
    (denied,) = recorded(leader, f"?principal={reader.name}")
    assert (denied["path"], denied["action"], denied["resource"]) == ("/v1/audit", "admin", "cluster")
    shell.environment["KEELMQ_TOKEN"] = reader.token
    assert "forbidden" in shell("audit", "list", code=1).stderr


def test_a_record_is_found_by_the_id_of_its_request(cluster: ClusterProcess, shell: Shell) -> None:
    leader = cluster.wait_leader()
    headers = {"X-Request-Id": "ticket-4711", **bearer(ADMINISTRATOR)}
    ok(leader.request("PUT", "/v1/topics/found", payload={"queues": 1}, headers=headers))
    recorded(leader, "?request_id=ticket-4711")
    (found,) = shell.json("audit", "list", "--request-id", "ticket-4711")["records"]
    assert (found["principal"], found["path"], found["node_id"]) == ("admin", "/v1/topics/found", leader.node_id)


def test_a_killed_node_keeps_its_records_and_a_torn_line_is_no_hindrance(cluster: ClusterProcess) -> None:
    node = cluster.follower()
    assert node.request("PUT", "/v1/topics/x", payload={}, headers={"Authorization": ""}).status == 401
    before = recorded(node, "?outcome=denied")
    node.kill()
    newest = next(each for each in reversed(files(node)) if each.name.startswith("denied-"))
    with newest.open("ab") as file:
        file.write(b'{"at_ms":17,"princ')
    node.start()
    wait_for(node.ready, "the node that was started again")
    assert ok(node.request("GET", "/v1/audit?outcome=denied"))["unreadable"] == 0
    assert records(node, "?outcome=denied")[-len(before) :] == before
    assert node.request("PUT", "/v1/topics/y", payload={}, headers={"Authorization": ""}).status == 401
    assert recorded(node, "?outcome=denied", len(before) + 1)[0]["path"] == "/v1/topics/y"


def test_the_files_are_for_the_user_of_the_node_and_hold_no_credential(cluster: ClusterProcess) -> None:
    leader = cluster.wait_leader()
    user = someone(leader)
    for token in (user.token, user.token + "x"):
        leader.request("DELETE", f"/v1/topics/none?token={token}", headers=bearer(token))
    recorded(leader, f"?principal={user.name}")
    for node in cluster.nodes.values():
        for file in files(node):
            assert file.stat().st_mode & 0o777 == 0o600, file
            text = file.read_text()
            assert ADMINISTRATOR not in text
            assert user.token not in text


@contextlib.contextmanager
def following(shell: Shell, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [*KEELMQ, "audit", "list", "--follow", "--json", *arguments]
    environment = {**os.environ, **shell.environment}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        yield process
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 130
        assert b"Traceback" not in errors
    finally:
        process.kill()
        process.communicate()


def test_following_shows_what_comes(cluster: ClusterProcess, shell: Shell) -> None:
    leader = cluster.wait_leader()
    ok(leader.request("PUT", "/v1/topics/followed-1", payload={"queues": 1}))
    recorded(leader, "?route=followed-1")
    with following(shell, "--route", "followed-") as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["path"] == "/v1/topics/followed-1"
        ok(leader.request("PUT", "/v1/topics/followed-2", payload={"queues": 1}))
        assert json.loads(process.stdout.readline())["path"] == "/v1/topics/followed-2"


def test_wrong_usage_is_told(shell: Shell) -> None:
    assert "--outcome denied" in shell("audit", "list", "--denied", "--outcome", "done", code=2).stderr
    assert "no end" in shell("audit", "list", "--follow", "--until", "1h", code=2).stderr
    assert "no node 9" in shell("audit", "list", "--node", "9", code=1).stderr
