"""Retention by bytes on a real node: what goes, what is told of it, and what a purge leaves."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.background import retention_service
from store.features import FEATURES
from tests.unit.cluster.conftest import Node, node_config, running_node

CHECK_MS = 10
SEGMENT_BYTES = 1 << 16
BODY = "x" * 900


async def put(node: Node, **settings: int) -> Any:
    return await node.call("PUT", "/v1/topics/orders", {"queues": 2, **settings})


async def send(node: Node, count: int) -> None:
    for number in range(count):
        node.clock.now_ms += 1
        payload = {"messages": [{"body": BODY, "queue": number % 2}]}
        assert (await node.call("POST", "/v1/topics/orders/messages", payload)).status == 200


async def shown(node: Node) -> dict[str, Any]:
    topic = (await node.call("GET", "/v1/topics/orders")).body
    assert isinstance(topic, dict)
    assert topic["bytes"] == sum(each["bytes"] for each in topic["queue_offsets"])
    return topic


async def test_a_topic_keeps_its_bytes_and_tells_them(tmp_path: Path) -> None:
    fatal: list[str] = []
    async with running_node(node_config(tmp_path, retention_check_ms=CHECK_MS), fatal) as node:
        made = await put(node, retention_ms=-1, retention_bytes=10_000)
        assert (made.status, made.body["retention_bytes"], made.body["bytes"]) == (201, 10_000, 0)
        await send(node, 40)

        async def is_small() -> bool:
            return not node.core.state.still_exceeding(["orders"], 1)

        await node.wait(is_small)
        topic = await shown(node)
        assert 10_000 <= topic["bytes"] < 11_100
        starts = [each["min_offset"] for each in topic["queue_offsets"]]
        assert abs(starts[0] - starts[1]) <= 1  # the oldest go, whichever queue they are in
        assert [each["max_offset"] for each in topic["queue_offsets"]] == [20, 20]
        (listed,) = (await node.call("GET", "/v1/topics")).body["topics"]
        assert (listed["bytes"], listed["retention_bytes"]) == (topic["bytes"], 10_000)
        text = (await node.call("GET", "/metrics")).body.decode()
        assert f'keelmq_topic_bytes{{topic="orders"}} {float(topic["bytes"])}' in text
        assert (await put(node, retention_bytes=-1)).body["retention_bytes"] == -1
        for bad in (0, -2, 1 << 60):
            refused = await put(node, retention_bytes=bad)
            assert (refused.status, refused.body["code"]) == (400, "invalid_request")
    assert not fatal


async def test_no_look_at_the_topics_with_too_many_bytes_goes_through_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found in review: after each command the loop stood while up to 256 topics, with all their queues, were looked at:
    for a second when they had 256 queues each.
    """
    monkeypatch.setattr(retention_service, "PER_COMMAND", 8)
    looks: list[list[str]] = []
    names = [f"topic-{number}" for number in range(7)]
    limited: list[str] = []
    fatal: list[str] = []
    async with running_node(node_config(tmp_path, retention_check_ms=CHECK_MS), fatal) as node:
        state = node.core.state
        exceeding, still_exceeding = state.exceeding_topics, state.still_exceeding

        def all_at_once(limit: int) -> Iterator[tuple[str, list[int]] | None]:
            return exceeding(limit) if limited == names else iter(())

        def noted(topics: Iterable[str], limit: int) -> list[tuple[str, list[int]]]:
            looks.append(list(topics))
            return still_exceeding(looks[-1], limit)

        monkeypatch.setattr(state, "exceeding_topics", all_at_once)
        monkeypatch.setattr(state, "still_exceeding", noted)
        for name in names:
            assert (await node.call("PUT", f"/v1/topics/{name}", {"queues": 3})).status == 201
            for number in range(6):
                message = {"body": "x", "queue": number % 3}
                assert (await node.call("POST", f"/v1/topics/{name}/messages", {"messages": [message]})).status == 200
        for name in names:
            assert (await node.call("PUT", f"/v1/topics/{name}", {"retention_bytes": 1})).status == 200
            limited.append(name)

        async def are_small() -> bool:
            ranges = [each for name in names for each in state.queue_ranges(name)]
            return sum(each.max_offset - each.min_offset for each in ranges) == len(names)

        await node.wait(are_small)
    assert max(map(len, looks)) == 2  # with 3 queues each
    assert not fatal


