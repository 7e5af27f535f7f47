"""Metrics that wake operators: undecided transactions, consumer lag, dead letters. The page lists them all."""

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from store.commands.transactions import Discard
from tests.unit.cluster.conftest import Node, node_config, running_node

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    """A node with quotas, whose metrics it shows only then."""
    quotas = tmp_path / "quotas.toml"
    quotas.write_text("[default]\n")
    fatal: list[str] = []
    async with running_node(node_config(tmp_path, quota_file=str(quotas)), fatal) as node:
        yield node
    assert not fatal


async def metrics(node: Node) -> dict[str, float]:
    """Return the printed values by name and labels."""
    text = (await node.call("GET", "/metrics")).body.decode()
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines}


async def produce(node: Node, count: int) -> None:
    messages = [{"body": str(number)} for number in range(count)]
    assert (await node.call("POST", "/v1/topics/orders/messages", {"messages": messages})).status == 200


async def commit(node: Node, offset: int, topic: str = "orders") -> None:
    offsets = [{"topic": topic, "queue": 0, "offset": offset}]
    assert (await node.call("PUT", "/v1/groups/g/offsets", {"offsets": offsets})).status == 200


async def test_undecided_transactions_and_their_ends(node: Node) -> None:
    await node.call("PUT", "/v1/topics/orders", {"queues": 1})
    for name in ("a", "b", "c"):
        half = {"transaction_id": name, "producer_group": "shop", "messages": [{"topic": "orders", "body": "1"}]}
        assert (await node.call("POST", "/v1/transactions", half)).status == 201
        node.clock.now_ms += 1_000
    shown = await metrics(node)
    assert shown["keelmq_transactions_prepared_total"] == shown["keelmq_transactions_undecided"] == 3
    assert shown["keelmq_transactions_undecided_age_seconds"] == 3
    await node.call("POST", "/v1/transactions/a/commit", {"source": "producer"})
    await node.call("POST", "/v1/transactions/b/rollback", {"source": "producer"})
    shown = await metrics(node)
    assert shown["keelmq_transactions_undecided"] == 1
    assert shown["keelmq_transactions_undecided_age_seconds"] == 1
    assert shown['keelmq_transactions_decided_total{state="committed"}'] == 1
    assert shown['keelmq_transactions_decided_total{state="rolled_back"}'] == 1
    await node.call("POST", "/v1/transactions/c/commit", {"source": "producer"})
    shown = await metrics(node)
    assert shown["keelmq_transactions_undecided"] == shown["keelmq_transactions_undecided_age_seconds"] == 0
    half = {"transaction_id": "d", "producer_group": "shop", "messages": [{"topic": "orders", "body": "1"}]}
    assert (await node.call("POST", "/v1/transactions", half)).status == 201
    await node.core.propose(Discard(("d",)))
    node.clock.now_ms += 7_000
    shown = await metrics(node)
    assert shown["keelmq_transactions_undecided"] == shown["keelmq_transactions_undecided_age_seconds"] == 0
    assert shown["keelmq_transactions_discarded_age_seconds"] == 7
    by_force = {"source": "operator", "force": True, "operator": "ann", "reason": "by phone"}
    assert (await node.call("POST", "/v1/transactions/d/rollback", by_force)).status == 200
    assert (await metrics(node))["keelmq_transactions_discarded_age_seconds"] == 0


async def test_lag_is_told_in_messages_and_in_seconds(node: Node) -> None:
    await node.call("PUT", "/v1/topics/orders", {"queues": 1})
    series = '{group="g",queue="0",topic="orders"}'
    await produce(node, 2)
    await commit(node, 0)
    node.clock.now_ms += 5_000
    await produce(node, 3)
    node.clock.now_ms += 1_500
    for offset, messages, seconds in ((0, 5, 6.5), (1, 4, 6.5), (2, 3, 1.5), (5, 0, 0)):
        await commit(node, offset)
        shown = await metrics(node)
        assert shown["keelmq_consumer_lag_messages" + series] == messages
        assert shown["keelmq_consumer_lag_seconds" + series] == seconds
        assert await waits_s(node) == (seconds or None)


async def waits_s(node: Node) -> float | None:
    """Return for how long the API says that the first message of the only queue of group g waits."""
    (plain,) = (await node.call("GET", "/v1/groups/g/offsets")).body["offsets"]
    (shown,) = (await node.call("GET", "/v1/groups/g/offsets?waits=true")).body["offsets"]
    since_ms = shown.pop("waits_since_ms", None)
    assert shown == plain
    return None if since_ms is None else (node.clock.now_ms - since_ms) / 1000


