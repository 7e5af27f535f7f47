"""Delayed messages on a real node: their delivery, the answers before it, and the waiters that are woken."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest
from crc32c import crc32c

from cluster.background.timer_service import TIMERS_PER_COMMAND
from cluster.limits import DELAY_LEVELS_S, DELAY_MAX_MS
from tests.unit.cluster.conftest import START_MS, Answer, Node, node_config, running_node

MSGPACK = "application/msgpack"
MESSAGES = "/v1/topics/orders/messages"
SCHEDULED = "/v1/topics/orders/scheduled"
HALF = {"producer_group": "shop"}


@pytest.fixture(autouse=True)
async def topic(node: Node) -> None:
    assert (await node.call("PUT", "/v1/topics/orders", {"queues": 1})).status == 201


async def send(node: Node, *messages: dict[str, Any]) -> list[dict[str, Any]]:
    answer = await node.call("POST", MESSAGES, {"messages": [{"body": "x", **message} for message in messages]})
    assert answer.status == 200, answer
    results: list[dict[str, Any]] = answer.body["results"]
    return results


async def delivered(node: Node) -> list[str]:
    path = "/v1/topics/orders/queues/0/messages?offset=0&max_messages=10000"
    answer = await node.call("GET", path)
    return [message["body"] for message in answer.body["messages"]]


async def until_delivered(node: Node, count: int) -> list[str]:
    async def all_there() -> list[str] | None:
        found = await delivered(node)
        return found if len(found) >= count else None

    found: list[str] = await node.wait(all_there)
    return found


async def waiting(node: Node) -> list[str]:
    answer = await node.call("GET", SCHEDULED)
    assert answer.status == 200
    return [message["message_id"] for message in answer.body["messages"]]


async def metric(node: Node, name: str) -> float:
    answer = await node.call("GET", "/metrics")
    lines = answer.body.decode().splitlines()
    return float(next(line for line in lines if line.startswith(f"{name} ")).split()[1])


async def test_a_message_is_delivered_when_its_time_has_come(node: Node) -> None:
    (result,) = await send(node, {"delay_ms": 100, "message_id": "m"})
    assert result == {"message_id": "m", "queue": 0, "deliver_at_ms": START_MS + 100, "duplicate": False}
    poll = asyncio.create_task(node.call("GET", "/v1/topics/orders/queues/0/messages?offset=0&wait_ms=30000"))
    assert await metric(node, "keelmq_timers_pending") == 1
    node.clock.now_ms += 99
    await send(node, {"body": "now"})
    assert await delivered(node) == ["now"]
    assert [message["body"] for message in (await poll).body["messages"]] == ["now"]
    poll = asyncio.create_task(node.call("GET", "/v1/topics/orders/queues/0/messages?offset=1&wait_ms=30000"))
    node.clock.now_ms += 1
    (message,) = (await poll).body["messages"]
    assert (message["message_id"], message["offset"], message["stored_at_ms"]) == ("m", 1, START_MS + 100)
    (again,) = await send(node, {"message_id": "m"})
    assert again == {"message_id": "m", "queue": 0, "offset": 1, "duplicate": True}
    assert await metric(node, "keelmq_timers_pending") == 0
    assert await metric(node, "keelmq_timers_fired_total") == 1


async def test_levels_are_those_of_rocketmq(node: Node) -> None:
    results = await send(node, *({"delay_level": level} for level in range(1, 19)))
    minutes = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120)
    expected_s = (1, 5, 10, 30, *(60 * each for each in minutes))
    assert [result["deliver_at_ms"] - START_MS for result in results] == [1000 * each for each in expected_s]
    assert expected_s == DELAY_LEVELS_S


async def test_a_time_that_is_past_is_at_once(node: Node) -> None:
    results = await send(node, {"deliver_at_ms": 0}, {"deliver_at_ms": START_MS}, {"delay_ms": 0})
    assert sorted(result["offset"] for result in results) == [0, 1, 2]
    assert all("deliver_at_ms" not in result for result in results)


async def test_messages_of_one_request_have_their_own_times(node: Node) -> None:
    results = await send(
        node, {"body": "late", "delay_ms": 100}, {"body": "now"}, {"body": "soon", "deliver_at_ms": START_MS + 50}
    )
    assert [result.get("deliver_at_ms") for result in results] == [START_MS + 100, None, START_MS + 50]
    node.clock.now_ms += 100
    assert await until_delivered(node, 3) == ["now", "soon", "late"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"delay_level": 0},
        {"delay_level": 19},
        {"delay_ms": -1},
        {"delay_ms": DELAY_MAX_MS + 1},
        {"deliver_at_ms": START_MS + DELAY_MAX_MS + 1},
        {"deliver_at_ms": -1},
        {"delay_ms": 1, "delay_level": 1},
        {"delay_ms": 1, "deliver_at_ms": START_MS},
    ],
)
async def test_wrong_times_are_refused(node: Node, wrong: dict[str, int]) -> None:
    answers = [await node.call("POST", MESSAGES, {"messages": [{"body": "x", **wrong}]})]
    half = {**HALF, "messages": [{"topic": "orders", "body": "x", **wrong}]}
    answers.append(await node.call("POST", "/v1/transactions", half))
    answers.append(await post_block(node, MESSAGES, wrong))
    for answer in answers:
        assert (answer.status, answer.body["code"]) == (400, "invalid_request")
    assert await waiting(node) == []


async def test_the_longest_delay_is_taken(node: Node) -> None:
    results = await send(node, {"delay_ms": DELAY_MAX_MS}, {"deliver_at_ms": START_MS + DELAY_MAX_MS})
    assert [result["deliver_at_ms"] - START_MS for result in results] == [DELAY_MAX_MS] * 2


async def post_block(node: Node, path: str, more: dict[str, Any]) -> Answer:
    block = msgspec.msgpack.encode([[b"one"], [b"two"]])
    body = {"batches": [{"batch_id": "b", "crc32c": crc32c(block), "block": block, **more}]}
    headers = {"Content-Type": MSGPACK}
    async with node.session.post(path, data=msgspec.msgpack.encode(body), headers=headers) as response:
        content = await response.read()
        decode = msgspec.msgpack.decode if response.content_type == MSGPACK else msgspec.json.decode
        return Answer(response.status, decode(content), response.headers)


async def test_a_msgpack_batch_has_one_time(node: Node) -> None:
    first = await post_block(node, MESSAGES, {"delay_level": 1})
    expected = {"batch_id": "b", "queue": 0, "deliver_at_ms": START_MS + 1_000, "count": 2, "duplicate": False}
    assert first.body["results"] == [expected]
    assert (await post_block(node, MESSAGES, {"delay_level": 1})).body["results"] == [{**expected, "duplicate": True}]
    node.clock.now_ms += 1_000
    assert await until_delivered(node, 2) == ["one", "two"]
    (placed,) = (await post_block(node, MESSAGES, {"delay_level": 1})).body["results"]
    assert placed == {"batch_id": "b", "queue": 0, "offset": 0, "count": 2, "duplicate": True}


async def test_a_message_is_taken_back(node: Node) -> None:
    await send(node, {"delay_ms": 100, "message_id": "a"}, {"delay_ms": 100, "message_id": "b"})
    assert (await node.call("DELETE", f"{SCHEDULED}/a")).status == 204
    assert (await node.call("DELETE", f"{SCHEDULED}/a")).status == 204
    assert await waiting(node) == ["b"]
    node.clock.now_ms += 100
    await until_delivered(node, 1)
    for gone in ("b", "never"):
        answer = await node.call("DELETE", f"{SCHEDULED}/{gone}")
        assert (answer.status, answer.body["code"], answer.body["message_id"]) == (404, "not_scheduled", gone)
    assert (await node.call("DELETE", "/v1/topics/nowhere/scheduled/b")).body["code"] == "topic_not_found"
    assert (await node.call("DELETE", f"{SCHEDULED}/{'x' * 129}")).body["code"] == "invalid_request"


async def test_the_listing_goes_on_where_a_page_ended(node: Node) -> None:
    await send(node, *({"delay_ms": 10_000 - each, "message_id": f"m{each}"} for each in range(5)))
    first = (await node.call("GET", f"{SCHEDULED}?limit=3")).body
    second = (await node.call("GET", f"{SCHEDULED}?limit=3&after={first['next']}")).body
    found = [*first["messages"], *second["messages"]]
    assert [message["message_id"] for message in found] == ["m4", "m3", "m2", "m1", "m0"]
    assert found[0] == {
        "message_id": "m4",
        "queue": 0,
        "deliver_at_ms": START_MS + 9_996,
        "scheduled_at_ms": START_MS,
    }
    assert second["next"] is None
    for wrong in ("limit=0", "limit=1001", "after=x", "more=1"):
        assert (await node.call("GET", f"{SCHEDULED}?{wrong}")).body["code"] == "invalid_request"
    assert (await node.call("GET", "/v1/topics/nowhere/scheduled")).body["code"] == "topic_not_found"


async def test_delay_from_the_commit(node: Node) -> None:
    messages = [
        {"topic": "orders", "body": "relative", "delay_ms": 100},
        {"topic": "orders", "body": "past", "deliver_at_ms": START_MS + 1},
        {"topic": "orders", "body": "plain"},
    ]
    half = {**HALF, "transaction_id": "t", "messages": messages}
    assert (await node.call("POST", "/v1/transactions", half)).status == 201
    node.clock.now_ms += 5_000
    decided = (await node.call("POST", "/v1/transactions/t/commit")).body
    due_ms = START_MS + 5_100
    assert decided["positions"] == [
        {"topic": "orders", "queue": 0, "deliver_at_ms": due_ms, "count": 1},
        {"topic": "orders", "queue": 0, "offset": 0, "count": 1},
        {"topic": "orders", "queue": 0, "offset": 1, "count": 1},
    ]
    assert (await node.call("GET", SCHEDULED)).body["messages"][0]["transaction_id"] == "t"
    node.clock.now_ms += 100
    assert await until_delivered(node, 3) == ["past", "plain", "relative"]
    (position, *_) = (await node.call("GET", "/v1/transactions/t")).body["positions"]
    assert position == {"topic": "orders", "queue": 0, "offset": 2, "deliver_at_ms": due_ms, "count": 1}


async def test_topic_types(node: Node) -> None:
    for kind, status in (("normal", 403), ("fifo", 403), ("transaction", 403), ("delay", 200), ("any", 200)):
        await node.call("PUT", f"/v1/topics/{kind}", {"type": kind})
        answer = await node.call("POST", f"/v1/topics/{kind}/messages", {"messages": [{"body": "x", "delay_level": 1}]})
        assert answer.status == status
        assert status == 200 or answer.body["code"] == "topic_type_mismatch"


async def test_more_than_one_command_takes_are_delivered_in_order(node: Node) -> None:
    count = 3 * TIMERS_PER_COMMAND + 1
    bodies = [f"{number:04}" for number in range(count)]
    for begin in range(0, count, 200):
        await asyncio.gather(*(send(node, {"body": body, "delay_ms": 100}) for body in bodies[begin : begin + 200]))
    node.clock.now_ms += 100
    assert sorted(await until_delivered(node, count)) == bodies
    assert await metric(node, "keelmq_timers_fired_total") == count


async def test_an_earlier_timer_wakes_the_service(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the wake-up can deliver the message: the service sleeps for longer than the test may take."""
    monkeypatch.setattr("cluster.background.timer_service.RECHECK_S", 3_600.0)
    woken = asyncio.create_task(node.call("GET", "/v1/topics/orders/queues/0/messages?offset=0&wait_ms=30000"))
    await send(node, {"body": "first", "delay_ms": 5})
    node.clock.now_ms += 5
    assert len((await woken).body["messages"]) == 1
    await send(node, {"body": "later", "delay_ms": DELAY_MAX_MS})
    await send(node, {"body": "soon", "delay_ms": 20})
    node.clock.now_ms += 20
    assert await until_delivered(node, 2) == ["first", "soon"]


