"""Measurements of a node's hot paths: durations, requests by route, topics; and the number of their series."""

import asyncio
import gc
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.parser import text_string_to_metric_families

from cluster.measures import Durations
from cluster.telemetry.process import GcPauses
from cluster.telemetry.topic_counters import OTHERS, SERIES_MAX, TOPICS_PER_STEP, TopicCounters
from raft.errors import NoLeader
from store.commands.entry import Proposal
from store.commands.topics import PutTopic
from tests.requirements import PROMETHEUS, path_of
from tests.unit.cluster.conftest import Node, node_config, running_node

TOPICS = 10_000
PER_REQUEST = 1_000
SERIES_AT_MOST = 12_000
GROUPED = 1_500


class Scrape:
    """One answer of `/metrics`."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.samples = {
            (sample.name, *sorted(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float:
        return self.samples[name, *sorted(labels.items())]

    def total(self, name: str) -> float:
        return sum(value for (each, *_), value in self.samples.items() if each == name)

    def series(self, name: str) -> int:
        return sum(1 for each, *_ in self.samples if each == name)


async def scrape(node: Node) -> Scrape:
    return Scrape((await node.call("GET", "/metrics")).body.decode())


def test_durations_are_counted_up_to_their_bound() -> None:
    durations = Durations((0.1, 1.0))
    for seconds in (0.05, 0.1, 0.5, 2.0):
        durations.observe(seconds)
    family = HistogramMetricFamily("x_seconds", "x")
    durations.add_to(family, [])
    shown = {sample.name + str(sample.labels.get("le", "")): sample.value for sample in family.samples}
    assert shown == {
        "x_seconds_bucket0.1": 2,
        "x_seconds_bucket1.0": 3,
        "x_seconds_bucket+Inf": 4,
        "x_seconds_count": 4,
        "x_seconds_sum": pytest.approx(2.65),
    }


def shown_topics(counters: TopicCounters) -> dict[str, tuple[float, float]]:
    messages, size_bytes = counters.families("x", "messages", "bytes")
    return {
        each.labels["topic"]: (each.value, size.value)
        for each, size in zip(messages.samples, size_bytes.samples, strict=True)
    }


def test_topics_beyond_the_limit_are_summed_and_counted() -> None:
    counters = TopicCounters(series_max=2)
    for topic in ("a", "b", "c", "d", "c", "a"):
        counters.add(topic, 2, 100)
    assert shown_topics(counters) == {"a": (4, 200), "b": (2, 100), OTHERS: (6, 300)}
    assert counters.summed == 2


def test_no_counter_falls_when_topics_are_deleted() -> None:
    counters = TopicCounters(series_max=2)
    for topic in ("a", "b", "c", "d"):
        counters.add(topic, 1, 10)
    assert not any(counters.forget_deleted({"a", "d"}.__contains__))
    assert counters.summed == 1
    assert shown_topics(counters) == {"a": (1, 10), OTHERS: (2, 20)}
    for topic in ("d", "e", "f"):  # d stays where it was counted, e gets the room, f finds none
        counters.add(topic, 1, 10)
    assert shown_topics(counters) == {"a": (1, 10), "e": (1, 10), OTHERS: (4, 40)}


def test_deleted_topics_are_forgotten_in_steps_between_which_topics_are_counted() -> None:
    counters, asked = TopicCounters(), list[str]()

    def exists(topic: str) -> bool:
        asked.append(topic)
        return topic.startswith("new")

    for number in range(5 * TOPICS_PER_STEP):
        counters.add(f"old-{number}", 1, 10)
    for number, _ in enumerate(counters.forget_deleted(exists)):
        assert len(asked) <= TOPICS_PER_STEP, "one step"
        asked.clear()
        counters.add(f"new-{number}", 1, 10)
    assert not [topic for topic in (*counters._own, *counters._summed) if not topic.startswith("new")]


async def test_a_node_that_nobody_scrapes_forgets_deleted_topics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cluster.operations.topic_gauges.FORGET_INTERVAL_S", 0.01)
    fatal: list[str] = []
    async with running_node(node_config(tmp_path), fatal) as node:
        counted = [node.core.topic_reads, node.broker.services._cluster._topic_gauges._appended]
        for topic in ("kept", "deleted"):
            await node.call("PUT", f"/v1/topics/{topic}", {"queues": 1})
            await node.call("POST", f"/v1/topics/{topic}/messages", {"messages": [{"body": "x"}]})
            assert (await node.call("GET", f"/v1/topics/{topic}/queues/0/messages?offset=0")).body["messages"]

        async def names(*topics: str) -> bool:
            return all(set(each._own) == set(topics) for each in counted)

        await node.wait(lambda: names("kept", "deleted"))
        assert (await node.call("DELETE", "/v1/topics/deleted")).status < 300
        await node.wait(lambda: names("kept"))
    assert not fatal


async def test_requests_are_measured_by_route(node: Node) -> None:
    await node.call("PUT", "/v1/topics/orders", {"queues": 1})
    await node.call("GET", "/v1/topics/orders")
    await node.call("GET", "/v1/topics/other")
    await node.call("GET", "/nowhere")
    await node.call("PROPFIND", "/nowhere")
    shown = await scrape(node)
    assert shown.value("keelmq_http_request_seconds_count", method="GET", route="/v1/topics/{topic}") == 2
    assert shown.value("keelmq_http_request_seconds_count", method="", route="other") == 2
    assert shown.value("keelmq_http_refusals_total", code="topic_not_found") == 1
    assert shown.value("keelmq_http_refusals_total", code="not_found") == 2
    assert shown.value("keelmq_http_requests_in_flight", method="GET", route="/metrics") == 1
    assert shown.total("keelmq_http_requests_in_flight") == 1


async def test_a_request_in_flight_is_counted_until_its_client_has_gone(node: Node) -> None:
    await node.call("PUT", "/v1/topics/orders", {"queues": 1})
    path, labels = "/v1/topics/orders/queues/0/messages?offset=0&wait_ms=30000", {"method": "GET"}
    labels["route"] = "/v1/topics/{topic}/queues/{queue}/messages"
    waiting = asyncio.create_task(node.call("GET", path))

    async def in_flight(count: int) -> bool:
        shown = await scrape(node)
        return shown.samples.get(("keelmq_http_requests_in_flight", *sorted(labels.items()))) == count

    await node.wait(lambda: in_flight(1))
    waiting.cancel()
    await node.wait(lambda: in_flight(0))
    assert (await scrape(node)).value("keelmq_http_request_seconds_count", **labels) == 1


async def test_refused_proposals_are_counted(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    await node.call("PUT", "/v1/topics/orders", {"queues": 2})
    await node.call("PUT", "/v1/topics/orders", {"queues": 1})  # apply refuses it
    monkeypatch.setattr(node.core.raft, "_handing_over", True)
    with pytest.raises(NoLeader):
        await node.core.propose(PutTopic("x", 1))
    monkeypatch.undo()
    shown = await scrape(node)
    assert shown.value("keelmq_proposals_refused_total", code="topic_exists_with_more_queues") == 1
    assert shown.value("keelmq_proposals_refused_total", code="no_leader") == 1


async def test_topics_count_what_comes_in_and_goes_out(node: Node) -> None:
    await node.call("PUT", "/v1/topics/orders", {"queues": 1})
    half = {"transaction_id": "t", "producer_group": "shop", "messages": [{"topic": "orders", "body": "1"}]}
    assert (await node.call("POST", "/v1/transactions", half)).status == 201
    await node.call("POST", "/v1/transactions/t/commit", {"source": "producer"})
    sent = {"messages": [{"body": "12"}, {"body": "345"}]}
    assert (await node.call("POST", "/v1/topics/orders/messages", sent)).status == 200
    pulled = await node.call("GET", "/v1/topics/orders/queues/0/messages?offset=1")
    assert len(pulled.body["messages"]) == 2
    popped = await node.call("POST", "/v1/groups/g/pop", {"topic": "orders", "invisible_ms": 60_000})
    assert len(popped.body["messages"]) == 3
    shown = await scrape(node)
    assert shown.value("keelmq_topic_appended_messages_total", topic="orders") == 3
    assert shown.value("keelmq_topic_appended_bytes_total", topic="orders") > 6
    assert shown.value("keelmq_topic_read_messages_total", topic="orders") == 5
    assert shown.value("keelmq_topic_read_bytes_total", topic="orders") > 5
    assert shown.value("keelmq_topic_messages", topic="orders") == 3


async def test_a_lone_node_has_no_margin_and_won_its_election(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = await scrape(node)
    assert shown.value("keelmq_raft_elections_won_recently") == 1
    monkeypatch.setattr("raft.election.election.RECENT_S", -1.0)
    assert (await scrape(node)).value("keelmq_raft_elections_won_recently") == 0
    assert shown.value("keelmq_raft_voters") == 1
    assert shown.value("keelmq_raft_quorum_margin") == 0
    assert shown.value("keelmq_raft_elections_total") == shown.value("keelmq_raft_elections_won_total") == 1
    assert shown.value("keelmq_disk_size_bytes") > shown.value("keelmq_disk_free_bytes") > 0
    assert shown.value("keelmq_index_memtable_bytes") > 0


def test_garbage_collections_are_measured_until_they_are_not() -> None:
    times = iter((1.0, 1.5))
    pauses = GcPauses(lambda: next(times))
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        pauses.start()
        gc.collect(2)
        pauses.stop()
        gc.collect(2)
    finally:
        if was_enabled:
            gc.enable()
    shown = {(each.name, *each.labels.values()): each.value for each in next(pauses.metrics()).samples}
    assert shown["keelmq_gc_pause_seconds_count", "2"] == 1
    assert shown["keelmq_gc_pause_seconds_sum", "2"] == 0.5


def promtool_says(text: str) -> str:
    """Return what `promtool check metrics` finds; nothing if names and text are as Prometheus wants them."""
    command = [path_of("promtool"), "check", "metrics"]
    checked = subprocess.run(command, input=text, capture_output=True, text=True)
    return checked.stdout + checked.stderr


def topic_name(number: int) -> str:
    return f"topic-{number:05}"


def requests_of(messages: list[Any]) -> Iterator[list[Any]]:
    for begin in range(0, len(messages), PER_REQUEST):
        yield messages[begin : begin + PER_REQUEST]


async def test_ten_thousand_topics_have_a_bounded_number_of_series(node: Node) -> None:
    made = [Proposal(PutTopic(topic_name(number), 1)) for number in range(TOPICS)]
    for proposals in requests_of(made):
        for outcome in await node.core.propose_all(proposals):
            assert not isinstance(outcome, Exception)
    messages = [{"topic": topic_name(number), "body": "1"} for number in range(TOPICS)]
    for number, part in enumerate(requests_of(messages)):
        half = {"transaction_id": f"t{number}", "producer_group": "shop", "messages": part}
        assert (await node.call("POST", "/v1/transactions", half)).status == 201
        assert (await node.call("POST", f"/v1/transactions/t{number}/commit", {"source": "producer"})).status == 200
    for begin in range(0, GROUPED, 500):
        offsets = [{"topic": topic_name(number), "queue": 0, "offset": 0} for number in range(begin, begin + 500)]
        assert (await node.call("PUT", "/v1/groups/g/offsets", {"offsets": offsets})).status == 200
    node.clock.now_ms += 7_000
    shown = await scrape(node)
    assert len(shown.samples) <= SERIES_AT_MOST
    for name, kind in (("appended_messages_total", "topic_appended"), ("messages", "topic_kept")):
        assert shown.series(f"keelmq_topic_{name}") == SERIES_MAX + 1
        summed = shown.value("keelmq_series_summed", kind=kind)
        assert summed >= TOPICS - SERIES_MAX
        assert shown.value(f"keelmq_topic_{name}", topic=OTHERS) >= TOPICS - SERIES_MAX
    assert shown.total("keelmq_topic_messages") == TOPICS
    assert shown.series("keelmq_consumer_lag_messages") == SERIES_MAX + 1
    assert shown.total("keelmq_consumer_lag_messages") == GROUPED
    assert shown.value("keelmq_consumer_lag_seconds", group=OTHERS, topic=OTHERS, queue="") == 7
    assert shown.value("keelmq_series_summed", kind="consumer_lag") == GROUPED - SERIES_MAX
    PROMETHEUS.require()
    assert await asyncio.to_thread(promtool_says, shown.text) == ""


async def test_the_lag_without_series_is_summed_anew_once_a_minute(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.operations.state_gauges.SERIES_MAX", 1)
    await node.call("PUT", "/v1/topics/orders", {"queues": 3})
    sent = {"messages": [{"body": "1", "queue": queue} for queue in range(3)]}
    assert (await node.call("POST", "/v1/topics/orders/messages", sent)).status == 200

    async def commit(offset: int) -> None:
        offsets = [{"topic": "orders", "queue": queue, "offset": offset} for queue in range(3)]
        assert (await node.call("PUT", "/v1/groups/g/offsets", {"offsets": offsets})).status == 200

    async def lags() -> list[float]:
        shown = await scrape(node)
        others = {"group": OTHERS, "topic": OTHERS, "queue": ""}
        own = {"group": "g", "topic": "orders", "queue": "0"}
        return [shown.value("keelmq_consumer_lag_messages", **labels) for labels in (own, others)]

    await commit(0)
    assert await lags() == [1, 2]
    await commit(1)
    assert await lags() == [0, 2]
    node.clock.now_ms += 60_000
    assert await lags() == [0, 0]
