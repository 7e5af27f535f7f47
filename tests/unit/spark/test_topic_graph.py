"""The numbers of the topic graph, and the pages that lead from it to groups, topics and stories."""

import os
import re
import subprocess
import sys
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from keelmq_spark.cli import app
from keelmq_spark.queries import answers
from keelmq_spark.queries.graph import Graph
from keelmq_spark.queries.page import Cell, page
from keelmq_spark.queries.pictures import short, topics_picture
from keelmq_spark.queries.site import file_of, pages
from tests.lineage_stories import order_history
from tests.unit.spark.history import START_US, History, shop


def consumed(path: Path, log: History) -> dict[tuple[str, str], tuple[Any, ...]]:
    """Return the messages, the lag and the dead letters of each group in each topic."""
    log.write(path)
    with Graph(path) as graph:
        return {
            (fact["source"], fact["group"]): (fact["messages"], fact["lag"], fact["dead_letters"])
            for fact in answers.topic_graph(graph)
            if fact["target"] is None
        }


def test_the_lag_of_a_group_is_what_it_has_not_passed_in_its_queues(tmp_path: Path) -> None:
    log = History()
    log.publish("orders", "a", "b", "c", "d")
    log.publish("orders", "e", "f", "g", queue=1)
    log.ack("shipping", "orders", 0, 3)
    log.ack("shipping", "orders", 0, 1, queue=1)
    log.ack("audit", "orders", 0, 4)
    found = consumed(tmp_path, log)
    assert found[("orders", "shipping")] == (4, 3, 0)
    assert found[("orders", "audit")] == (4, 0, 0), "the other queue is not known to be read by the group"
    log.reset("shipping", "orders", 3, 1)
    log.ack("shipping", "orders", 1, 2)
    log.reset("audit", "orders", 4, 0)
    log.publish("orders", "h")
    found = consumed(tmp_path, log)
    assert found[("orders", "shipping")][1] == 3 + 2
    assert found[("orders", "audit")][1] == 5


def test_positions_in_a_topic_that_was_deleted_and_made_again_count_anew(tmp_path: Path) -> None:
    log = History()
    log.publish("orders", *(f"old-{number}" for number in range(100)))
    log.publish("orders", "other", queue=1)
    log.ack("shipping", "orders", 0, 100)
    log.ack("shipping", "orders", 0, 1, queue=1)
    log.ack("gone", "orders", 0, 100)
    log.reset("moved", "orders", None, 90)
    log.restart("orders")
    log.publish("orders", *(f"new-{number}" for number in range(50)))
    log.ack("shipping", "orders", 0, 10)
    log.reset("back", "orders", None, 7)
    found = consumed(tmp_path, log)
    assert {group: lag for (_, group), (_, lag, _) in found.items() if lag is not None} == {"shipping": 40, "back": 43}
    log.publish("orders", *(f"more-{number}" for number in range(100)))
    assert consumed(tmp_path, log)[("orders", "shipping")][1] == 140, "also when there are more than before"


def test_a_group_has_no_lag_in_a_topic_that_was_deleted_and_has_no_message_since(tmp_path: Path) -> None:
    log = History()
    for topic in ("orders", "bills"):
        log.publish(topic, *(f"{topic}-{number}" for number in range(10)))
        log.ack("shipping", topic, 0, 4)
    log.delete("orders")
    found = consumed(tmp_path, log)
    assert (found[("orders", "shipping")], found[("bills", "shipping")]) == ((4, None, 0), (4, 6, 0))
    log.publish("orders", "new-0", "new-1", "new-2")
    assert consumed(tmp_path, log)[("orders", "shipping")][1] is None, "the group has no offset in the new topic"
    log.ack("shipping", "orders", 0, 1)
    assert consumed(tmp_path, log)[("orders", "shipping")][1] == 2
    log.publish("orders", *(f"more-{number}" for number in range(20)))
    assert consumed(tmp_path, log)[("orders", "shipping")][1] == 22, "also when there are more than before"


def test_a_message_of_the_same_entry_that_follows_the_removal_is_of_the_new_topic(tmp_path: Path) -> None:
    log = History()
    log.publish("orders", "old")
    log.ack("shipping", "orders", 0, 1)
    log.restart("orders")
    log.entry({"type": "TOPIC_DELETE", "topic": "orders"}, log.published("orders", "new"))
    log.reset("shipping", "orders", None, 0)
    assert consumed(tmp_path, log)[("orders", "shipping")][1] == 1


def test_messages_that_are_acknowledged_in_any_order_do_not_move_a_group_back(tmp_path: Path) -> None:
    log = History()
    log.publish("orders", *"abcdef")
    log.ack("pop", "orders", 2, 5)
    log.ack("pop", "orders", 0, 1)
    assert consumed(tmp_path, log)[("orders", "pop")][1] == 1


