"""The SDK and the command under enforced permissions, as docs/security.md describes them."""

import asyncio
from pathlib import Path

import pytest

from keelmq import Connection, Consumer, Producer, ReceivedMessage
from keelmq.admin import Admin
from keelmq.admin.users import Rule, Users
from keelmq.errors import Conflict, Forbidden, Unauthenticated
from tests.e2e.closed_cluster import ADMINISTRATOR, administrator_file, enforced, shared_closed_cluster
from tests.e2e.cluster_process import OPTIONS, ClusterProcess, NodeProcess, ok, until, wait_for
from tests.e2e.fixtures import Shell
from tests.e2e.test_membership import addresses, empty_node

cluster = shared_closed_cluster()


async def token_of(cluster: ClusterProcess, user: str, *rules: Rule) -> str:
    administration = Connection(cluster.servers, token=ADMINISTRATOR)
    try:
        users = Users(administration)
        await users.put(user, rules=rules, revision=0)
        return (await users.create_token(user)).token
    finally:
        administration.close()


async def test_services_send_and_consume_with_their_own_tokens(cluster: ClusterProcess) -> None:
    ok(cluster.wait_leader().request("PUT", "/v1/topics/paid", payload={"queues": 2}))
    sends = await token_of(cluster, "shop", Rule(actions=("send",), resource="topic:paid"))
    reads = await token_of(
        cluster,
        "billing",
        Rule(actions=("read",), resource="topic:paid"),
        Rule(actions=("read",), resource="group:billing"),
    )
    shop, billing = (Connection(cluster.follower().url, token=token) for token in (sends, reads))
    handled: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        handled.append(message.body)

    producer = Producer((), connection=shop)
    consumer = Consumer((), "billing", "paid", handle, connection=billing, start="earliest")
    await producer.send("paid", b"one")
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(consumer.run())
        await until(lambda: handled == [b"one"])
        await consumer.close()
        await running
    for connection in (shop, billing):
        connection.close()


async def test_errors_come_at_once_and_say_what_to_do(cluster: ClusterProcess) -> None:
    for token, words in ((None, "set KEELMQ_TOKEN"), ("keelmq_" + "x" * 43, "it was revoked")):
        stranger = Connection(cluster.servers, token=token)
        for call in (
            Admin(stranger).topics(),
            Admin(stranger).cluster(),
            Producer((), connection=stranger).send("paid", b"x"),
        ):
            with pytest.raises(Unauthenticated, match=words):
                await call
        stranger.close()
    other = Connection(cluster.servers, token=await token_of(cluster, "other"))
    with pytest.raises(Forbidden, match="keelmq auth acl allow other send topic:paid"):
        await Producer((), connection=other).send("paid", b"x")
    other.close()


async def test_a_token_file_is_replaced_while_the_client_runs(cluster: ClusterProcess, tmp_path: Path) -> None:
    administration = Connection(cluster.servers, token=ADMINISTRATOR)
    users = Users(administration)
    await users.put("rotated", rules=[Rule(actions=("send",), resource="topic:*")], revision=0)
    first = await users.create_token("rotated")
    tokens = [first.token]
    client = Connection(cluster.servers, token=lambda: tokens[0])
    assert (await Users(client).principal()).principal == "rotated"
    second = await users.create_token("rotated")
    with pytest.raises(Conflict, match="revoke the older one"):
        await users.create_token("rotated")
    tokens[0] = second.token
    await users.revoke_token("rotated", first.token_id)
    assert (await Users(client).principal()).principal == "rotated"
    assert [each.token_id for each in (await users.get("rotated")).tokens] == [second.token_id]
    for connection in (client, administration):
        connection.close()


