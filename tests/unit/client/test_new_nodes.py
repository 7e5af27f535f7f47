"""Nodes that came after the connection was made are found, and outlive the nodes that it was given."""

from typing import Any

import pytest

from keelmq.transport.connection import NODES_KNOWN_S, Connection
from keelmq.transport.http1 import ConnectFailed, HttpResponse
from keelmq.transport.retry import Deadline
from tests.unit.client.scripted import SERVERS, Request, ScriptedTransport, json_answer, problem, redirect


class Cluster:
    """A cluster that replaces the nodes of SERVERS: first the leader moves to n4, then n5 is the only node left."""

    def __init__(self) -> None:
        self.leader = "n4"
        self.gone: set[str] = set()

    def __call__(self, request: Request) -> HttpResponse:
        if request.node in self.gone:
            raise ConnectFailed(f"{request.node} is gone")
        if request.target == "/v1/cluster":
            return json_answer(
                {
                    "leader_url": f"http://{self.leader}:1",
                    "nodes": [{"url": "http://n4:1"}, {"url": "http://n5:1"}, {"url": "nonsense"}, {"url": ""}],
                }
            )
        return json_answer({}) if request.node == self.leader else redirect(f"http://{self.leader}:1/v1/x")


async def write(connection: Connection) -> None:
    await connection.call("POST", "/v1/x", body=b"{}", deadline=Deadline(60_000), tries=20)


async def test_a_cluster_is_found_when_all_nodes_it_began_with_are_gone() -> None:
    cluster = Cluster()
    transport = ScriptedTransport(cluster, answers_cluster=True)
    connection = Connection(SERVERS, transport=transport, rng=lambda: 0.0, avoid_slow_nodes=False)
    await write(connection)
    assert connection.current == "http://n4:1"
    await write(connection)  # has it asked for the nodes, beside the call
    assert connection._asking is not None
    await connection._asking
    assert [request.node for request in transport.requests if request.target == "/v1/cluster"] == ["n4"]
    cluster.gone, cluster.leader = {"n1", "n2", "n3", "n4"}, "n5"
    await write(connection)
    assert connection.current == "http://n5:1"
    connection.close()


async def test_a_node_that_does_not_name_the_others_costs_nothing() -> None:
    cluster = Cluster()

    def script(request: Request) -> HttpResponse:
        return json_answer({}, 500) if request.target == "/v1/cluster" else cluster(request)

    transport = ScriptedTransport(script, answers_cluster=True)
    connection = Connection(SERVERS, transport=transport, rng=lambda: 0.0, avoid_slow_nodes=False)
    for _ in range(3):
        await write(connection)
    assert connection._asking is not None
    await connection._asking
    await write(connection)
    connection.close()


class Views:
    """The answers of each reachable node at /v1/cluster. The leader takes requests; the others redirect to it."""

    def __init__(self) -> None:
        self.of: dict[str, dict[str, Any]] = {}
        self.now_s = 1_000.0
        self.connection = Connection(
            SERVERS[:1],
            transport=ScriptedTransport(self._answer, answers_cluster=True),
            rng=lambda: 0.0,
            clock=lambda: self.now_s,
            avoid_slow_nodes=False,
        )

    def say(self, node: str, leader: str | None, index: int, *nodes: str, **more: Any) -> None:
        leader_url = None if leader is None else f"http://{leader}:1"
        named = [{"url": f"http://{each}:1"} for each in nodes]
        self.of[node] = {"leader_url": leader_url, "configuration_index": index, "nodes": named, **more}

    async def call(self, method: str) -> str:
        """Make a call and return the node that the connection uses from now on."""
        await self.connection.call(method, "/v1/x", body=b"{}", deadline=Deadline(60_000), tries=20)
        return self.connection.current.removeprefix("http://").removesuffix(":1")

    async def learn_from_current(self) -> None:
        """Learn the nodes beside a call, as a connection in use does after a while."""
        self.now_s += NODES_KNOWN_S
        await self.call("POST")
        assert self.connection._asking is not None
        await self.connection._asking

    def _answer(self, request: Request) -> HttpResponse:
        view = self.of.get(request.node)
        if view is None:
            raise ConnectFailed(f"{request.node} is gone")
        if request.target == "/v1/cluster":
            return json_answer(view)
        if view["leader_url"] is None:
            return json_answer({"stale": True}) if view.get("readable") else problem(503, "no_leader")
        leads = view["leader_url"] == f"http://{request.node}:1"
        return json_answer({}) if leads else redirect(view["leader_url"])


async def moved_to_n7() -> Views:
    """Return the views after the cluster has become n5 to n7 and left n1 behind, which the connection was given."""
    views = Views()
    for node in ("n5", "n6", "n7"):
        views.say(node, "n7", 90, "n5", "n6", "n7")
    views.say("n1", "n7", 90, "n5", "n6", "n7")
    assert await views.call("GET") == "n7"
    return views


def n5_takes_over(views: Views) -> None:
    del views.of["n7"]
    for node in ("n5", "n6"):
        views.say(node, "n5", 90, "n5", "n6", "n7")


@pytest.mark.parametrize("says", [{"removed": True, "index": 99}, {"removed": False, "index": 40}])
async def test_what_a_node_remembers_that_was_left_behind_replaces_nothing(says: dict[str, Any]) -> None:
    """The node was removed, or does not know the last configuration yet."""
    views = await moved_to_n7()
    views.say("n1", None, says["index"], "n1", "n2", "n3", "n4", removed=says["removed"])
    n5_takes_over(views)
    assert await views.call("GET") == "n5"


async def test_nothing_is_read_from_a_node_that_was_removed() -> None:
    """The messages on a removed node grow older for ever."""
    views = await moved_to_n7()
    views.say("n1", None, 40, "n1", "n2", removed=True, readable=True)
    n5_takes_over(views)
    response = await views.connection.call("GET", "/v1/x", deadline=Deadline(60_000))
    assert response.body == b"{}"
    assert views.connection.current == "http://n5:1"


@pytest.mark.parametrize("index", [90, 91])
async def test_the_same_or_a_later_configuration_replaces_what_was_known(index: int) -> None:
    views = await moved_to_n7()
    views.say("n7", "n7", index, "n7", "n8")
    await views.learn_from_current()
    assert [node.host for node in views.connection._known.all] == ["n1", "n7", "n8"]


async def test_a_cluster_begun_anew_under_the_same_addresses_is_found_and_followed() -> None:
    """Everything learnt is gone. For long, the new cluster's log is shorter than that of the last one."""
    views = await moved_to_n7()
    views.of.clear()
    views.say("n1", "n1", 0, "n1")
    assert await views.call("POST") == "n1"
    views.say("n1", "n1", 7, "n1", "n8", "n9")
    await views.learn_from_current()
    views.of.clear()  # n1, all that the connection was given, goes
    views.say("n8", "n9", 9, "n8", "n9")
    views.say("n9", "n9", 9, "n8", "n9")
    assert await views.call("POST") == "n9"