async def test_what_pop_consumers_hold_is_as_old_as_it_is(node: Node) -> None:
    await node.call("PUT", "/v1/topics/orders", {"queues": 1})
    series, pop = '{group="g",queue="0",topic="orders"}', "/v1/groups/g/pop"
    handles = []
    for _ in range(3):
        await produce(node, 1)
        answer = await node.call("POST", pop, {"topic": "orders", "invisible_ms": 3_600_000})
        handles.append(answer.body["messages"][0]["receipt_handle"])
        node.clock.now_ms += 1_000
    await produce(node, 1)
    node.clock.now_ms += 500
    held_longer = {"receipt_handle": handles[2], "invisible_ms": 7_200_000}
    assert (await node.call("POST", f"{pop}/invisible", held_longer)).status == 200
    shown = await metrics(node)
    for handle, messages, seconds in ((handles[1], 4, 3.5), (handles[0], 3, 3.5), (handles[2], 2, 1.5), (None, 1, 0.5)):
        assert shown["keelmq_consumer_lag_messages" + series] == messages
        assert shown["keelmq_consumer_lag_seconds" + series] == seconds
        assert await waits_s(node) == seconds
        if handle is not None:
            assert (await node.call("POST", f"{pop}/ack", {"receipt_handles": [handle]})).status == 200
            shown = await metrics(node)


async def test_retries_and_dead_letters_are_counted_once(node: Node) -> None:
    await node.call("PUT", "/v1/topics/orders", {"queues": 1})
    await node.call("PUT", "/v1/groups/g", {"retry_max_attempts": 1, "retry_delays_ms": [1]})
    await produce(node, 2)
    retries = "/v1/groups/g/retries"

    async def give_back(topic: str, offset: int) -> Any:
        answer = await node.call("POST", retries, {"messages": [{"topic": topic, "queue": 0, "offset": offset}]})
        assert answer.status == 200, answer.body
        return answer.body["results"][0]["outcome"]

    assert await give_back("orders", 0) == "scheduled"
    assert await give_back("orders", 0) == "already_given_back"
    node.clock.now_ms += 10

    async def is_back() -> bool:
        path = "/v1/topics/%25RETRY%25g/queues/0/messages?offset=0"
        answer = await node.call("GET", path)
        return answer.status == 200 and len(answer.body["messages"]) == 1

    await node.wait(is_back)
    assert await give_back("%RETRY%g", 0) == "dead_lettered"
    assert (await node.call("POST", "/v1/groups/g/dead-letters/replay", {"offsets": [0]})).status == 200
    assert (await node.call("POST", "/v1/groups/g/dead-letters/replay", {"offsets": [0]})).status == 200
    shown = await metrics(node)
    assert shown['keelmq_messages_given_back_total{outcome="scheduled"}'] == 1
    assert shown['keelmq_messages_given_back_total{outcome="dead_lettered"}'] == 1
    assert shown["keelmq_dead_letters_replayed_total"] == 1
    assert shown['keelmq_dead_letters{group="g"}'] == 1


async def test_the_free_space_is_shown(node: Node) -> None:
    assert (await metrics(node))["keelmq_disk_free_bytes"] > 0


async def test_the_page_lists_what_a_node_shows(node: Node) -> None:
    await test_retries_and_dead_letters_are_counted_once(node)
    text = (await node.call("GET", "/metrics")).body.decode()
    shown = {
        family.name + ("_total" if family.type == "counter" else ""): (family.type, family.documentation)
        for family in text_string_to_metric_families(text)
        if family.name.startswith("keelmq_")
    }
    rows = [
        tuple(cell.strip() for cell in line.strip("|").split("|"))
        for line in PAGE.read_text().splitlines()
        if line.startswith("| `keelmq_")
    ]
    assert {name.strip("`"): (kind, what) for name, kind, _, what in rows} == shown
    labelled = {
        sample.name.removesuffix("_bucket").removesuffix("_count").removesuffix("_sum"): set(sample.labels) - {"le"}
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    for name, _, labels, _ in rows:
        listed = {label.strip(" `") for label in labels.split(",") if label.strip()}
        assert listed == labelled.get(name.strip("`"), listed), name


async def test_expressions_of_the_page_use_metrics_that_exist(node: Node) -> None:
    text = PAGE.read_text()
    known = set(re.findall(r"^\| `(keelmq_\w+)`", text, re.MULTILINE))
    used = {name.removesuffix("_bucket") for name in re.findall(r"keelmq_\w+", text)}
    assert used == known