def test_the_command_leads_from_nothing_to_a_working_service(cluster: ClusterProcess, tmp_path: Path) -> None:
    shell = Shell(cluster)
    refused = shell("topic", "list", code=1)
    assert "KEELMQ_TOKEN_FILE" in refused.stderr
    shell.environment["KEELMQ_TOKEN_FILE"] = str(administrator_file(tmp_path))
    assert shell("auth", "whoami").stdout.startswith("admin, from 127.0.0.1")
    shell("auth", "user", "create", "web")
    assert "user_changed" in shell("auth", "user", "create", "web", code=1).stderr
    shell("auth", "acl", "allow", "web", "send, create", "topic:web-*")
    shell("auth", "acl", "deny", "web", "send", "topic:web-secret", "--network", "127.0.0.0/8")
    made = shell("auth", "token", "create", "web", "--days", "1")
    assert "not shown again" in made.stderr
    assert "may not send topic:web-secret" in shell(
        "auth", "explain", "web", "send", "topic:web-secret", "--address", "127.0.0.1"
    ).stdout.replace("\n", " ")
    shown = shell("auth", "user", "show", "web").stdout
    assert "deny send on topic:web-secret from 127.0.0.0/8" in shown
    assert made.stdout.strip() not in shown
    web = Shell(cluster)
    (tmp_path / "web.token").write_text(made.stdout)
    web.environment["KEELMQ_TOKEN_FILE"] = str(tmp_path / "web.token")
    web("topic", "create", "web-1")
    web("send", "web-1", "hello")
    assert "forbidden" in web("send", "web-secret", "hello", code=1).stderr
    assert "web-1" in web("topic", "list").stdout
    assert "forbidden" in web("auth", "user", "list", code=1).stderr
    shell("auth", "token", "revoke", "web", shell.json("auth", "user", "show", "web")["tokens"][0]["token_id"])
    assert "unauthenticated" in web("topic", "list", code=1).stderr
    shell("auth", "acl", "remove", "web", "topic:web-*")
    shell("auth", "user", "delete", "web", "--yes")
    assert "web" not in shell("auth", "user", "list").stdout
    status = shell("cluster", "status")
    assert "leader" in status.stdout


def test_a_new_node_joins_a_closed_cluster(cluster: ClusterProcess, tmp_path: Path) -> None:
    """The new node shows the administrator's token to the node that it asks."""
    node = empty_node(cluster, 4, tmp_path)
    secret = cluster.nodes[1].arguments
    at = node.arguments.index("--peer-secret-file")
    node.arguments[at + 1] = secret[secret.index("--peer-secret-file") + 1]
    node.arguments += enforced(tmp_path)
    node.token = ADMINISTRATOR
    leader = cluster.wait_leader()
    node.start()
    try:
        body = dict(zip(("node_id", "peer_address", "http_address"), addresses(node), strict=True))
        ok(leader.request("POST", "/v1/cluster/members", payload=body))
        wait_for(node.ready, "the new node to be ready")
        assert ok(node.request("GET", "/v1/principal"))["principal"] == "admin"
        ok(cluster.wait_leader().request("DELETE", "/v1/cluster/members/4"))
    finally:
        node.kill()
        del cluster.nodes[4]


async def test_a_cluster_is_closed_under_load_without_a_lost_call(tmp_path: Path) -> None:
    """The cluster goes from open over permissive to enforced, node by node, as docs/security.md says."""
    cluster = ClusterProcess(tmp_path, options=(*OPTIONS, "--admin-token-file", str(administrator_file(tmp_path))))
    with cluster:
        ok(cluster.wait_leader().request("PUT", "/v1/topics/orders", payload={"queues": 2}))
        token = await token_of(cluster, "shop", Rule(actions=("send",), resource="topic:orders"))
        connection = Connection(cluster.servers, token=token)
        producer = Producer((), connection=connection, send_timeout_ms=60_000)
        sent, is_over = 0, False

        async def send_all() -> None:
            nonlocal sent
            while not is_over:
                await producer.send("orders", f"{sent}".encode(), message_id=f"m{sent}")
                sent += 1

        def close_one(node: NodeProcess, mode: str) -> None:
            assert node.terminate() == 0
            node.arguments += ["--auth", mode]
            node.token = ADMINISTRATOR
            node.start()
            cluster.wait_ready()

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(send_all())
            for mode in ("permissive", "enforce"):
                for node in cluster.nodes.values():
                    await asyncio.to_thread(close_one, node, mode)
            before = sent
            await until(lambda: sent > before + 10)
            is_over = True
        connection.close()
        leader = cluster.wait_leader()
        views = ok(leader.request("GET", "/v1/topics/orders"))["queue_offsets"]
        assert sum(each["max_offset"] for each in views) == sent
        assert leader.request("GET", "/v1/topics", headers={"Authorization": ""}).status == 401
        refused = [node.request("GET", "/metrics").body.decode() for node in cluster.nodes.values()]
        assert all('keelmq_auth_refused_total{reason="forbidden"} 0' in page for page in refused)
