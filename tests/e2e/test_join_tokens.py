"""A new node joins with a token that is used up, and without any other credentials of the cluster."""

import asyncio
from pathlib import Path
from typing import Any

from cluster.process.exit_codes import ExitCode
from tests.e2e.closed_cluster import (
    ADMINISTRATOR,
    administrator_file,
    bearer,
    closed,
    code,
    rule,
    shared_closed_cluster,
    someone,
)
from tests.e2e.cluster_process import ClusterProcess, NodeProcess, ok, wait_for
from tests.e2e.fixtures import Shell
from tests.e2e.test_backup import restore
from tests.e2e.test_membership import addresses, empty_node

JOIN = "/v1/cluster/join"


cluster = shared_closed_cluster()


def made(cluster: ClusterProcess, node_id: int, **fields: int) -> str:
    reply = cluster.wait_leader().request(
        "POST", "/v1/cluster/join-tokens", payload={"node_id": node_id, "expires_in_ms": 60_000, **fields}
    )
    assert reply.status == 201, reply
    return str(reply.json()["token"])


def secret_of(cluster: ClusterProcess) -> str:
    return (cluster.directory / "peer_secret").read_text().strip()


def joining(cluster: ClusterProcess, directory: Path, token: str) -> NodeProcess:
    """Return a node with nothing but a join token, which asks a follower."""
    follower = cluster.follower()
    node = empty_node(cluster, 4, directory)
    node.arguments[node.arguments.index("--join") + 1] = follower.url
    node.arguments[node.arguments.index("--peer-secret-file") + 1] = str(directory / "given-secret")
    file = directory / "join-token"
    file.touch(mode=0o600)
    file.write_text(token + "\n")
    node.arguments += ["--join-token-file", str(file), "--auth", "enforce", "--log-level", "debug"]
    del cluster.nodes[4]
    return node


def test_a_node_joins_with_a_token_alone_and_the_token_is_used_up(cluster: ClusterProcess, tmp_path: Path) -> None:
    shell = Shell(cluster)
    shell.environment["KEELMQ_TOKEN_FILE"] = str(administrator_file(tmp_path))
    printed = shell("cluster", "join-token", "4", "--minutes", "5")
    token = printed.stdout.strip()
    assert "join token of node 4" in printed.stderr
    assert "join:4" in shell("auth", "user", "list").stdout
    node = joining(cluster, tmp_path, token)
    node.start()
    try:
        given = tmp_path / "given-secret"
        wait_for(given.exists, "the peer secret")
        assert given.stat().st_mode & 0o777 == 0o600
        wait_for(lambda: given.read_text().strip() == secret_of(cluster), "the peer secret, as a whole")
        shell("cluster", "add-node", *map(str, addresses(node)))
        wait_for(node.ready, "the new node to be ready")
        reply = cluster.wait_leader().request("POST", JOIN, payload={"node_id": 4}, headers=bearer(token))
        assert (reply.status, code(reply)) == (401, "unauthenticated")
        assert "join:4" not in shell("auth", "user", "list").stdout
        # Its data knows the cluster: it starts again without the token.
        assert node.terminate() == 0
        (tmp_path / "join-token").unlink()
        node.start()
        wait_for(node.ready, "the node to be ready again")
        shell("cluster", "remove-node", "4")
    finally:
        node.kill()
    leader = cluster.wait_leader()
    assert f"POST {JOIN} by join:4 at 127.0.0.1: 200" in leader.output()
    for each in (node, *cluster.nodes.values()):
        assert token not in each.output()
        assert secret_of(cluster) not in each.output()


def test_a_node_is_added_and_started_with_the_token_that_was_made_with_it(
    cluster: ClusterProcess, tmp_path: Path
) -> None:
    shell = Shell(cluster)
    shell.environment["KEELMQ_TOKEN_FILE"] = str(administrator_file(tmp_path))
    node = joining(cluster, tmp_path, "to be made")
    node_id, peer, url = map(str, addresses(node))
    refused = shell("cluster", "add-node", node_id, "no address", url, "--token-minutes", "15", code=1)
    assert "join:4" not in shell("auth", "user", "list").stdout, "its token is withdrawn"
    assert refused.stdout == ""
    printed = shell("cluster", "add-node", node_id, peer, url, "--token-minutes", "15")
    token = printed.stdout.strip()
    (tmp_path / "join-token").write_text(f"{token}\n")
    command = (
        f"keelmqd --node-id 4 --data-dir DIRECTORY --peer-listen {peer} --http-listen {url.removeprefix('http://')} "
    )
    assert command in printed.stderr
    assert "keelmq cluster promote 4 --wait" in printed.stderr
    assert token not in printed.stderr
    node.start()
    try:
        wait_for(node.ready, "the new node to be ready")
        again = shell.json("cluster", "add-node", node_id, peer, url, "--token-minutes", "1")
        assert [again["join_token"]["node_id"], len(again["members"])] == [4, 4]
        assert again["start"].startswith(command)
        shell("auth", "user", "delete", "join:4", "--yes")
        shell("cluster", "remove-node", "4")
    finally:
        node.kill()


