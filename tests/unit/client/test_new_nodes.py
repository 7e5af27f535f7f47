"""Nodes that came after the connection was made: they are found, and outlive those it was told of."""

from keelmq.connection import Connection
from keelmq.http1 import ConnectFailed, HttpResponse
from keelmq.retry import Deadline
from tests.unit.client.scripted import SERVERS, Request, ScriptedTransport, json_answer, redirect


class Cluster:
    """The nodes of SERVERS are replaced: first the leader moves to n4, then n5 is the only one that is left."""

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
