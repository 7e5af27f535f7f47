"""Pages that lead to each other: the topics and groups, one page for each of them, and stories of messages."""

import hashlib
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from keelmq_spark.queries import answers
from keelmq_spark.queries.drawing import AddressOf
from keelmq_spark.queries.graph import Fact, Graph
from keelmq_spark.queries.page import Cell, page
from keelmq_spark.queries.pictures import story_picture, topics_picture
from keelmq_spark.tables import schema

INDEX: Final = "index.html"
NAME_MAX: Final = 60
_GROUPS: Final = (schema.PRODUCER_GROUP, schema.CONSUMER_GROUP)
_LATEST: Final = """
    SELECT node_id, topic, state, sent FROM (
        SELECT node_id, attrs.topic AS topic, max_by(state, coalesce(attrs.raft_index, 0)) AS state,
               max(last_ts) AS sent,
               row_number() OVER (PARTITION BY attrs.topic ORDER BY max(last_ts) DESC, node_id) AS place
        FROM (FROM nodes ANTI JOIN others USING (node_id, first_ts))
        WHERE kind = 'message' AND NOT starts_with(attrs.topic, '%') GROUP BY node_id, attrs.topic)
    WHERE place <= ? ORDER BY sent DESC, node_id"""
"""The latest messages of each topic, merged as a graph merges them."""
_OWN_NAME: Final = re.compile(rf"(?:topic|service|message)-[A-Za-z0-9._-]{{0,{NAME_MAX}}}-[0-9a-f]{{20}}\.html")
"""Names that `file_of` makes."""


class _Told(NamedTuple):
    """A message that has a page, and why."""

    node_id: str
    topic: str
    why: str
    at: datetime


def file_of(node_id: str) -> str:
    """Return the name of the page about a node; producers and consumers of one name are one service."""
    kind, _, name = node_id.partition(":")
    kind = "service" if kind in _GROUPS else kind
    readable = re.sub(r"[^A-Za-z0-9._-]+", "_", name)[:NAME_MAX]
    return f"{kind}-{readable}-{hashlib.sha256(f'{kind}:{name}'.encode()).hexdigest()[:20]}.html"


def write_pages(graph: Graph, directory: Path, stories: int) -> int:
    """Write all pages into the directory, remove those of an earlier time that are not among them, and return how many
    there are. Other files stay.
    """
    written = set()
    for name, text in pages(graph, stories):
        (directory / name).write_text(text, encoding="utf-8", newline="\n")
        written.add(name)
    for path in directory.iterdir():
        if _OWN_NAME.fullmatch(path.name) and path.name not in written and path.is_file():
            path.unlink()
    return len(written)


def pages(graph: Graph, stories: int) -> Iterator[tuple[str, str]]:
    """Yield the names and texts of all pages; of each topic so many messages have a story: open dead letters first,
    then what was given back most often, then the latest ones.
    """
    facts = answers.topic_graph(graph)
    told = _told(graph, stories)
    topics = sorted({fact[end] for fact in facts for end in ("source", "target") if fact[end]})
    groups = sorted({fact["group"] for fact in facts if fact["group"]})
    nodes = [*(schema.node(schema.TOPIC, name) for name in topics), *(f"service:{name}" for name in groups)]
    known = {file_of(node_id) for node_id in (*nodes, *(each.node_id for each in told))}

    def link(node_id: str) -> str | None:
        name = file_of(node_id)
        return name if name in known else None

    home = Cell("all topics and groups", INDEX)
    yield INDEX, page(topics_picture(facts, link), "Topics and groups", _stories(told, link), caption="Stories")
    for node_id in nodes:
        kind, _, name = node_id.partition(":")
        near = [fact for fact in facts if name in _names(fact, kind)]
        of_topics = {fact[end] for fact in near for end in ("source", "target")}
        own = [each for each in told if each.topic in of_topics and (kind != schema.TOPIC or each.topic == name)]
        heading = f"{kind} {name}"
        svg = topics_picture(near, link, heading)
        yield file_of(node_id), page(svg, heading, _stories(own, link), [home], "Stories")
    for each in told:
        story = answers.story(graph, each.node_id)
        svg = story_picture(graph, each.node_id, link)
        topic = schema.node(schema.TOPIC, each.topic)
        links = [home, *([Cell(each.topic, href)] if (href := link(topic)) else [])]
        yield file_of(each.node_id), page(svg, each.node_id, _timeline(story["events"]), links, "Events")


def _names(fact: Fact, kind: str) -> Sequence[str | None]:
    return (fact["source"], fact["target"]) if kind == schema.TOPIC else (fact["group"],)


def _told(graph: Graph, stories: int) -> list[_Told]:
    """Return the messages that have a page."""
    found: dict[str, _Told] = {}
    for row in answers.dead_letters(graph, limit=None, of_topic=stories):
        why = f"dead letter of {row['consumer_group']}"
        found.setdefault(row["node_id"], _Told(row["node_id"], _topic_of(row["node_id"]), why, row["dead_since"]))
    given_back = answers.redeliveries(graph, limit=None, of_topic=stories)
    again = {row["node_id"]: row["redeliveries"] for row in given_back}
    for node in graph.nodes(again):
        key, why = node["node_id"], f"{again[node['node_id']]} redeliveries"
        found.setdefault(key, _Told(key, _topic_of(key), why, node["first_ts"]))
    for row in graph.rows(_LATEST, [stories], prepared=True):
        found.setdefault(row["node_id"], _Told(row["node_id"], row["topic"], row["state"], row["sent"]))
    left: dict[str, int] = {}
    kept = []
    for each in found.values():
        left[each.topic] = left.get(each.topic, stories) - 1
        if left[each.topic] >= 0:
            kept.append(each)
    return kept


def _topic_of(node_id: str) -> str:
    return node_id.partition(":")[2].partition("/")[0]


def _stories(told: Sequence[_Told], link: AddressOf) -> list[list[object]]:
    rows: list[list[object]] = [["message", "topic", "state", "since"]]
    for each in told:
        name = Cell(each.node_id.partition("/")[2], file_of(each.node_id))
        topic = link(schema.node(schema.TOPIC, each.topic))
        rows.append([name, Cell(each.topic, topic) if topic else each.topic, each.why, _time(each.at)])
    return rows


def _timeline(happened: Sequence[Fact]) -> list[list[object]]:
    names = ("ts", "type", "topic", "queue", "offset", "group", "attempt", "event_id")
    return [list(names), *([_time(row["ts"]), *(row[name] for name in names[1:])] for row in happened)]


def _time(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