def test_dead_letters_are_counted_until_they_are_processed_also_where_nothing_else_was(tmp_path: Path) -> None:
    log = History()
    log.publish("orders", "a", "b")
    for number, name in enumerate("ab"):
        log.retry("g", "orders", number, name, kind="DLQ")
    log.ack("g", "orders", 0, 2)
    log.publish("%DLQ%g", "a", "b", attempt=1)
    assert consumed(tmp_path, log) == {("orders", "g"): (0, 0, 2)}
    log.retry("g", "orders", 1, "b", attempt=0)  # an operator replays it
    log.publish("%RETRY%g", "b", attempt=0)
    log.ack("g", "%RETRY%g", 0, 1)
    assert consumed(tmp_path, log) == {("orders", "g"): (1, 0, 1)}


def counted(path: Path, log: History) -> tuple[dict[tuple[str | None, str], int], dict[tuple[str, str], str]]:
    """Return what group `j` sent to topic `c`, by source, and the labels of the picture's arrows by their ends."""
    log.write(path)
    with Graph(path) as graph:
        facts = answers.topic_graph(graph)
    titles = [each.text or "" for each in ElementTree.fromstring(topics_picture(facts)).iter() if "title" in each.tag]
    found = [re.fullmatch(r"\w+:(.+) → \w+:(.+): (.*)", title) for title in titles]
    labels = {(each[1], each[2]): each[3] for each in found if each is not None}
    return {(f["source"], f["target"]): f["messages"] for f in facts if f["group"] == "j" and f["target"]}, labels


def test_a_message_counts_once_however_many_causes_it_has(tmp_path: Path) -> None:
    log = History()
    log.publish("readings", *(f"r-{number}" for number in range(10)))
    causes = ",".join(f"readings/r-{number}" for number in range(10))
    log.publish("totals", "t-0", group="j", causation_id=causes)
    assert counted(tmp_path, log)[0] == {("readings", "totals"): 1}


def test_a_message_with_causes_in_two_topics_is_one_message_on_its_arrow(tmp_path: Path) -> None:
    log = History()
    for topic in ("a", "b"):
        log.publish(topic, "1", "2")
    log.publish("c", "c-0", group="j", causation_id="a/1,b/1")
    log.publish("c", "c-1", group="j", causation_id="2")
    log.publish("c", "c-2", group="j", causation_id="b/2")
    facts, labels = counted(tmp_path, log)
    assert facts == {("a", "c"): 2, ("b", "c"): 3}
    assert labels["j", "c"].split(",")[0] == "3"


def test_rates_are_those_before_the_last_event(tmp_path: Path) -> None:
    log = History()
    log.publish("orders", "old", group="web", ts=START_US - 3_600_000_000)
    for number in range(20):
        log.publish("orders", f"m-{number}", group="web", ts=START_US + number * 1_000_000)
    log.write(tmp_path)
    with Graph(tmp_path) as graph:
        (fact,) = answers.topic_graph(graph)
        svg = topics_picture([fact])
    assert (fact["messages"], fact["per_second"]) == (21, round(20 / 300, 3))
    assert "21, 0.067/s" in {each.text for each in ElementTree.fromstring(svg).iter()}


def test_what_an_arrow_says_is_short() -> None:
    numbers = (0, 0.001234, 0.5, 7, 9.96, 17, 999.4, 999.7, 1_234, 9_960, 45_600, 1_000_000, 7.2e9, 3e14)
    texts = "0 0.0012 0.5 7 10 17 999 1.0k 1.2k 10.0k 46k 1.0M 7.2G 300T"
    assert " ".join(map(short, numbers)) == texts
    fact = {"source": "orders", "group": "g", "target": None, "messages": 5, "per_second": 0.0}
    svg = topics_picture([fact | {"lag": 1_200, "dead_letters": 2}, fact | {"group": "h", "lag": 3, "dead_letters": 0}])
    colours = {each.text: each.attrib.get("fill") for each in ElementTree.fromstring(svg).iter()}
    assert (colours["lag 1.2k, 2 dead"], colours["lag 3"]) == ("#b91c1c", "#b45309")


def links_of(text: str) -> set[str]:
    return {unescape(href) for href in re.findall(r'href="([^"]*)"', text)}


def test_every_link_leads_to_a_page_that_leads_back(tmp_path: Path) -> None:
    log = order_history(14)
    log.publish("50% o/f <us>", "m/1", group="w&b")
    log.write(tmp_path)
    with Graph(tmp_path) as graph:
        found = dict(pages(graph, 2))
    for name, text in found.items():
        assert re.fullmatch(r"[A-Za-z0-9._-]+", name), "a name that is the same in an address"
        assert {unquote(href) for href in links_of(text)} <= set(found), name
        if name != "index.html":
            assert "index.html" in links_of(text)
    story = file_of("message:orders/order-17")
    assert story in links_of(found["index.html"])
    assert {file_of("service:billing"), file_of("topic:orders")} <= links_of(found[story])
    assert file_of("topic:bills") in links_of(found[file_of("consumer_group:billing")])
    dead = [name for name, text in found.items() if "dead letter of" in text]
    assert file_of("service:ledger") in dead
    assert len([name for name in found if name.startswith("message-mails")]) == 2


