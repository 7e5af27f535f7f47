"""Tests nodes that move to other addresses: one of a running cluster, and all of a stopped one."""

import asyncio
import contextlib
import threading
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

from deploy.local_nodes import free_ports, make_secret
from keelmq.admin import Admin
from keelmq.errors import KeelMQError
from keelmq.producing.producer import Producer
from keelmq.transport.connection import Connection
from tests.e2e.cluster_process import ClusterProcess, NodeProcess, Reply, wait_for
from tests.e2e.fixtures import own_cluster
from tests.e2e.test_membership import MEMBERS, OPTIONS, addresses, empty_node, persist, producing, refused
from tests.patience import PATIENCE_S

OVERRIDE = ["--override-addresses", "1"]

cluster = own_cluster()


def peers_of(nodes: list[NodeProcess]) -> list[str]:
    listed = [f"{node.node_id}=127.0.0.1:{node.peer_port}={node.url}" for node in nodes]
    return [part for peer in listed for part in ("--peer", peer)]


def moved(node: NodeProcess) -> NodeProcess:
    """Give the node other ports, on which it listens from its next start on."""
    node.http_port, node.peer_port = free_ports(2)
    return node


def started_at(node: NodeProcess, nodes: list[NodeProcess], *more: str) -> None:
    node.arguments = ["--cluster-id", "e2e", "--node-id", str(node.node_id), "--data-dir", str(node.data_dir)]
    node.arguments += [*peers_of(nodes), *OPTIONS, "--peer-secret-file", str(make_secret(node.log_path.parent)), *more]
    node.start()


def listed(node: NodeProcess) -> dict[int, tuple[str, str]]:
    """Return the addresses of all nodes, as far as `node` knows."""
    status = node.status() or {"nodes": ()}
    return {each["node_id"]: (each["peer_address"], each["url"]) for each in status["nodes"]}


def places(nodes: list[NodeProcess]) -> dict[int, tuple[str, str]]:
    return {node_id: (peer, url) for node_id, peer, url in map(addresses, nodes)}


def alarms(node: NodeProcess) -> dict[str, str]:
    return {each["code"]: each["detail"] for each in (node.status() or {"alarms": ()})["alarms"]}


def replace_the_third(cluster: ClusterProcess, directory: Path) -> None:
    """Replace node 3 by node 4; from then on the log has the addresses of the nodes."""
    founders = list(cluster.nodes.values())
    joined = empty_node(cluster, 4, directory)
    joined.start()

    async def operate() -> None:
        with contextlib.closing(Connection([node.url for node in founders])) as connection:
            admin = Admin(connection)
            await persist(lambda: admin.put_topic("orders", queues=1))
            await persist(lambda: admin.add_node(*addresses(joined)))
            await persist(lambda: admin.promote_node(4))
            await persist(lambda: admin.remove_node(3))

    asyncio.run(operate())
    cluster.nodes.pop(3).kill()


def test_a_stopped_cluster_is_moved_as_a_whole(cluster: ClusterProcess, tmp_path: Path) -> None:
    """The cluster has two founders and a node that has joined; a node that was removed is listed and stays out."""
    gone = cluster.nodes[3]
    replace_the_third(cluster, tmp_path)
    leader = cluster.wait_leader(among=[cluster.nodes[1], cluster.nodes[2], cluster.nodes[4]])
    leader.call("POST", "/v1/topics/orders/messages", {"messages": [{"body": "before"}]})
    nodes = list(cluster.nodes.values())
    told = [*nodes, gone]
    for node in nodes:
        node.kill()
    for node in map(moved, nodes):
        started_at(node, told)
    wait_for(lambda: all("--override-addresses 1" in node.output() for node in nodes), "the next step to be told")
    assert cluster.leader() is None
    for node in nodes:
        node.kill()
        started_at(node, told, *OVERRIDE, *(["--join", nodes[0].url] if node.node_id == 4 else []))
    cluster.wait_ready()
    wait_for(lambda: all(listed(node) == places(nodes) for node in nodes), "the new addresses to be in the log")
    cluster.wait_leader().call("POST", "/v1/topics/orders/messages", {"messages": [{"body": "after"}]})
    for node in nodes:  # only the new addresses remain in their configuration
        node.kill()
        started_at(node, nodes)
    cluster.wait_ready()
    assert all(listed(node) == places(nodes) for node in nodes)
    page = cluster.wait_leader().call("GET", "/v1/topics/orders/queues/0/messages?offset=0")
    assert len(page["messages"]) == 2
    cluster.wait_same_state()