def test_a_node_that_could_not_keep_the_secret_does_not_show_its_token(cluster: ClusterProcess, tmp_path: Path) -> None:
    fresh = made(cluster, 4)
    node = joining(cluster, tmp_path, fresh)
    (tmp_path / "given-secret").write_text("something else")
    node.start()
    assert node.wait_exit() == ExitCode.BAD_CONFIG
    assert "which exists: remove it, or join_token_file" in node.output()
    answer = ok(cluster.wait_leader().request("POST", JOIN, payload={"node_id": 4}, headers=bearer(fresh)))
    assert answer["peer_secret"] == secret_of(cluster), "the token was not shown, and is still good"


async def test_of_many_that_show_one_token_one_is_answered(cluster: ClusterProcess) -> None:
    leader = cluster.wait_leader()
    token = made(cluster, 5)

    def show() -> tuple[int, str]:
        reply = leader.request("POST", JOIN, payload={"node_id": 5}, headers=bearer(token))
        return reply.status, code(reply)

    found = await asyncio.gather(*(asyncio.to_thread(show) for _ in range(16)))
    assert sorted(found) == [(200, ""), *[(401, "unauthenticated")] * 15]


def test_a_join_token_is_good_for_nothing_else(cluster: ClusterProcess) -> None:
    leader = cluster.wait_leader()
    first, token = made(cluster, 6), made(cluster, 6)
    for credentials, payload, answer in (
        (first, {"node_id": 6}, (401, "unauthenticated")),
        (token, {"node_id": 7}, (403, "forbidden")),
        (ADMINISTRATOR, {"node_id": 6}, (403, "forbidden")),
        (someone(leader, rule("*", on="*")).token, {"node_id": 6}, (403, "forbidden")),
        (token, {"node_id": 0}, (400, "invalid_request")),
        (token, {}, (400, "invalid_request")),
    ):
        reply = leader.request("POST", JOIN, payload=payload, headers=bearer(credentials))
        assert (reply.status, code(reply)) == answer, (payload, reply)
    for method, path, body in (
        ("PUT", "/v1/topics/t", {"queues": 1}),
        ("GET", "/v1/users", None),
        ("POST", "/v1/cluster/join-tokens", {"node_id": 8}),
        ("POST", "/v1/cluster/members", {"node_id": 8, "peer_address": "127.0.0.1:1", "http_address": "http://x:1"}),
        ("GET", "/v1/log", None),
    ):
        assert code(leader.request(method, path, payload=body, headers=bearer(token))) == "forbidden", path
    wrong: tuple[tuple[str, str, Any], ...] = (
        ("PUT", "/v1/users/join:6", {"rules": [rule("*", on="*")]}),
        ("PUT", "/v1/users/join:8", {}),
        ("POST", "/v1/users/join:6/tokens", {}),
        ("POST", "/v1/cluster/join-tokens", {"node_id": 6, "expires_in_ms": 86_400_001}),
    )
    for method, path, body in wrong:
        assert code(leader.request(method, path, payload=body)) == "invalid_request", path
    ok(leader.request("DELETE", "/v1/users/join:6"))
    assert leader.request("POST", JOIN, payload={"node_id": 6}, headers=bearer(token)).status == 401
    short = made(cluster, 6, expires_in_ms=1)
    wait_for(
        lambda: leader.request("POST", JOIN, payload={"node_id": 6}, headers=bearer(short)).status == 401,
        "the token to end",
    )


def test_a_token_that_was_used_after_a_backup_is_not_good_again_after_its_restore(
    cluster: ClusterProcess, tmp_path: Path
) -> None:
    token = made(cluster, 8)
    shell = Shell(cluster)
    shell.environment["KEELMQ_TOKEN_FILE"] = str(administrator_file(tmp_path))
    file = Path(shell.json("backup", "create", str(tmp_path) + "/")["file"])
    ok(cluster.wait_leader().request("POST", JOIN, payload={"node_id": 8}, headers=bearer(token)))
    other = closed(tmp_path / "other")
    for node in other.nodes.values():
        restored = restore(file, node, other, "--restore-id", "drill")
        assert (restored.returncode, "used up: " in restored.stdout) == (ExitCode.STOPPED, True), restored
        assert "join:8" in restored.stdout
    with other:
        leader = other.wait_leader()
        users = ok(leader.request("GET", "/v1/users"))["users"]
        assert not [each["user"] for each in users if each["user"].startswith("join:")]
        reply = leader.request("POST", JOIN, payload={"node_id": 8}, headers=bearer(token))
        assert (reply.status, code(reply)) == (401, "unauthenticated")
        assert other.wait_same_state()


def test_a_refused_token_is_told_with_the_id_of_its_request(cluster: ClusterProcess) -> None:
    leader = cluster.wait_leader()
    token = made(cluster, 9)
    headers = {**bearer(token), "X-Request-Id": "strange-1"}
    assert leader.request("POST", JOIN, payload={"node_id": 8}, headers=headers).status == 403
    line = f"[request strange-1] POST {JOIN} by join:9 at 127.0.0.1: forbidden"
    wait_for(
        lambda: [each for each in leader.output().splitlines() if "keelmq.audit.refused" in each and line in each],
        "the line of the refusal",
    )
    assert token not in leader.output()