def test_the_command_writes_the_pages(tmp_path: Path) -> None:
    shop().write(tmp_path / "tables")
    directory = tmp_path / "a" / "pages"
    done = CliRunner().invoke(app, ["pages", str(directory), "--stories", "1", "--tables", str(tmp_path / "tables")])
    assert done.exit_code == 0, done.output
    assert f"{len(list(directory.iterdir()))} pages: {directory}/index.html" in done.stdout
    assert (directory / file_of("message:orders/later-0")).exists(), "a dead letter"
    missing = CliRunner().invoke(app, ["pages", str(tmp_path / "b"), "--tables", str(tmp_path / "nothing")])
    assert (missing.exit_code, (tmp_path / "b").exists()) == (1, False)


def test_each_topic_has_its_own_stories_however_many_another_one_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for listing in (answers.dead_letters, answers.redeliveries):
        defaults = tuple(3 if value == 1_000 else value for value in listing.__defaults__ or ())
        monkeypatch.setattr(listing, "__defaults__", defaults)
    log = History()
    log.publish("a", *(f"a-{number}" for number in range(4)))
    log.publish("b", *(f"b-{number}" for number in range(9)))
    for number in range(4):
        for group in ("g", "h"):
            log.retry(group, "a", number, f"a-{number}", kind="DLQ")
    for attempt in (1, 2):
        for number in range(4):
            log.retry("g", "a", number, f"a-{number}", attempt=attempt)
            log.publish("%RETRY%g", f"a-{number}", attempt=attempt)
    log.retry("g", "b", 2, "b-2", kind="DLQ")
    log.retry("g", "b", 1, "b-1")
    log.publish("%RETRY%g", "b-1", attempt=1)
    log.write(tmp_path)
    with Graph(tmp_path) as graph:
        found = dict(pages(graph, 2))
        assert len(answers.dead_letters(graph)) == 3
        assert len(answers.dead_letters(graph, limit=None)) == 9
    stories = {each for each in found if each.startswith("message-")}
    assert stories == {file_of(f"message:{name}") for name in ("a/a-0", "a/a-1", "b/b-2", "b/b-1")}


def test_a_story_is_told_as_what_its_message_is(tmp_path: Path) -> None:
    log = History()
    for number in range(3):
        log.half(f"t{number}", "orders", f"m-{number}")
        log.decide("ROLLBACK", f"t{number}")
        log.publish("orders", f"m-{number}")
    log.write(tmp_path)
    with Graph(tmp_path) as graph:
        index = dict(pages(graph, 100))["index.html"]
    assert index.count("<td>published</td>") == 3
    assert "rolled_back" not in index


def test_pages_that_are_no_longer_told_are_removed_and_nothing_else(tmp_path: Path) -> None:
    log = History()
    log.publish("orders", "m-1", group="web")
    log.write(tmp_path / "tables")
    command = ["pages", str(tmp_path / "pages"), "--stories", "1", "--tables", str(tmp_path / "tables")]
    assert CliRunner().invoke(app, command).exit_code == 0
    kept = ["notes.html", "topic-orders.html", "message-orders_m-1-0123456789.html", "data-" + "0" * 20 + ".html"]
    for name in kept:
        (tmp_path / "pages" / name).write_text("mine")
    (tmp_path / "pages" / file_of("topic:a directory")).mkdir()
    kept += ["index.html", *map(file_of, ("topic:a directory", "topic:orders", "service:web", "message:orders/m-2"))]
    log.publish("orders", "m-2", group="web")
    log.write(tmp_path / "tables")
    done = CliRunner().invoke(app, command)
    assert done.stdout.startswith("4 pages: ")
    assert {path.name for path in (tmp_path / "pages").iterdir()} == set(kept)


def test_names_of_pages_have_enough_of_the_hash_that_no_one_finds_two_of_a_name() -> None:
    assert re.fullmatch(r"topic-orders-[0-9a-f]{20}\.html", file_of("topic:orders"))


def test_a_picture_is_the_same_file_in_any_locale(tmp_path: Path) -> None:
    shop().write(tmp_path / "tables")
    picture = tmp_path / "story.svg"
    command = ["show", "orders/a-0", "--json", "--tables", str(tmp_path / "tables"), "--picture", str(picture)]
    plain = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    code = "from keelmq_spark.cli import main; main()"
    subprocess.run([sys.executable, "-c", code, *command], env=plain, check=True, capture_output=True)
    assert " → " in picture.read_text(encoding="utf-8")


def test_tables_without_a_row_have_a_page(tmp_path: Path) -> None:
    log = History()
    log.entry()
    log.write(tmp_path)
    with Graph(tmp_path) as graph:
        assert [name for name, _ in pages(graph, 3)] == ["index.html"]


@pytest.mark.parametrize("text", ["</script><script>x", "<img src=x>", '"onclick="x'])
def test_a_page_has_names_as_text_alone(text: str) -> None:
    made = page("<svg></svg>", text, [["n"], [text], [Cell(text, text)]], [Cell(text, "x.html")], text)
    assert made.count("<script>") == 1
    assert text not in made
    assert "<img" not in made
    assert '"onclick' not in made