def test_an_override_that_was_forgotten_undoes_no_later_change(cluster: ClusterProcess) -> None:
    """The override stays in the configuration of two nodes, with addresses at which no node is any more."""
    nodes = list(cluster.nodes.values())
    leader = cluster.wait_leader()
    set_address(leader, leader.node_id, http_address=f"http://localhost:{leader.http_port}")
    for node in nodes:
        node.kill()
    before = peers_of(nodes)
    for node in nodes:
        started_at(node, nodes, *OVERRIDE)
    cluster.wait_ready()
    wait_for(lambda: listed(cluster.wait_leader()) == places(nodes), "the override to be in the log")
    last = next(node for node in nodes if node is not cluster.wait_leader())
    last.kill()
    set_address(cluster.wait_leader(), last.node_id, force=True, **where(moved(last)))
    started_at(last, nodes)
    cluster.wait_ready()
    for node in nodes:
        node.kill()
    for node in nodes:
        if node is not last:
            node.arguments = ["--cluster-id", "e2e", "--node-id", str(node.node_id), "--data-dir", str(node.data_dir)]
            node.arguments += [*before, *OPTIONS, *OVERRIDE]
            node.arguments += ["--peer-secret-file", str(make_secret(node.log_path.parent))]
        node.start()
    cluster.wait_ready()
    assert listed(cluster.wait_leader()) == places(nodes)
    cluster.wait_same_state()


def where(node: NodeProcess) -> dict[str, Any]:
    return {"peer_address": f"127.0.0.1:{node.peer_port}", "http_address": node.url}


def test_a_node_moves_while_the_cluster_is_written_to(cluster: ClusterProcess, tmp_path: Path) -> None:
    """A node is first stopped and its address changed, then restarted and its address changed. No send fails, and no
    message is lost. Clients find the node at its new address when it leads.
    """
    asyncio.run(_moves_under_load(cluster))


async def _moves_under_load(cluster: ClusterProcess) -> None:
    nodes = list(cluster.nodes.values())
    servers = [node.url for node in nodes]
    async with Producer(servers, send_timeout_ms=int(PATIENCE_S * 1000)) as producer:
        with contextlib.closing(Connection(servers)) as connection:
            admin = Admin(connection)
            await admin.put_topic("orders", queues=1)
            async with producing(producer) as sent:
                for stopped in (True, False):
                    leader = await asyncio.to_thread(cluster.wait_leader)
                    node = next(each for each in nodes if each is not leader)
                    await asyncio.to_thread(node.kill)
                    moved(node)
                    told: dict[str, Any] = where(node)
                    if stopped:
                        assert await refusal(admin.set_node_address(node.node_id, **told)) == "address_unreachable"
                        await persist(
                            lambda node=node, told=told: admin.set_node_address(node.node_id, **told, force=True)
                        )
                        started_at(node, nodes)
                    else:
                        started_at(node, nodes)
                        await asyncio.to_thread(wait_for, lambda node=node: alarms(node), "the node to notice")
                        assert "set-address" in alarms(node)["address_differs"]
                        await persist(lambda node=node, told=told: admin.set_node_address(node.node_id, **told))
                    await asyncio.to_thread(cluster.wait_ready)
                    await asyncio.to_thread(wait_for, lambda node=node: not alarms(node), "the alarm to be over")
                    await asyncio.to_thread(_make_leader, cluster, node)
                count = len(sent)
                async with asyncio.timeout(PATIENCE_S):
                    while len(sent) < count + 20:
                        await asyncio.sleep(0.02)
    assert listed(cluster.wait_leader()) == places(nodes)
    await asyncio.to_thread(cluster.wait_same_state)
    queue = cluster.wait_leader().call("GET", "/v1/topics/orders/queues/0/offsets?at=latest")
    assert queue["offset"] == len(sent)


def _make_leader(cluster: ClusterProcess, node: NodeProcess) -> None:
    def leads() -> bool:
        leader = cluster.wait_leader()
        if leader is not node:
            leader.terminate()  # it hands over to any other node
            leader.start()
        return leader is node

    wait_for(leads, "the node to lead")


async def refusal(work: Awaitable[Any]) -> str:
    try:
        await work
    except KeelMQError as exc:
        return str(exc.code)
    return "done"


def set_address(leader: NodeProcess, node_id: int, *, force: bool = False, **told: Any) -> Any:
    path = f"{MEMBERS}/{node_id}/address" + ("?force=true" if force else "")
    return wait_for(lambda: _done(leader.request("PUT", path, payload=told)), "the address to be changed")


