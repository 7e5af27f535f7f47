"""The comparison of the tables with the record of a workload: what it finds."""

from pathlib import Path
from typing import Any

import pytest

from examples.lineage.truth import Truth, compare
from keelmq_spark.queries import answers
from keelmq_spark.queries.graph import Graph
from tests.unit.spark.history import History


@pytest.fixture
def graph(tmp_path: Path) -> Any:
    log = History()
    log.publish("a", "1", "2", group="web")
    log.publish("b", "1", group="web")
    log.publish("c", "c-0", group="j", causation_id="a/1,a/2,b/1")
    log.publish("c", "c-1", group="j", causation_id="1")
    log.ack("j", "a", 0, 2)
    log.retry("j", "b", 0, "1", kind="DLQ")
    log.publish("%DLQ%j", "1", attempt=1)
    log.write(tmp_path)
    with Graph(tmp_path) as opened:
        yield opened


def known() -> Truth:
    """Return what was done in the history."""
    truth = Truth()
    one, two, bill = (truth.sent(topic, name, "web") for topic, name in (("a", "1"), ("a", "2"), ("b", "1")))
    sent = [truth.sent("c", "c-0", "j", one, two, bill), truth.sent("c", "c-1", "j", "message:?/1")]
    for node in (one, two, bill, *sent):
        truth.published(node)
    for node in (one, two):
        truth.consumed(node, "j")
    truth.given_back(bill, "j", 0, dead=True)
    return truth


def test_the_graph_of_a_history_is_that_of_its_record(graph: Graph) -> None:
    found = compare(known(), graph)
    assert (found["wrong_answers"], found["missing"], found["extra"]) == (0, 0, 0), found["examples"]


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ((None, "web", "a"), "messages"),
        (("a", "j", "c"), "messages"),
        (("a", "j", "c"), "sent"),
        (("a", "j", None), "messages"),
        (("b", "j", None), "dead_letters"),
    ],
)
def test_each_row_of_the_graph_is_compared(
    row: tuple[str | None, ...], field: str, graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = answers.topic_graph(graph)
    (told,) = [fact for fact in facts if (fact["source"], fact["group"], fact["target"]) == row]
    told[field] += 1
    monkeypatch.setattr(answers, "topic_graph", lambda graph: facts)
    assert compare(known(), graph)["wrong_answers"] == 1
