"""Tests nodes that come and go while the cluster runs; its users notice no more than retries."""

import asyncio
import contextlib
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cluster.process.exit_codes import ExitCode
from deploy.local_nodes import free_ports, make_secret
from keelmq import Admin, Connection, Consumer, Producer, ReceivedMessage
from keelmq.errors import KeelMQError
from tests.e2e.cluster_process import STEADY, ClusterProcess, NodeProcess, until, wait_for
from tests.e2e.fixtures import KEELMQ, own_cluster
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.process

MEMBERS = "/v1/cluster/members"
OPTIONS = ["--segment-bytes", str(4 << 20), "--min-free-bytes", "0"]
OPTIONS += ["--election-timeout-ms", "500", "--heartbeat-ms", "50"]

cluster = own_cluster()


def empty_node(cluster: ClusterProcess, node_id: int, directory: Path) -> NodeProcess:
    """Return a node that joins the cluster; it does not run yet."""
    http_port, peer_port = free_ports(2)
    node = NodeProcess(node_id, directory, http_port, peer_port)
    node.arguments = ["--node-id", str(node_id), "--data-dir", str(node.data_dir), "--join", cluster.nodes[1].url]
    node.arguments += ["--http-listen", f"127.0.0.1:{http_port}", "--peer-listen", f"127.0.0.1:{peer_port}"]
    node.arguments += [*OPTIONS, "--peer-secret-file", str(make_secret(directory))]
    cluster.nodes[node_id] = node
    return node


def addresses(node: NodeProcess) -> tuple[int, str, str]:
    return node.node_id, f"127.0.0.1:{node.peer_port}", node.url


