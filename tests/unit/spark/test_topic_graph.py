"""The numbers of the topic graph, and the pages that lead from it to groups, topics and stories."""

import re
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