def _done(reply: Reply) -> Any:
    if reply.status == 409 and reply.json()["code"] == "change_in_progress":
        return None
    assert reply.status == 200, reply
    return reply.json()


def test_a_wrong_address_is_refused_and_by_force_it_is_mended(cluster: ClusterProcess) -> None:
    leader = cluster.wait_leader()
    other, third = (node for node in cluster.nodes.values() if node is not leader)
    path = f"{MEMBERS}/{other.node_id}/address"
    before = listed(leader)
    assert refused(leader, "PUT", f"{MEMBERS}/9/address", {"http_address": "http://h:1"}) == "node_not_found"
    assert refused(leader, "PUT", path, {"peer_address": f"127.0.0.1:{third.peer_port}"}) == "node_exists"
    assert refused(leader, "PUT", path, {"http_address": third.url}) == "node_exists"
    nowhere = f"127.0.0.1:{free_ports(1)[0]}"
    assert refused(leader, "PUT", path, {"peer_address": nowhere}) == "address_unreachable"
    no_node = leader.request("PUT", path, payload={"peer_address": f"127.0.0.1:{third.http_port}"})
    assert no_node.json()["code"] == "address_unreachable"
    another = leader.request("PUT", path, payload={"peer_address": f"localhost:{third.peer_port}"}).json()
    assert f"this is node {third.node_id}, not {other.node_id}" in another["detail"]
    assert leader.request("PUT", path, payload={}).json()["code"] == "invalid_request"
    assert leader.request("PUT", path, payload={"peer_address": "0.0.0.0:7091"}).status == 400
    assert listed(leader) == before
    for node_id in (other.node_id, third.node_id):  # the log has wrong addresses for a majority
        set_address(leader, node_id, force=True, peer_address=f"127.0.0.1:{free_ports(1)[0]}")
    wait_for(lambda: {"address_differs"} <= alarms(other).keys() & alarms(third).keys(), "both to tell of it")
    for node in cluster.nodes.values():
        node.kill()
    cluster.start()
    # Each dials the nodes it can, and is dialled where it says that it is: that is a majority, but the two that nobody
    # finds do not find each other, and one of them may lead.
    for node in (other, third):
        wait_for(node.status, f"node {node.node_id} to be found at its address")
        found = cluster.wait_leader()
        set_address(found, node.node_id, peer_address=f"127.0.0.1:{node.peer_port}")
    assert {node_id: peer for node_id, (peer, _) in listed(cluster.wait_leader()).items()} == {
        node_id: peer for node_id, (peer, _) in before.items()
    }
    cluster.wait_same_state()


def test_a_move_survives_the_leader_that_was_asked_for_it(cluster: ClusterProcess) -> None:
    """The leader is killed right after the request: the move is made or not, and then it can be requested again."""
    leader = cluster.wait_leader()
    other = next(node for node in cluster.nodes.values() if node is not leader)
    other.kill()
    told = where(moved(other))

    def ask() -> None:
        with contextlib.suppress(OSError):
            leader.request("PUT", f"{MEMBERS}/{other.node_id}/address?force=true", payload=told)

    asking = threading.Thread(target=ask)
    asking.start()
    leader.kill()
    asking.join()
    nodes = list(cluster.nodes.values())
    started_at(other, nodes)
    leader.start()
    cluster.wait_ready()
    set_address(cluster.wait_leader(), other.node_id, **told)
    wait_for(lambda: all(listed(node) == places(nodes) for node in nodes), "all to know it")
    cluster.wait_same_state()


def test_a_moved_node_that_leads_writes_its_address_into_the_log(cluster: ClusterProcess) -> None:
    """While the log holds no configuration, each node goes by the addresses that it was started with, and they differ:
    the moved node knows its new address already, and the others only from the log.
    """
    first, *others = nodes = list(cluster.nodes.values())
    for node in nodes:
        node.kill()
    started_at(moved(first), nodes)
    for node in others:  # they do not stand before the moved node does
        node.start(extra=("--election-timeout-ms", "8000"))
    while (leader := cluster.wait_leader()) is not first:  # only where the machine kept it waiting for seconds
        leader.terminate()
        leader.start(extra=("--election-timeout-ms", "8000"))
    assert any(listed(node) != places(nodes) for node in others)
    set_address(first, first.node_id, **where(first))
    wait_for(lambda: all(listed(node) == places(nodes) for node in nodes), "all to know it")