async def persist(work: Any) -> Any:
    """Repeat a command as an operator does, until it is done, or was done before."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return await work()
        except KeelMQError as exc:
            if exc.code == "node_not_found":
                return None
            waited_for = exc.retryable or exc.code in ("change_in_progress", "not_caught_up", "quorum_at_risk")
            if not waited_for or time.monotonic() > deadline_s:
                raise
        await asyncio.sleep(0.1)


def knows(node: NodeProcess, node_id: int) -> bool:
    return node_id in [each["node_id"] for each in (node.status() or {"nodes": ()})["nodes"]]


def voters(node: NodeProcess) -> list[int]:
    status = node.status()
    return [each["node_id"] for each in status["nodes"] if each["membership"] == "voter"] if status else []


@contextlib.asynccontextmanager
async def producing(producer: Producer) -> AsyncIterator[list[bytes]]:
    """Send one message after the other to the topic `orders` within the block, each of which must be taken. The list
    has their bodies.
    """
    sent: list[bytes] = []
    loaded = True

    async def produce() -> None:
        while loaded:
            body = b"%d" % len(sent)
            await producer.send("orders", body)  # must not raise, whatever happens
            sent.append(body)
            await asyncio.sleep(0.005)

    task = asyncio.create_task(produce())
    try:
        yield sent
        loaded = False
        await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_every_node_is_replaced_under_load(cluster: ClusterProcess, tmp_path: Path) -> None:
    """Three nodes become five, then the first three go, one by one; the clients were told of those three only."""
    servers = cluster.urls
    operator = Connection(servers)
    admin = Admin(operator)
    await admin.put_topic("orders", queues=2)
    got: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        got.append(message.body)

    async with (
        Producer(servers, send_timeout_ms=int(PATIENCE_S * 1000)) as producer,
        Consumer(servers, "shop", ["orders"], handle),
    ):
        async with producing(producer) as sent:
            await _replace_all(cluster, admin, sent, tmp_path)
        await until(lambda: set(got) >= set(sent))
    operator.close()
    assert voters(cluster.wait_leader()) == [4, 5]
    await asyncio.to_thread(cluster.wait_same_state)
    assert sorted(map(int, set(got))) == list(range(len(sent)))


async def _replace_all(cluster: ClusterProcess, admin: Admin, sent: list[bytes], directory: Path) -> None:
    await until(lambda: len(sent) > 20)
    for node_id in (4, 5):
        node = empty_node(cluster, node_id, directory)
        await asyncio.to_thread(node.start)
        await persist(lambda node=node: admin.add_node(*addresses(node)))
        await persist(lambda node_id=node_id: admin.promote_node(node_id))
    assert voters(cluster.wait_leader()) == [1, 2, 3, 4, 5]
    for _ in (1, 2, 3):
        leader = await asyncio.to_thread(cluster.wait_leader)
        first = leader.node_id if leader.node_id <= 3 else min(set(cluster.nodes) & {1, 2, 3})
        await persist(lambda first=first: admin.remove_node(first))
        await asyncio.to_thread(cluster.nodes.pop(first).kill)
    count = len(sent)
    await until(lambda: len(sent) > count + 20)


def test_a_removed_node_that_is_started_again_disturbs_nobody(cluster: ClusterProcess) -> None:
    leader = cluster.wait_leader()
    removed = next(node for node in cluster.nodes.values() if node is not leader)
    wait_for(lambda: leader.request("DELETE", f"{MEMBERS}/{removed.node_id}").status == 200, "the removal")
    for _ in ("while it goes on running", "after a start"):
        wait_for(lambda: (removed.status() or {}).get("removed"), "the node to be told")
        refusal = removed.request("GET", "/readyz")
        assert refusal.status == 503
        assert "was removed from the cluster" in refusal.json()["detail"]
        removed.kill()
        removed.start()
    wait_for(lambda: leader.request("PUT", "/v1/topics/t", payload={"queues": 1}).status < 300, "a write")
    assert removed.node_id not in voters(cluster.wait_leader(among=[n for n in cluster.alive() if n is not removed]))


def test_a_change_survives_the_leader_that_proposed_it(cluster: ClusterProcess, tmp_path: Path) -> None:
    """The leader is killed right after the request: the change is made or not, and then it can be made again."""
    node = empty_node(cluster, 4, tmp_path)
    node.start()
    founders = [cluster.nodes[number] for number in (1, 2, 3)]
    leader = cluster.wait_leader(among=founders)
    body = dict(zip(("node_id", "peer_address", "http_address"), addresses(node), strict=True))

    def ask() -> None:
        with contextlib.suppress(OSError):
            leader.request("POST", MEMBERS, payload=body)

    asking = threading.Thread(target=ask)
    asking.start()
    leader.kill()
    asking.join()

    async def again() -> None:
        with contextlib.closing(Connection([each.url for each in founders])) as connection:
            admin = Admin(connection)
            await persist(lambda: admin.put_topic("orders", queues=1))
            await persist(lambda: admin.add_node(*addresses(node)))
            leader.start()
            await persist(lambda: admin.promote_node(4))

    asyncio.run(again())
    cluster.wait_ready()
    assert voters(cluster.wait_leader()) == [1, 2, 3, 4]
    cluster.wait_same_state()


def refused(node: NodeProcess, method: str, path: str, payload: Any = None) -> str:
    reply = node.request(method, path, payload=payload)
    assert reply.status in (404, 409), reply
    return str(reply.json()["code"])


def learner(number: int, port: int = 0) -> dict[str, Any]:
    return {
        "node_id": number,
        "peer_address": f"127.0.0.1:{port or number}",
        "http_address": f"http://127.0.0.1:{port or number}",
    }


def keelmq(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*KEELMQ, *arguments], capture_output=True, text=True, timeout=PATIENCE_S)


def test_leadership_goes_to_the_node_that_is_named(tmp_path: Path) -> None:
    with ClusterProcess(tmp_path, nodes=3, options=STEADY) as made:
        for _ in range(2):
            leader = made.wait_leader()
            follower = min(number for number in made.nodes if number != leader.node_id)
            assert refused(leader, "POST", f"{MEMBERS}/9/lead") == "node_not_found"
            shown = keelmq("cluster", "transfer", str(follower), "--servers", leader.url)
            assert shown.returncode == 0, shown.stderr
            assert shown.stdout == f"node {follower} leads\n"
            assert made.wait_leader().node_id == follower
            again = keelmq("cluster", "transfer", str(follower), "--servers", leader.url)
            assert again.returncode == 0, again.stderr
        leader = made.wait_leader()
        assert leader.request("POST", MEMBERS, payload=learner(4)).status == 200
        assert refused(leader, "POST", f"{MEMBERS}/4/lead") == "not_caught_up"


def test_what_would_do_harm_is_refused(tmp_path: Path) -> None:
    with ClusterProcess(tmp_path, nodes=3, options=STEADY) as made:
        leader = made.wait_leader()
        assert refused(leader, "POST", f"{MEMBERS}/9/promote") == "node_not_found"
        assert refused(leader, "DELETE", f"{MEMBERS}/9") == "node_not_found"
        assert refused(leader, "POST", MEMBERS, learner(1)) == "node_exists"
        assert refused(leader, "POST", MEMBERS, learner(9, made.nodes[2].peer_port)) == "node_exists"
        for number in range(4, 17):
            assert leader.request("POST", MEMBERS, payload=learner(number)).status == 200
        assert leader.request("POST", MEMBERS, payload=learner(16)).status == 200, "the same again"
        assert refused(leader, "POST", MEMBERS, learner(17)) == "too_many_nodes"
        assert refused(leader, "POST", f"{MEMBERS}/4/promote") == "not_caught_up"
        others = [node for node in made.nodes.values() if node is not leader]
        others[0].kill()
        assert refused(leader, "DELETE", f"{MEMBERS}/{others[1].node_id}") == "quorum_at_risk"
        others[1].pause()
        waiting = threading.Thread(target=lambda: leader.request("DELETE", f"{MEMBERS}/4", timeout_s=PATIENCE_S))
        waiting.start()
        wait_for(lambda: len((leader.status() or {"nodes": ()})["nodes"]) == 15, "the change to be in force")
        assert refused(leader, "DELETE", f"{MEMBERS}/5") == "change_in_progress"
        others[1].resume()
        waiting.join()


def test_a_single_node(tmp_path: Path) -> None:
    http_port = free_ports(1)[0]
    alone = NodeProcess(1, tmp_path, http_port, 0)
    alone.arguments = ["--data-dir", str(alone.data_dir), "--http-listen", f"127.0.0.1:{http_port}"]
    alone.arguments += ["--segment-bytes", str(4 << 20), "--min-free-bytes", "0"]
    alone.start()
    try:
        wait_for(alone.ready, "the node")
        assert refused(alone, "DELETE", f"{MEMBERS}/1") == "last_voter"
        assert refused(alone, "POST", MEMBERS, learner(2)) == "no_peer_address"
    finally:
        alone.kill()


def founder(directory: Path) -> NodeProcess:
    """Return a cluster of one that others may be added to."""
    http_port, peer_port = free_ports(2)
    node = NodeProcess(1, directory, http_port, peer_port)
    node.arguments = ["--node-id", "1", "--data-dir", str(node.data_dir), *OPTIONS]
    node.arguments += ["--peer-secret-file", str(make_secret(directory))]
    node.arguments += ["--http-listen", f"127.0.0.1:{http_port}", "--peer-listen", f"127.0.0.1:{peer_port}"]
    return node


def test_a_lone_founder_on_a_new_disk_begins_another_cluster_and_joins_when_told_to(tmp_path: Path) -> None:
    cluster = ClusterProcess(tmp_path, nodes=1)
    alone = cluster.nodes[1] = founder(tmp_path)
    try:
        alone.start()
        wait_for(alone.ready, "the founder")
        for number in (2, 3):
            empty_node(cluster, number, tmp_path).start()

        async def grow() -> None:
            with contextlib.closing(Connection([alone.url])) as connection:
                admin = Admin(connection)
                await persist(lambda: admin.put_topic("orders", queues=1))
                for number in (2, 3):
                    await persist(lambda number=number: admin.add_node(*addresses(cluster.nodes[number])))
                    await persist(lambda number=number: admin.promote_node(number))

        asyncio.run(grow())
        alone.kill()
        shutil.rmtree(alone.data_dir)
        leader = cluster.wait_leader(among=[cluster.nodes[2], cluster.nodes[3]])
        alone.start()
        wait_for(lambda: "start it with --join" in leader.output(), "the others to tell what to do")
        wait_for(lambda: "start it with --join" in alone.output(), "the founder to tell what to do")
        wait_for(lambda: alone.request("GET", "/v1/topics/orders").status == 404, "a cluster of its own")
        status, output = asyncio.run(run("cluster", "status", "--servers", f"{alone.url},{leader.url}"))
        assert (status, f"leader {leader.url}" in output) == (1, True), output
        assert "of two clusters" in output
        alone.kill()
        shutil.rmtree(alone.data_dir)
        alone.arguments += ["--join", leader.url]
        alone.start()
        cluster.wait_ready()
        assert voters(alone) == [1, 2, 3]
        cluster.wait_same_state()
    finally:
        for node in cluster.nodes.values():
            node.kill()


def test_a_node_of_a_cluster_that_has_not_changed_is_not_taken_for_one_that_joins(tmp_path: Path) -> None:
    """The log of a cluster at the first feature level does not name the nodes that it began with."""
    cluster = ClusterProcess(tmp_path)
    for each in cluster.nodes.values():
        each.module = "tests.versions.first_level_node"
    with cluster:
        leader = cluster.wait_leader()
        lost = next(each for each in cluster.nodes.values() if each is not leader)
        node = NodeProcess(lost.node_id, tmp_path / "again", *free_ports(2))
        node.arguments = ["--node-id", str(lost.node_id), "--data-dir", str(node.data_dir), "--join", leader.url]
        node.start()
        assert node.wait_exit() == ExitCode.BAD_CONFIG
        assert "start it with the same --peer options as the others" in node.output()


def test_a_node_that_joins_waits_until_who_is_asked_knows_its_cluster(cluster: ClusterProcess, tmp_path: Path) -> None:
    """A node that has lost its watermarks, as by a power loss, does not know which part of its log is committed."""
    node = empty_node(cluster, 4, tmp_path)
    founders = [cluster.nodes[number] for number in (1, 2, 3)]
    body = dict(zip(("node_id", "peer_address", "http_address"), addresses(node), strict=True))
    leader = cluster.wait_leader(among=founders)
    wait_for(lambda: leader.request("POST", MEMBERS, payload=body).status == 200, "the node to be added")
    wait_for(lambda: all(knows(each, 4) for each in founders), "all to know it")
    for each in founders:
        each.kill()
    (cluster.nodes[1].data_dir / "watermarks").unlink()
    cluster.nodes[1].start()
    node.start()
    wait_for(lambda: "not known to be committed" in node.output(), "the node to ask")
    for number in (2, 3):
        cluster.nodes[number].start()
    cluster.wait_ready()
    assert knows(node, 4)


def test_who_waits_for_a_node_that_is_down_is_told_so_and_may_stop_waiting(tmp_path: Path) -> None:
    alone = founder(tmp_path)
    alone.start()
    try:
        wait_for(alone.ready, "the founder")
        body = learner(4, free_ports(1)[0])
        wait_for(lambda: alone.request("POST", MEMBERS, payload=body).status == 200, "the node to be added")
        command = [*KEELMQ, "cluster", "promote", "4", "--wait", "--servers", alone.url]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                assert process.stderr is not None
                assert any("node 4 does not answer" in line for line in process.stderr)  # blocks until it says so
                process.send_signal(signal.SIGINT)
                output, errors = process.communicate(timeout=PATIENCE_S)
                assert (process.returncode, output) == (130, "")
                assert "Traceback" not in errors
            finally:
                process.kill()
    finally:
        alone.kill()


async def run(*arguments: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *KEELMQ, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode()


async def test_operators_add_and_remove_a_node_from_the_shell(cluster: ClusterProcess, tmp_path: Path) -> None:
    node = empty_node(cluster, 4, tmp_path)
    node.start()
    servers = ("--servers", ",".join(each.url for each in cluster.nodes.values() if each is not node))
    node_id, peer, url = addresses(node)
    status, output = await run("cluster", "add-node", str(node_id), peer, url, "--token-minutes", "15", *servers)
    assert status != 0
    assert "a new node needs none" in output
    status, output = await run("cluster", "status", "--json", *servers)
    assert '"node_id": 4' not in output, "nothing was added"
    for command in (
        ("add-node", str(node_id), peer, url),
        ("promote", "4", "--wait"),
        ("remove-node", "4", "--json"),
    ):
        status, output = await run("cluster", *command, *servers)
        assert status == 0, output
        assert ("4" in output.split()) == (command[0] != "remove-node"), output
