"""Tests pop calls while a node's process is stopped: its connections open and nothing is answered, whichever node a
client asks first.
"""

import asyncio
from collections.abc import Sequence
from itertools import permutations
from typing import Literal

import pytest
from typer.testing import CliRunner

from keelmq import Connection
from keelmq.cli.app import app
from keelmq.consuming.pop_calls import PopCalls
from keelmq.consuming.selection import Selection
from tests.e2e import fixtures
from tests.e2e.cluster_process import ClusterProcess, ok

pytestmark = pytest.mark.process

INVISIBLE_MS = 3_600_000

cluster = fixtures.own_cluster()


def calls_of(urls: Sequence[str]) -> tuple[Connection, PopCalls]:
    """Return a connection that knows nothing yet and asks the first URL first, and its pop calls."""
    connection = Connection(urls, rng=lambda: 0.0)
    return connection, PopCalls(connection, "shippers", "orders", Selection(), "test")


async def pop_change_and_ack(urls: Sequence[str]) -> None:
    """Pop two messages, extend the lease of one and acknowledge it, give back the other; each call is the first of a
    connection.
    """
    connection, calls = calls_of(urls)
    first, second = [each.receipt_handle for each in await calls.pop(2, INVISIBLE_MS, 0, "earliest")]
    connection.close()
    connection, calls = calls_of(urls)
    await calls.hold(first, INVISIBLE_MS)
    connection.close()
    connection, calls = calls_of(urls)
    assert await calls.ack([first]) == {first: True}
    connection.close()
    connection, calls = calls_of(urls)
    await calls.give_back(second)
    connection.close()


@pytest.mark.parametrize("who", ["follower", "leader"])
def test_every_call_of_a_pop_consumer_finds_the_leader(
    cluster: ClusterProcess, who: Literal["follower", "leader"]
) -> None:
    leader = cluster.wait_leader()
    ok(leader.request("PUT", "/v1/topics/orders", payload={"queues": 1}))
    orders = list(permutations(cluster.urls))
    bodies = [{"body": str(number)} for number in range(3 * len(orders))]
    ok(leader.request("POST", "/v1/topics/orders/messages", payload={"messages": bodies}))
    stopped = leader if who == "leader" else cluster.follower()
    stopped.pause()
    cluster.wait_leader(among=[node for node in cluster.alive() if node is not stopped])
    for urls in orders:
        asyncio.run(pop_change_and_ack(urls))
        shown = CliRunner(env={"KEELMQ_SERVERS": ",".join(urls)}).invoke(
            app, ["pop", "orders", "--group", "shippers", "--max", "1"]
        )
        assert (shown.exit_code, len(shown.stdout.splitlines())) == (0, 1), shown.output
