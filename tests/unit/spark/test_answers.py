"""The answers of the tables, and the command's display of them."""

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from keelmq_spark.cli import app
from keelmq_spark.queries import answers
from keelmq_spark.queries.drawing import Arrow, Box, draw
from keelmq_spark.queries.graph import Graph, NoTables
from keelmq_spark.queries.page import page
from keelmq_spark.queries.pictures import story_picture
from keelmq_spark.tables.commits import Format
from keelmq_spark.tables.errors import TablesError
from keelmq_spark.tables.storage import storage_of
from keelmq_spark.tables.tables import Tables
from tests.unit.spark.history import START_US, History, shop


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lineage")
    shop().write(path)
    return path


@pytest.fixture(scope="module")
def graph(tables: Path) -> Iterator[Graph]:
    with Graph(tables) as opened:
        yield opened


def cli(tables: Path, *arguments: str) -> Any:
    """Return the JSON that the command prints."""
    done = CliRunner().invoke(app, [*arguments, "--tables", str(tables), "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def at(entry: int) -> datetime:
    return datetime.fromtimestamp(START_US / 1_000_000 + entry, UTC)


@pytest.mark.parametrize(
    ("what", "found"),
    [
        ("a-0", ["message:orders/a-0"]),
        ("orders/a-0", ["message:orders/a-0"]),
        ("message:orders/a-0", ["message:orders/a-0"]),
        ("t1", ["transaction:t1"]),
        ("topic:orders", ["topic:orders"]),
        ("nothing", []),
        ("shipments/a-0", []),
    ],
)
def test_what_may_be_asked_about(graph: Graph, what: str, found: list[str]) -> None:
    assert graph.find(what) == found


def test_the_story_of_a_message_that_was_given_back_and_died(graph: Graph) -> None:
    story = answers.story(graph, "message:orders/later-0")
    types = [event["type"] for event in story["events"]]
    assert types == ["SCHEDULE", "PUBLISH", "RETRY", "PUBLISH", "DLQ", "PUBLISH", "ACK"]
    kinds = [edge["kind"] for edge in story["edges"]]
    assert {"PRODUCED", "IN_TOPIC", "RETRY_OF", "DEAD_LETTERED", "CONSUMED_BY"} == set(kinds)


def test_the_story_of_a_topic_is_about_its_last_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keelmq_spark.queries.answers.LIMIT", 3)
    log = History()
    for number in range(5):
        log.publish("orders", f"m-{number}", group="web")
    log.write(tmp_path)
    with Graph(tmp_path) as graph:
        story = answers.story(graph, "topic:orders")
        assert [edge["src"] for edge in story["edges"]] == [f"message:orders/m-{number}" for number in (2, 3, 4)]
        assert len(story["related"]) == 3
        assert len(answers.story(graph, "producer_group:web")["edges"]) == 3


def test_the_story_of_a_transaction(graph: Graph) -> None:
    story = answers.story(graph, "transaction:t1")
    assert [event["type"] for event in story["events"]] == ["HALF", "COMMIT", "PUBLISH"]
    assert [edge["src"] for edge in story["edges"]] == ["message:orders/t1-0"]


def test_ancestors_and_descendants(graph: Graph) -> None:
    came_from = answers.ancestors(graph, "message:shipments/s-1")
    assert {(fact["node_id"], fact["depth"]) for fact in came_from} == {
        ("message:orders/b-0", 1),
        ("message:orders/t1-0", 1),
    }
    led_to = answers.descendants(graph, "message:orders/a-0")
    assert [(fact["node_id"], fact["group"]) for fact in led_to] == [("message:shipments/s-0", "shipping")]


def test_a_walk_ends_in_a_circle_at_its_depth_and_finds_causes_without_a_topic(tmp_path: Path) -> None:
    log = History()
    log.publish("t", "a", causation_id="t/c")
    log.publish("t", "b", causation_id="a")
    log.publish("t", "c", causation_id="t/b")
    log.write(tmp_path)
    with Graph(tmp_path) as graph:
        assert [fact["node_id"] for fact in graph.walk("message:t/a", forward=True)] == ["message:t/b", "message:t/c"]
        assert [fact["node_id"] for fact in graph.walk("message:t/c", forward=False)] == ["message:t/b", "message:t/a"]
        assert [fact["node_id"] for fact in graph.walk("message:t/a", forward=True, depth=1)] == ["message:t/b"]


def test_what_a_producer_touched(graph: Graph) -> None:
    facts = answers.impact(graph, "shop", at(0), at(100))
    assert {(fact["topic"], fact["consumer_group"], fact["messages"], fact["depth"]) for fact in facts} == {
        ("orders", "audit", 1, 0),
        ("orders", "shipping", 1, 0),
        ("shipments", "audit", 1, 1),
    }
    assert answers.impact(graph, "shop", at(50), at(100)) == []


def test_what_was_never_visible_counts_nowhere(tmp_path: Path) -> None:
    log = History()
    log.half("t1", "orders", "m-0")
    log.half("t2", "orders", "m-1", causation_id="orders/m-9")
    log.decide("ROLLBACK", "t2")
    log.entry({"type": "SCHEDULE", "topic": "orders", "queue": 0, "message_id": "m-2", "group": "shop"})
    log.entry({"type": "CANCEL", "topic": "orders", "queue": 0, "message_id": "m-2"})
    log.publish("orders", "m-3", group="shop")
    log.write(tmp_path)
    with Graph(tmp_path) as graph:
        (fact,) = answers.impact(graph, "shop", at(0), at(100))
        assert (fact["topic"], fact["messages"]) == ("orders", 1)
        assert [(f["group"], f["target"], f["messages"]) for f in answers.topic_graph(graph)] == [("shop", "orders", 1)]


def test_causes_without_a_topic_are_followed_everywhere(tmp_path: Path) -> None:
    log = History()
    log.publish("orders", "o-0", group="web")
    log.publish("shipments", "s-0", group="shipping", causation_id="o-0")
    log.publish("invoices", "i-0", group="billing", causation_id="shipments/s-0,nowhere-0")
    log.write(tmp_path)
    with Graph(tmp_path) as graph:
        facts = answers.impact(graph, "web", at(0), at(100))
        assert [(f["topic"], f["messages"], f["depth"]) for f in facts] == [
            ("orders", 1, 0),
            ("shipments", 1, 1),
            ("invoices", 1, 2),
        ]
        graph_facts = {(f["source"], f["group"], f["target"]) for f in answers.topic_graph(graph)}
        assert ("orders", "shipping", "shipments") in graph_facts
        story = answers.story(graph, "message:orders/o-0")
        assert ("message:shipments/s-0", "message:orders/o-0") in {(e["src"], e["dst"]) for e in story["edges"]}
        unknown = [f["node_id"] for f in answers.orphans(graph) if f["what"] == "unknown cause"]
        assert unknown == ["message:invoices/i-0"]
        for node_id in ("message:orders/o-0", "message:shipments/s-0"):
            texts = [each.text for each in ElementTree.fromstring(story_picture(graph, node_id)).iter()]
            assert {"o-0", "s-0", "message:orders/o-0@shipping → message:shipments/s-0"} <= set(texts)
            assert "?/o-0" not in texts


def test_open_dead_letters_are_those_that_the_group_did_not_process_since(tmp_path: Path) -> None:
    log = History()
    log.publish("orders", "a", "b", "c", group="web", key="k")
    for number, name in enumerate("abc"):
        log.retry("g", "orders", number, name, kind="DLQ")
    log.ack("g", "orders", 0, 3)
    log.publish("%DLQ%g", "a", "b", "c", attempt=1)
    log.retry("h", "orders", 0, "a", kind="DLQ")
    log.retry("g", "orders", 2, "c", attempt=0)  # an operator replays it
    log.publish("%RETRY%g", "c", attempt=0)
    log.ack("g", "%RETRY%g", 0, 1)
    log.ack("g", "orders", 0, 1)  # after a reset
    log.write(tmp_path)
    found = cli(tmp_path, "dead-letters")
    assert [(each["node_id"], each["consumer_group"]) for each in found] == [
        ("message:orders/b", "g"),
        ("message:orders/a", "h"),
    ]
    assert (found[0]["key"], found[0]["producer_group"]) == ("k", "web")
    assert [each["node_id"] for each in cli(tmp_path, "dead-letters", "--group", "h")] == ["message:orders/a"]
    assert cli(tmp_path, "dead-letters", "--limit", "1") == found[:1]


def test_a_dead_letter_that_was_processed_before_it_died_is_open(tmp_path: Path) -> None:
    log = History()
    log.publish("orders", "a", "b", "c")
    log.ack("g", "orders", 0, 3)
    log.reset("g", "orders", 3, 0)  # everything once more, and now it fails
    for number, name in enumerate("ab"):
        log.retry("g", "orders", number, name, kind="DLQ")
    log.ack("g", "orders", 0, 3)
    log.publish("%DLQ%g", "a", "b", attempt=1)
    log.write(tmp_path)
    assert [each["node_id"] for each in cli(tmp_path, "dead-letters")] == ["message:orders/a", "message:orders/b"]
    log.retry("g", "orders", 0, "a", attempt=0)  # an operator replays it
    log.publish("%RETRY%g", "a", attempt=0)
    log.ack("g", "%RETRY%g", 0, 1)
    log.write(tmp_path)
    assert [each["node_id"] for each in cli(tmp_path, "dead-letters")] == ["message:orders/b"]
    log.reset("g", "orders", 3, 0)
    again = log.retry("g", "orders", 0, "a", kind="DLQ")
    log.ack("g", "orders", 0, 1)
    log.publish("%DLQ%g", "a", attempt=1)
    log.write(tmp_path)
    found = {each["node_id"]: each["dead_since"] for each in cli(tmp_path, "dead-letters")}
    assert sorted(found) == ["message:orders/a", "message:orders/b"]
    assert datetime.fromisoformat(found["message:orders/a"]) == at(again)


def test_resets_are_told_or_show_in_the_commits_after_them(tmp_path: Path) -> None:
    log = History()
    log.publish("orders", *"abcdef")
    log.ack("g", "orders", 0, 4)
    log.ack("g", "orders", 1, 2)
    log.ack("g", "orders", 2, 6)
    log.ack("pops", "orders", 5, 6)
    log.ack("pops", "orders", 3, 4)
    log.ack("told", "orders", 0, 4)
    log.reset("told", "orders", 4, 1)
    log.ack("told", "orders", 1, 2)
    log.reset("told", "orders", 2, 5)
    log.reset("told", "orders", 5, 5)
    log.reset("other", "orders", None, 3)
    log.write(tmp_path)
    found, back, on = cli(tmp_path, "resets")
    assert [(each["consumer_group"], each["reset_from"], each["reset_to"]) for each in (back, on)] == [
        ("told", 4, 1),
        ("told", 2, 5),
    ]
    assert back["after"] == back["before"], "the log has the reset itself"
    assert (found["consumer_group"], found["reset_from"], found["reset_to"], found["event_id"]) == ("g", 4, 1, "0:3:0")


def test_unresolved_transactions_by_age(graph: Graph) -> None:
    (fact,) = answers.unresolved(graph, 60, at(9) + timedelta(seconds=61))
    assert (fact["transaction_id"], fact["state"], fact["age_s"]) == ("t3", "discarded", 61.0)
    assert answers.unresolved(graph, 60, at(9) + timedelta(seconds=59)) == []


def test_orphans(tmp_path: Path) -> None:
    log = shop()
    log.publish("orders", "lonely", causation_id="elsewhere/x")
    log.write(tmp_path)
    with Graph(tmp_path) as graph:
        assert [(fact["what"], fact["node_id"]) for fact in answers.orphans(graph)] == [
            ("not consumed", "message:orders/lonely"),
            ("unknown cause", "message:orders/lonely"),
        ]


def test_messages_that_were_purged_wait_for_nobody(tmp_path: Path) -> None:
    log = History()
    log.publish("orders", "a-0", "a-1", "a-2")
    log.ack("shipping", "orders", 0, 1)
    log.purge("orders", 0, 2)
    log.write(tmp_path)
    log.purge("orders", 2, 3)
    log.publish("orders", "b-0")
    log.write(tmp_path)
    with Graph(tmp_path) as graph:
        assert [fact["node_id"] for fact in answers.orphans(graph)] == ["message:orders/b-0"]
        kinds = [edge["kind"] for edge in answers.story(graph, "message:orders/a-0")["edges"]]
        assert sorted(kinds) == ["CONSUMED_BY", "IN_TOPIC", "PURGED_FROM"]


def test_the_summary_says_where_the_tables_end_though_nothing_happened_there(tmp_path: Path) -> None:
    log = History()
    log.publish("orders", "o-0")
    log.entry()
    log.entry()
    log.write(tmp_path)
    assert cli(tmp_path, "summary")["events"] == {"n": 1, "raft_index": 1, "end_index": 4}
    log.entry()
    log.write(tmp_path)
    assert cli(tmp_path, "summary")["events"]["end_index"] == 5


def test_tables_without_an_event_are_read_without_pyspark(tmp_path: Path) -> None:
    log = History()
    log.entry()
    log.write(tmp_path)
    code = "import sys; sys.modules['pyspark'] = None; from keelmq_spark.cli import main; main()"
    command = [sys.executable, "-c", code, "summary", "--json", "--tables", str(tmp_path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["events"] == {"n": 0, "raft_index": None, "end_index": 2}


def test_topics_lead_to_topics(graph: Graph) -> None:
    facts = {(f["source"], f["group"], f["target"], f["messages"]) for f in answers.topic_graph(graph)}
    assert ("orders", "shipping", "shipments", 2) in facts, "one of them has two causes"
    assert (None, "web", "orders", 3) in facts
    assert ("shipments", "audit", None, 2) in facts


def test_latency_and_redeliveries(graph: Graph) -> None:
    (fact,) = [f for f in answers.latency(graph) if f["topic"] == "shipments"]
    assert (fact["consumer_group"], fact["messages"], fact["max_ms"]) == ("audit", 2, 20_000.0)
    assert [(f["node_id"], f["redeliveries"], f["dead_lettered_by"]) for f in answers.redeliveries(graph)] == [
        ("message:orders/b-0", 1, None),
        ("message:orders/later-0", 1, "shipping"),
    ]


def test_every_command_answers_in_json(tables: Path) -> None:
    assert cli(tables, "show", "a-0")["node"]["state"] == "published"
    assert cli(tables, "ancestors", "s-0")[0]["node_id"] == "message:orders/a-0"
    assert cli(tables, "descendants", "a-0")[0]["node_id"] == "message:shipments/s-0"
    times = ["--from", at(0).strftime("%Y-%m-%dT%H:%M:%S"), "--to", at(100).strftime("%Y-%m-%dT%H:%M:%S")]
    assert len(cli(tables, "impact", "--producer-group", "shop", *times)) == 3
    assert [fact["transaction_id"] for fact in cli(tables, "unresolved", "--older-than", "0")] == ["t3"]
    assert cli(tables, "orphans") == []
    assert len(cli(tables, "redeliveries", "--limit", "1")) == 1
    assert cli(tables, "graph")
    assert cli(tables, "latency")
    assert cli(tables, "summary")["events"]["n"] == shop().table().num_rows


def test_every_command_prints_tables_for_people(tables: Path) -> None:
    for arguments in (["show", "later-0"], ["ancestors", "s-1"], ["graph"], ["latency"], ["orphans"], ["summary"]):
        done = CliRunner().invoke(app, [*arguments, "--tables", str(tables)])
        assert done.exit_code == 0, done.output
        assert done.stdout


def test_what_is_not_there_is_said(tables: Path, tmp_path: Path) -> None:
    missing = CliRunner().invoke(app, ["show", "nothing", "--tables", str(tables)])
    assert (missing.exit_code, "nothing is not in the tables" in missing.stderr) == (1, True)
    no_tables = CliRunner().invoke(app, ["orphans", "--tables", str(tmp_path)])
    assert (no_tables.exit_code, "keelmq-lineage run" in no_tables.stderr) == (1, True)
    with pytest.raises(NoTables):
        Graph(tmp_path)


@pytest.mark.parametrize("command", [["run", "--once"], ["orphans"], ["compact"]])
@pytest.mark.parametrize("url", ["gs://bucket/lineage", "file:///lineage"])
def test_other_stores_are_refused_and_no_directory_of_their_name_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str], url: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, [*command, "--tables", url])
    assert done.exit_code == 2
    assert "s3://BUCKET/PREFIX" in " ".join(done.output.split())
    for place in (Path(url), Path("s3://bucket/lineage")):  # a Path has lost a slash
        with pytest.raises(TablesError, match="s3://BUCKET/PREFIX"):
            storage_of(place)
    assert list(tmp_path.iterdir()) == []


def test_tables_without_an_edge_can_be_asked(tmp_path: Path) -> None:
    log = History()
    log.entry({"type": "SCHEDULE", "topic": "orders", "queue": 0, "message_id": "later-0"})
    log.write(tmp_path)
    with Graph(tmp_path) as graph:
        assert answers.story(graph, "message:orders/later-0")["edges"] == []
        assert answers.topic_graph(graph) == []


@pytest.mark.parametrize("format", ["delta", "parquet"])
def test_tables_without_a_row_answer_that_there_is_nothing(format: Format, tmp_path: Path) -> None:
    log = History()
    for _ in range(4):
        log.entry()
    log.write(tmp_path, format)
    for command in ("summary", "orphans", "unresolved", "graph", "latency", "redeliveries", "dead-letters", "resets"):
        assert not cli(tmp_path, command) or command == "summary"
    assert cli(tmp_path, "summary")["events"]["n"] == 0
    log.publish("orders", "a-0")
    log.write(tmp_path)
    assert cli(tmp_path, "summary")["events"]["n"] == 1


@pytest.mark.parametrize("format", ["delta", "parquet"])
def test_what_is_open_is_told_when_everything_else_is_pruned(format: Format, tmp_path: Path) -> None:
    log = History()
    log.half("t1", "orders", "t1-0")
    log.write(tmp_path, format)
    written = Tables(tmp_path)
    written.recover()
    written.prune(at(100))
    with Graph(tmp_path) as graph:
        assert graph.rows("SELECT * FROM events") == []
        found = answers.unresolved(graph, 0, at(100))
        assert [each["transaction_id"] for each in found] == ["t1"]
        assert answers.story(graph, "transaction:t1")["node"]["state"] == "prepared"
        assert graph.find("t1-0") == ["message:orders/t1-0"]


def test_an_id_in_several_topics_has_to_be_said_with_its_topic(tmp_path: Path) -> None:
    log = History()
    log.publish("orders", "order-17")
    log.publish("shipments", "order-17")
    log.write(tmp_path, "parquet")
    asked = CliRunner().invoke(app, ["show", "order-17", "--tables", str(tmp_path)])
    assert (asked.exit_code, "message:orders/order-17, message:shipments/order-17" in asked.stderr) == (2, True)
    assert cli(tmp_path, "show", "shipments/order-17")["node"]["node_id"] == "message:shipments/order-17"


def test_pictures_are_svg_or_a_page(tables: Path, tmp_path: Path) -> None:
    svg, page, topics = tmp_path / "a.svg", tmp_path / "a.html", tmp_path / "topics.svg"
    cli(tables, "show", "orders/b-0", "--picture", str(svg))
    texts = [element.text for element in ElementTree.parse(svg).iter() if element.tag.endswith("text")]
    assert {"b-0", "s-1", "shipping", "shipments", "at a group, then given back"} <= set(texts)
    cli(tables, "descendants", "orders/b-0", "--picture", str(page))
    assert "<table>" in page.read_text()
    cli(tables, "graph", "--picture", str(topics))
    assert {"orders", "shipments", "web"} <= {element.text for element in ElementTree.parse(topics).iter()}
    wrong = CliRunner().invoke(app, ["graph", "--tables", str(tables), "--picture", "a.png"])
    assert wrong.exit_code == 2


def test_a_picture_of_names_with_control_characters_is_svg(tmp_path: Path) -> None:
    log = History()
    log.publish("orders", "a-0", group="sh\x1b[31m\x00op", causation_id="\x01\n\uffff<z")
    log.write(tmp_path)
    with Graph(tmp_path) as graph:
        texts = [each.text for each in ElementTree.fromstring(story_picture(graph, "message:orders/a-0")).iter()]
    assert {"sh\\x1b[31m\\x00op", "?/\\x01\\x0a\\uffff<z"} <= set(texts)


def test_a_drawing_escapes_its_texts_and_survives_circles() -> None:
    boxes = [Box("a", "topic", "<a & b>"), Box("b", "topic", "b"), Box("c", "topic", "c")]
    svg = draw(
        boxes, [Arrow("a", "b"), Arrow("b", "a", "<"), Arrow("b", "c"), Arrow("c", "c"), Arrow("a", "gone")], "<h>"
    )
    root = ElementTree.fromstring(svg)
    assert "<a & b>" in [element.text for element in root.iter()]
    assert len([element for element in root if element.tag.endswith("path")]) == 4
    assert "&lt;x&gt;" in page(svg, "h", [["n"], ["<x>"]])


@pytest.mark.parametrize("wrong", [["--cores", "two"], ["--openlineage", "ftp://somewhere"], ["--format", "csv"]])
def test_a_job_that_is_asked_for_nonsense_does_not_begin(wrong: list[str], tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["run", "--tables", str(tmp_path / "tables"), *wrong])
    assert (done.exit_code, (tmp_path / "tables").exists()) == (2, False)