def reports_of_lateness(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [message for message in caplog.messages if "delivered late" in message]


async def test_what_is_late_is_reported_once(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="cluster.background.timer_service")
    count = TIMERS_PER_COMMAND + 10
    await asyncio.gather(*(send(node, {"delay_ms": 50 + number}) for number in range(count)))
    node.clock.now_ms += 3_600_000
    await until_delivered(node, count)

    async def all_reported() -> list[str]:
        reports = reports_of_lateness(caplog)  # more than one when the machine stood, and with it the leader
        return reports if sum(int(report.split()[0]) for report in reports) == count else []

    latest = f"delayed messages were delivered late, the latest {3_600_000 - 50} ms after"
    assert any(latest in report for report in await node.wait(all_reported))
    assert await metric(node, "keelmq_timer_lateness_seconds_count") == count


async def test_what_is_due_in_time_is_not_reported(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    await send(node, {"delay_ms": 50})
    node.clock.now_ms += 51
    await until_delivered(node, 1)
    assert await metric(node, 'keelmq_timer_lateness_seconds_bucket{le="0.005"}') == 1
    assert not reports_of_lateness(caplog)


async def test_halves_of_delayed_messages_are_refused_while_too_many_wait(tmp_path: Path) -> None:
    """Committed, they would wait beyond the limit: a commit is never refused."""

    def half(name: str, **more: Any) -> dict[str, Any]:
        return {
            "transaction_id": name,
            "producer_group": "shop",
            "messages": [{"topic": "orders", "body": "x", **more}],
        }

    delay = {"delay_ms": 3_600_000}
    async with running_node(node_config(tmp_path / "limited", max_timers=1), []) as node:
        await node.call("PUT", "/v1/topics/orders", {"queues": 1})
        for name in ("a", "b"):
            assert (await node.call("POST", "/v1/transactions", half(name, **delay))).status == 201
        assert (await node.call("POST", "/v1/transactions/a/commit")).status == 200
        refused = await node.call("POST", "/v1/transactions", half("c", **delay))
        assert (refused.status, refused.body["code"]) == (429, "too_many_timers")
        both = {"transactions": [half("c", **delay), half("d")]}
        results = (await node.call("POST", "/v1/transactions/batch", both)).body["results"]
        assert [each.get("problem", {}).get("code") for each in results] == ["too_many_timers", None]
        again = await node.call("POST", "/v1/transactions", half("b", **delay))
        assert again.body["duplicate"], "its answer may have been lost"
        assert (await node.call("POST", "/v1/transactions/b/commit")).status == 200
        assert (await node.call("GET", "/v1/transactions/c")).status == 404
