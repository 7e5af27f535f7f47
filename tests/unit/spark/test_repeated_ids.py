"""Answers about messages whose ids half messages of others had, too."""

import xml.etree.ElementTree as ElementTree
from datetime import UTC, datetime
from pathlib import Path

import pytest

from keelmq_spark.folding.sink import LineageSink
from keelmq_spark.queries import answers
from keelmq_spark.queries.graph import Graph
from keelmq_spark.queries.pictures import story_picture
from keelmq_spark.tables.commits import Format
from keelmq_spark.tables.tables import Tables
from tests.unit.spark.history import START_US, History


def at(entry: int) -> datetime:
    return datetime.fromtimestamp(START_US / 1_000_000 + entry, UTC)


def others_with_ids() -> History:
    """Return a log in which transactions take the ids of messages that other producers publish: in `orders` when these
    are there, in `bills` before.
    """
    log = History()
    log.publish("orders", "m-0", "m-1", "m-2", group="web")
    for number in range(3):
        log.half(f"t{number}", "orders", f"m-{number}", causation_id="carts/c-0")
        log.half(f"u{number}", "bills", f"m-{number}", causation_id="carts/c-0")
    log.publish("bills", "m-0", "m-1", "m-2", group="web")
    log.publish("carts", "c-0", group="app")
    log.publish("bills", "m-3", group="late", causation_id="carts/c-0")
    log.ack("g", "orders", 0, 3)
    log.ack("g", "bills", 0, 3)
    for decision, number in (("ROLLBACK", 0), ("COMMIT", 1)):
        log.decide(decision, f"t{number}")
        log.decide(decision, f"u{number}")
    return log


@pytest.mark.parametrize("format", ["delta", "parquet"])
@pytest.mark.parametrize("cut", [None, *range(2, 16)])
def test_a_half_message_with_the_id_of_another_message_says_nothing_about_that(
    cut: int | None, format: Format, tmp_path: Path
) -> None:
    log = others_with_ids()
    if cut is not None:
        LineageSink(Tables(tmp_path, format)).write(log.between(1, cut), 1, cut)
    log.write(tmp_path, format)
    nodes = [f"message:{topic}/m-{number}" for topic in ("orders", "bills") for number in range(3)]
    with Graph(tmp_path) as graph:
        found = graph.nodes(nodes)
        assert [(each["state"], each["group"], each["transaction_id"]) for each in found] == [
            ("published", "web", None) for _ in nodes
        ]
        assert answers.impact(graph, "shop", at(0), at(100)) == []
        of_web = [(each["topic"], each["messages"]) for each in answers.impact(graph, "web", at(0), at(100))]
        assert of_web == [("bills", 3), ("orders", 3)]
        of_app = [(each["topic"], each["messages"]) for each in answers.impact(graph, "app", at(0), at(100))]
        assert of_app == [("carts", 1), ("bills", 1)]
        sent = {(each["group"], each["target"], each["messages"]) for each in answers.topic_graph(graph)}
        assert sent >= {("web", "orders", 3), ("web", "bills", 3), ("app", "carts", 1)}
        assert not [each for each in answers.topic_graph(graph) if each["group"] == "shop"]
        states = {each["state"]: each["n"] for each in answers.summary(graph)["nodes"] if each["kind"] == "message"}
        assert states == {"published": 8}
        assert [each["node_id"] for each in graph.walk("message:carts/c-0", forward=True)] == ["message:bills/m-3"]
        assert graph.walk("message:orders/m-0", forward=False) == []
        for node_id in nodes:
            edges = {(each["src"], each["kind"], each["dst"]) for each in answers.story(graph, node_id)["edges"]}
            topic = node_id.partition(":")[2].partition("/")[0]
            assert edges == {
                ("producer_group:web", "PRODUCED", node_id),
                (node_id, "IN_TOPIC", f"topic:{topic}"),
                (node_id, "CONSUMED_BY", "consumer_group:g"),
            }
            texts = [each.text for each in ElementTree.fromstring(story_picture(graph, node_id)).iter()]
            assert "web" in texts
            assert "shop" not in texts
        transactions = {
            each["node_id"]: each["state"] for each in graph.nodes([f"transaction:{t}" for t in ("t0", "u1", "t2")])
        }
        assert transactions == {
            "transaction:t0": "rolled_back",
            "transaction:u1": "committed",
            "transaction:t2": "prepared",
        }