async def test_the_log_of_topics_that_keep_for_ever_is_bounded_by_its_own_limit(tmp_path: Path) -> None:
    fatal: list[str] = []
    config = node_config(tmp_path, retention_check_ms=CHECK_MS, segment_bytes=SEGMENT_BYTES)
    async with running_node(config, fatal) as node:
        assert (await put(node, retention_ms=-1)).status == 201
        body = {"messages": [{"body": "y" * 100_000, "queue": 0}]}
        settings = await node.call("PUT", "/v1/cluster/settings", {"log_retention_bytes": 8 << 20})
        assert (settings.status, settings.body) == (
            200,
            {"reject_transactions": False, "log_retention_bytes": 8 << 20},
        )
        for _ in range(240):  # 24 MB
            node.clock.now_ms += 1
            assert (await node.call("POST", "/v1/topics/orders/messages", body)).status == 200

        async def is_short() -> bool:
            return node.core.log.end_position - node.core.log.base.position < (8 + 5) << 20

        await node.wait(is_short)
        assert (await shown(node))["bytes"] >= 7 << 20
        assert (await node.call("GET", "/v1/cluster/settings")).body["log_retention_bytes"] == 8 << 20
        for bad in (0, -2, "1G"):
            refused = await node.call("PUT", "/v1/cluster/settings", {"log_retention_bytes": bad})
            assert (refused.status, refused.body["code"]) == (400, "invalid_request")
    assert not fatal


async def test_a_purge_leaves_offsets_and_settings_as_they_are(node: Node) -> None:
    await put(node, retention_bytes=1 << 20)
    await send(node, 10)
    purged = await node.call("POST", "/v1/topics/orders/purge", {"queue": 1})
    gone = {"queue": 1, "min_offset": 5, "messages": 5}
    assert (purged.status, purged.body) == (200, {"topic": "orders", "messages": 5, "queues": [gone]})
    commit = {"offsets": [{"topic": "orders", "queue": 0, "offset": 2}]}
    assert (await node.call("PUT", "/v1/groups/g/offsets", commit)).status == 200
    purged = await node.call("POST", "/v1/topics/orders/purge")
    assert purged.body["messages"] == 5
    assert (await node.call("POST", "/v1/topics/orders/purge", {})).body["queues"] == []
    topic = await shown(node)
    assert (topic["bytes"], topic["retention_bytes"], topic["queues"]) == (0, 1 << 20, 2)
    await send(node, 2)
    for queue in (0, 1):  # a consumer goes on at the beginning that is left
        pulled = (await node.call("GET", f"/v1/topics/orders/queues/{queue}/messages?offset=2")).body
        assert [message["offset"] for message in pulled["messages"]] == [5]
        assert pulled["min_offset"] == 5
    (offset,) = (await node.call("GET", "/v1/groups/g/offsets")).body["offsets"]
    assert offset["lag"] == 1


@pytest.mark.parametrize(
    ("topic", "body", "status", "code"),
    [
        ("gone", {}, 404, "topic_not_found"),
        ("orders", {"queue": 2}, 404, "queue_not_found"),
        ("orders", {"queue": -1}, 400, "invalid_request"),
        ("orders", {"queue": 1 << 40}, 400, "invalid_request"),
        ("orders", {"queues": [1]}, 400, "invalid_request"),
        ("or ders", {}, 400, "invalid_topic"),
        ("RMQ_SYS_TRANS_HALF_TOPIC", {}, 403, "system_topic"),
    ],
)
async def test_a_purge_of_something_else_is_refused(
    node: Node, topic: str, body: dict[str, object], status: int, code: str
) -> None:
    await put(node)
    await send(node, 2)
    refused = await node.call("POST", f"/v1/topics/{topic}/purge", body)
    assert (refused.status, refused.body["code"]) == (status, code)
    assert sum(each["max_offset"] - each["min_offset"] for each in (await shown(node))["queue_offsets"]) == 2


async def test_below_their_level_the_fields_are_refused_and_nothing_changes(tmp_path: Path) -> None:
    levels, minimum, version = FEATURES.levels, FEATURES.minimum, FEATURES.version
    fatal: list[str] = []
    FEATURES.set_levels(levels[:1], 1, version, of_code=levels)  # the log begins as a node of level 1 begins it
    try:
        async with running_node(node_config(tmp_path), fatal) as node:
            await put(node)
            await send(node, 2)
    finally:
        FEATURES.set_levels(levels, minimum, version)
    async with running_node(node_config(tmp_path), fatal) as node:
        for method, path, body in (
            ("PUT", "/v1/topics/orders", {"retention_bytes": 1}),
            ("PUT", "/v1/topics/other", {"retention_bytes": 1}),
            ("PUT", "/v1/cluster/settings", {"log_retention_bytes": 1}),
            ("POST", "/v1/topics/orders/purge", {}),
        ):
            refused = await node.call(method, path, body)
            assert (refused.status, refused.body["code"]) == (409, "feature_not_enabled"), refused
        topic = (await node.call("GET", "/v1/topics/orders")).body
        assert (topic["bytes"], topic["retention_bytes"]) == (None, -1)
        assert [each["max_offset"] - each["min_offset"] for each in topic["queue_offsets"]] == [1, 1]
        assert 'keelmq_topic_bytes{topic="orders"}' not in (await node.call("GET", "/metrics")).body.decode()
    assert not fatal
