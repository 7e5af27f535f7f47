"""Pictures: the story of a message, and the graph of topics and groups."""

from collections.abc import Sequence
from typing import Final

from keelmq_spark.queries import answers
from keelmq_spark.queries.drawing import Arrow, Box, draw
from keelmq_spark.queries.graph import Fact, Graph
from keelmq_spark.tables import schema

BOXES_MAX: Final = 60
"""Maximum number of boxes, because nobody reads more; further nodes are only counted."""
DEPTH: Final = 8

_BACKWARDS: Final = (schema.CAUSED_BY, schema.RETRY_OF)
"""Edges that point from the effect back to the cause."""


def story_picture(graph: Graph, node_id: str) -> str:
    """Return an SVG of `node_id`, its causes and effects, and the groups and transactions connected with it."""
    before = answers.ancestors(graph, node_id, DEPTH)
    after = answers.descendants(graph, node_id, DEPTH)
    centre = answers.story(graph, node_id)
    messages = [node_id, *(fact["node_id"] for fact in (*before, *after))][: BOXES_MAX // 2]
    edges = list(centre["edges"])
    if centre["node"]["kind"] == schema.MESSAGE:
        edges += graph.named(graph.edges("src", messages, own=True))
        edges += graph.edges("dst", messages, [schema.PRODUCED], own=True)
    drawn = [edge for edge in edges if edge["kind"] != schema.IN_TOPIC]
    wanted = list(dict.fromkeys([*messages, *(end for edge in drawn for end in (edge["src"], edge["dst"]))]))
    nodes = {node["node_id"]: node for node in graph.nodes(wanted)}
    boxes = [_box(each, nodes.get(each), marked=each == node_id) for each in wanted[:BOXES_MAX]]
    if len(wanted) > BOXES_MAX:
        boxes.append(Box("more", "more", f"and {len(wanted) - BOXES_MAX} more"))
    arrows = {
        Arrow(edge["dst"], edge["src"], _label(edge)) if edge["kind"] in _BACKWARDS
        else Arrow(edge["src"], edge["dst"], _label(edge))
        for edge in drawn
    }  # fmt: skip
    return draw(boxes, sorted(arrows), f"The story of {node_id}")


def topics_picture(facts: Sequence[Fact]) -> str:
    """Return an SVG of the facts of `answers.topic_graph`."""
    boxes: dict[str, Box] = {}
    arrows: dict[tuple[str, str], int] = {}

    def box(kind: str, name: str) -> str:
        key = schema.node(kind, name)
        boxes.setdefault(key, Box(key, kind, name, (kind.replace("_", " "),)))
        return key

    for fact in facts:
        count = int(fact["messages"])
        group = fact["group"]
        source = box(schema.TOPIC, fact["source"]) if fact["source"] else None
        target = box(schema.TOPIC, fact["target"]) if fact["target"] else None
        if group is not None:
            kind = schema.PRODUCER_GROUP if source is None else schema.CONSUMER_GROUP
            through = box(kind, group)
            steps: list[tuple[str | None, str | None]] = [(source, through)] if target is None else [(through, target)]
        else:
            steps = [(source, target)]
        for begin, end in steps:
            if begin is not None and end is not None:
                arrows[begin, end] = arrows.get((begin, end), 0) + count
    drawn = [Arrow(begin, end, f"{count:,}") for (begin, end), count in sorted(arrows.items())]
    return draw(list(boxes.values()), drawn, "Topics and groups, with the number of messages")


def _box(node_id: str, node: Fact | None, *, marked: bool) -> Box:
    kind, _, name = node_id.partition(":")
    if node is None:
        return Box(node_id, kind, name, (f"{kind.replace('_', ' ')}, not in the tables",), marked)
    lines = [f"{kind.replace('_', ' ')}" + (f", {node['state']}" if node["state"] != schema.ACTIVE else "")]
    if kind == schema.MESSAGE:
        topic, _, message_id = name.partition("/")
        place = f"{topic}/{node['queue']} at {node['offset']}" if node["offset"] is not None else topic
        lines.append(place)
        lines.append(node["first_ts"].strftime("%Y-%m-%d %H:%M:%S.%f")[:-3])
        name = message_id
    return Box(node_id, kind, name, tuple(lines), marked)


def _label(edge: Fact) -> str:
    words = str(edge["kind"]).lower().replace("_", " ")
    return {"produced": "sends", "consumed by": "consumed", "caused by": "caused", "retry of": "again"}.get(
        words, words
    )
