"""A request whose client has stopped waiting is not proposed, and the answer says that nothing was stored."""

from typing import Any

import aiohttp
import pytest

from cluster.budgets.request_deadline import TIMEOUT_HEADER
from tests.unit.cluster.conftest import Node

PATH = "/v1/topics/orders/messages"


async def send(node: Node, timeout_ms: str | None) -> tuple[int, dict[str, Any]]:
    headers = {} if timeout_ms is None else {TIMEOUT_HEADER: timeout_ms}
    async with node.session.post(PATH, json={"messages": [{"body": "x"}]}, headers=headers) as response:
        return response.status, await response.json(content_type=None)


async def stored(node: Node) -> int:
    topic = (await node.call("GET", "/v1/topics/orders")).body
    return sum(queue["max_offset"] for queue in topic["queue_offsets"])


async def test_what_waits_for_the_log_for_longer_than_its_client_is_not_stored(node: Node) -> None:
    assert (await node.call("PUT", "/v1/topics/orders", {})).status == 201
    proposals = node.core.raft._proposals
    places, proposals._max_entries_in_flight = proposals._max_entries_in_flight, 0
    status, problem = await send(node, "30")
    assert (status, problem["code"]) == (429, "overloaded")
    assert "place in the log; nothing was stored" in problem["detail"]
    proposals._max_entries_in_flight = places
    assert (await send(node, "9000"))[0] == 200
    assert (await send(node, None))[0] == 200, "a header of an earlier request on the connection is over with that"
    assert await stored(node) == 2
    assert proposals.in_flight_bytes == 0


@pytest.mark.parametrize("given", ["0", "-1", "1.5", "soon", "", "3600001", "٣٠", "9" * 5_000])
async def test_a_time_that_is_none_is_refused(node: Node, given: str) -> None:
    assert (await node.call("PUT", "/v1/topics/orders", {})).status in (200, 201)
    try:
        status, problem = await send(node, given)
    except aiohttp.ClientError:  # not even HTTP
        return
    assert (status, problem["code"]) == (400, "invalid_request")
    assert TIMEOUT_HEADER in problem["detail"]
    assert await stored(node) == 0


async def test_reads_have_no_such_time(node: Node) -> None:
    async with node.session.get("/v1/topics", headers={TIMEOUT_HEADER: "soon"}) as response:
        assert response.status == 200
