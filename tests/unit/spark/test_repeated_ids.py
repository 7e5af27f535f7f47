"""Messages whose ids other messages have, too, half ones or those of other topics: how they are folded, and the answers
about them.
"""

import xml.etree.ElementTree as ElementTree
from datetime import UTC, datetime
from pathlib import Path

import pytest

from keelmq_spark.folding.sink import LineageSink
from keelmq_spark.queries import answers
from keelmq_spark.queries.graph import Graph
from keelmq_spark.queries.pictures import story_picture
from keelmq_spark.queries.story_lanes import story_of
from keelmq_spark.tables.commits import Format
from keelmq_spark.tables.tables import Tables
from tests.unit.spark.folded import Folded, content, entries
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


@pytest.mark.parametrize(
    ("cut", "format"), [*((cut, "delta") for cut in (None, *range(2, 16))), (None, "parquet"), (8, "parquet")]
)
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


def test_a_half_message_whose_id_was_published_before_leaves_that_message_alone() -> None:
    log = History()
    log.publish("orders", "m-0")
    log.half("t1", "orders", "m-0")
    log.decide("COMMIT", "t1")  # without a PUBLISH: the id is known
    folded = Folded(log.table())
    states = [
        (node["state"], node["attrs"]["transaction_id"])
        for node in folded.all_nodes
        if node["node_id"] == "message:orders/m-0"
    ]
    assert states == [("published", None), ("committed", "t1")]


@pytest.mark.parametrize("visible", ["t1", "t2"])
def test_half_messages_of_two_transactions_with_one_id_are_two(visible: str) -> None:
    log = History()
    log.half("t1", "orders", "m-0", group="shop")
    log.half("t2", "orders", "m-0", group="web")
    log.decide("DISCARD", "t1")
    other = "t1" if visible == "t2" else "t2"
    log.commit(visible, "orders", "m-0", group="shop" if visible == "t1" else "web")
    log.half("t3", "orders", "m-0", group="late")
    log.decide("ROLLBACK", other)
    whole = Folded(log.table())
    assert content(Folded(*entries(log.table()), through_bytes=True)) == content(whole)
    rows = [(n["attrs"]["transaction_id"], n["state"]) for n in whole.all_nodes if n["kind"] == "message"]
    assert sorted(rows) == sorted([(visible, "published"), (other, "rolled_back"), ("t3", "half")])
    assert whole.of_kind("DECIDED_BY") == {("message:orders/m-0", f"transaction:{each}") for each in ("t1", "t2")}
    assert len(whole.edges) == len(whole.keys)


def test_a_delayed_message_with_the_id_of_a_half_message_is_another() -> None:
    log = History()
    log.half("t1", "orders", "m-0")
    log.entry({"type": "SCHEDULE", "topic": "orders", "queue": 0, "message_id": "m-0", "group": "web"})
    log.decide("DISCARD", "t1")
    log.publish("orders", "m-0", group="web")
    log.decide("ROLLBACK", "t1")
    whole = Folded(log.table())
    assert content(Folded(*entries(log.table()), through_bytes=True)) == content(whole)
    rows = [(n["attrs"]["group"], n["state"]) for n in whole.all_nodes if n["kind"] == "message"]
    assert sorted(rows) == [("shop", "rolled_back"), ("web", "published")]


@pytest.mark.parametrize("decision", ["COMMIT", "ROLLBACK"])
def test_where_batches_end_changes_nothing_about_an_id_that_is_published_while_it_is_half(decision: str) -> None:
    log = History()
    log.half("t1", "orders", "m-0")
    log.publish("orders", "m-0", group="web")
    log.decide(decision, "t1")
    whole = Folded(log.table())
    assert content(Folded(*entries(log.table()), through_bytes=True)) == content(whole)
    rows = {node["state"]: node for node in whole.all_nodes if node["node_id"] == "message:orders/m-0"}
    of_half = "committed" if decision == "COMMIT" else "rolled_back"
    assert [(state, rows[state]["attrs"]["transaction_id"]) for state in sorted(rows)] == sorted(
        [("published", None), (of_half, "t1")]
    )
    assert ("producer_group:web", "message:orders/m-0", "PRODUCED") in whole.keys


def test_a_story_has_no_deliveries_of_a_message_with_the_same_id_in_another_topic(tmp_path: Path) -> None:
    log = History()
    log.publish("orders", "17")
    log.publish("bills", "17")
    for attempt, kind in ((1, "RETRY"), (2, "DLQ")):
        log.retry("audit", "orders", 0, "17", attempt, kind)
        log.publish(f"%{kind}%audit", "17", attempt=attempt)
    log.ack("audit", "orders", 0, 1)
    log.ack("audit", "bills", 0, 1)
    log.write(tmp_path)
    with Graph(tmp_path) as graph:
        bill, order = (answers.story(graph, f"message:{topic}/17")["events"] for topic in ("bills", "orders"))
        lanes = {row.lane for row in story_of(graph, "message:bills/17").rows}
        bars = [bar.text for row in story_of(graph, "message:bills/17").rows for bar in row.bars]
    assert [(event["type"], event["topic"]) for event in bill] == [("PUBLISH", "bills"), ("ACK", "bills")]
    again = [event["topic"] for event in order if event["type"] == "PUBLISH"]
    assert again == ["orders", "%RETRY%audit", "%DLQ%audit"]
    assert lanes == {"topic:bills", "service:audit"}
    assert bars == ["published, queue 0 offset 0", "processed by audit"]


def test_two_messages_of_one_id_that_one_group_gives_back_have_their_own_deliveries(tmp_path: Path) -> None:
    log = History()
    for topic in ("orders", "bills"):
        log.publish(topic, "17")
    for topic in ("orders", "bills"):
        log.retry("audit", topic, 0, "17")
    for _ in range(2):
        log.publish("%RETRY%audit", "17", attempt=1)
    log.write(tmp_path)
    with Graph(tmp_path) as graph:
        for topic, last in (("orders", 5), ("bills", 6)):
            found = answers.story(graph, f"message:{topic}/17")["events"]
            assert [event["raft_index"] for event in found][-1] == last
            assert [event["type"] for event in found] == ["PUBLISH", "RETRY", "PUBLISH"]
