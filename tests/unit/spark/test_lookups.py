"""Rows are looked up by id so that Bloom filters answer, where there are any to be read."""

from pathlib import Path

import pytest

from keelmq_spark.queries import answers
from keelmq_spark.queries.graph import EACH_MAX, Graph
from keelmq_spark.tables.storage import Place
from tests.unit.spark.history import shop
from tests.unit.spark.stored import write

DIED = "message:orders/later-0"
"""A message with a story: given back, delivered again, and dead."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the queries that graphs ask."""
    queries: list[str] = []
    rows = Graph.rows

    def noted(self: Graph, query: str, *arguments: object, **options: bool) -> object:
        queries.append(query)
        return rows(self, query, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Graph, "rows", noted)
    return queries


def lists(queries: list[str]) -> list[str]:
    return [query for query in queries if any(f"{column} IN (" in query for column in ("node_id", "src", "dst"))]


def test_a_story_is_told_without_a_list_of_ids(tmp_path: Path, asked: list[str]) -> None:
    shop().write(tmp_path)
    with Graph(tmp_path) as graph:
        story = answers.story(graph, DIED)
    assert len(story["related"]) > 1
    assert any(" UNION ALL " in query for query in asked)
    assert lists(asked) == []


def test_many_ids_are_looked_up_together_and_found_alike(tmp_path: Path, asked: list[str]) -> None:
    shop().write(tmp_path)
    with Graph(tmp_path) as graph:
        ids = [row["node_id"] for row in graph.rows("SELECT DISTINCT node_id FROM nodes ORDER BY node_id")]
        assert len(ids) > EACH_MAX
        together, edges = graph.nodes(ids), graph.edges("src", ids, ["IN_TOPIC"])
        assert len(lists(asked)) == 2
        asked.clear()
        assert together == [graph.nodes([node_id])[0] for node_id in ids]
        alone = [edge for node_id in ids for edge in graph.edges("src", [node_id], ["IN_TOPIC"])]
        assert sorted(map(str, alone)) == sorted(map(str, edges))
        assert lists(asked) == []


def test_an_object_store_is_not_read_once_for_each_id(place: Place, asked: list[str]) -> None:
    log = shop()
    write(place, log, log.end)
    with Graph(place) as graph:
        found = graph.nodes([DIED, "topic:orders"])
    assert [node["node_id"] for node in found] == [DIED, "topic:orders"]
    assert len(lists(asked)) == 1
