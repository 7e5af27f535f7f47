"""Readers of the log tell a node how far they are, and ask how far a number of bytes reaches."""

from pathlib import Path
from typing import Any

import pytest

from cluster.limits import LOG_READERS_MAX
from cluster.operations import log_readers
from tests.unit.cluster.conftest import Node, node_config, running_node


async def readers(node: Node) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await node.call("GET", "/v1/cluster")).body["log_readers"]
    return found


async def ask(node: Node, query: str) -> Any:
    answer = await node.call("GET", f"/v1/log/events?{query}")
    assert answer.status == 200, answer
    return answer


async def test_a_node_shows_its_readers_with_position_and_lag(node: Node) -> None:
    await node.call("PUT", "/v1/topics/orders", {"queues": 1})
    applied = node.core.state.applied_index
    await ask(node, "from_index=1")
    assert await readers(node) == [], "who does not name itself is no reader"
    await ask(node, f"from_index={applied + 1}&reader=spark:events")
    await ask(node, "from_index=1&reader=late")
    await ask(node, "from_index=2&reader=late")
    first, second = await readers(node)
    assert first.pop("silent_ms") >= 0
    assert first == {"reader": "late", "address": "127.0.0.1", "principal": None, "next_index": 2, "lag": applied - 1}
    assert (second["reader"], second["next_index"], second["lag"]) == ("spark:events", applied + 1, 0)
    refused = await node.call("GET", "/v1/log/events?from_index=1&reader=a%20job")
    assert (refused.status, refused.body["code"]) == (400, "invalid_request")
    assert len(await readers(node)) == 2


async def test_the_readers_that_are_kept_are_those_heard_last(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(LOG_READERS_MAX):
        await ask(node, f"from_index=1&to_index=1&reader=r{number}")
    await ask(node, "from_index=1&to_index=1&reader=r0")
    await ask(node, "from_index=1&to_index=1&reader=one-more")
    names = {each["reader"] for each in await readers(node)}
    assert names == {"r0", "one-more", *(f"r{number}" for number in range(2, LOG_READERS_MAX))}
    monkeypatch.setattr(log_readers, "FORGOTTEN_AFTER_S", 0.0)
    assert await readers(node) == []


async def test_bytes_reach_to_an_index_in_any_segment(tmp_path: Path) -> None:
    fatal: list[str] = []
    async with running_node(node_config(tmp_path, segment_bytes=1 << 16), fatal) as node:
        await node.call("PUT", "/v1/topics/orders", {"queues": 1})
        body = {"messages": [{"body": "x" * 20_000}]}
        for _ in range(12):
            await node.call("POST", "/v1/topics/orders/messages", body)
        log, last = node.core.log, node.core.state.applied_index
        sizes = {
            index: (log.position_of(index + 1) if index < last else log.end_position) - log.position_of(index)
            for index in range(log.first_index, last + 1)
        }

        async def reach(index: int, span_bytes: int) -> int:
            answer = await ask(node, f"from_index={index}&to_index={index}&span_bytes={span_bytes}")
            assert answer.body == b""
            return int(answer.headers["KeelMQ-Span-Index"])

        assert "KeelMQ-Span-Index" not in (await ask(node, "from_index=1&to_index=1")).headers
        assert await reach(1, 1) == 2
        assert await reach(1, 1 << 40) == last + 1
        assert await reach(last + 1, 1 << 40) == last + 1
        for count in (1, 2, 5, 9):
            begin = last - 10
            total = sum(sizes[index] for index in range(begin, begin + count))
            assert await reach(begin, total) == begin + count
            assert await reach(begin, total - 1) == begin + max(1, count - 1)
    assert not fatal
