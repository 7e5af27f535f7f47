"""Pictures: the story of a message, and the graph of topics and groups."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from keelmq_spark.queries import answers
from keelmq_spark.queries.drawing import AddressOf, Arrow, Box, draw, no_address
from keelmq_spark.queries.graph import Fact, Graph
from keelmq_spark.queries.lane_drawing import draw_story
from keelmq_spark.queries.story_lanes import story_of
from keelmq_spark.tables import schema

BOXES_MAX: Final = 60
"""Maximum number of boxes, because nobody reads more; further nodes are only counted."""


def story_picture(graph: Graph, node_id: str, link: AddressOf = no_address) -> str:
    """Return an SVG of the story of a message or transaction on a time axis, or of what is around a topic or group."""
    if node_id.partition(":")[0] in (schema.MESSAGE, schema.TRANSACTION):
        return draw_story(story_of(graph, node_id), node_id, link)
    return _around(graph, node_id)


def _around(graph: Graph, node_id: str) -> str:
    """Return an SVG of a topic or group, and of the messages that were the last ones there."""
    edges = answers.story(graph, node_id)["edges"][::-1]
    wanted = list(dict.fromkeys([node_id, *(end for edge in edges for end in (edge["src"], edge["dst"]))]))
    nodes = {node["node_id"]: node for node in graph.nodes(wanted)}
    boxes = [_box(each, nodes.get(each), marked=each == node_id) for each in wanted[:BOXES_MAX]]
    if len(wanted) > BOXES_MAX:
        boxes.append(Box("more", "more", f"and {len(wanted) - BOXES_MAX} more"))
    arrows = {Arrow(edge["src"], edge["dst"], _label(edge)) for edge in edges}
    return draw(boxes, sorted(arrows), f"The story of {node_id}")


def topics_picture(facts: Sequence[Fact], link: AddressOf = no_address, heading: str = "Topics and groups") -> str:
    """Return an SVG of the facts of `answers.topic_graph`."""
    boxes: dict[str, Box] = {}
    arrows: dict[tuple[str, str], _Flow] = {}

    def box(kind: str, name: str) -> str:
        key = schema.node(kind, name)
        boxes.setdefault(key, Box(key, kind, name, (kind.replace("_", " "),)))
        return key

    for fact in facts:
        group = fact["group"]
        source = box(schema.TOPIC, fact["source"]) if fact["source"] else None
        target = box(schema.TOPIC, fact["target"]) if fact["target"] else None
        begin, end = source, target
        if group is not None:
            through = box(schema.PRODUCER_GROUP if source is None else schema.CONSUMER_GROUP, group)
            begin, end = (source, through) if target is None else (through, target)
        if begin is None or end is None:
            continue
        if source is not None and target is not None and group is not None and fact.get("sent") is not None:
            # The rows of all sources have the same sum, in which a message with several causes counts once.
            of_all = {"messages": fact["sent"], "per_second": fact["sent_per_second"]}
            arrows[begin, end] = _Flow().with_fact(of_all)
        else:
            arrows[begin, end] = arrows.get((begin, end), _Flow()).with_fact(fact)
    drawn = [flow.arrow(begin, end) for (begin, end), flow in sorted(arrows.items())]
    legend = "number of messages, in the last five minutes per second; below what a group lacks, and its dead letters"
    return draw(list(boxes.values()), drawn, f"{heading}: {legend}", link)


class _Flow(NamedTuple):
    """The numbers of an arrow."""

    messages: int = 0
    per_second: float = 0.0
    lag: int = 0
    dead_letters: int = 0

    def with_fact(self, fact: Fact) -> "_Flow":
        return _Flow(
            self.messages + int(fact["messages"]),
            self.per_second + (fact.get("per_second") or 0.0),
            self.lag + (fact.get("lag") or 0),
            self.dead_letters + (fact.get("dead_letters") or 0),
        )

    def arrow(self, begin: str, end: str) -> Arrow:
        label = short(self.messages) + (f", {short(self.per_second)}/s" if self.per_second else "")
        warnings = [f"lag {short(self.lag)}"] if self.lag else []
        warnings += [f"{short(self.dead_letters)} dead"] if self.dead_letters else []
        return Arrow(begin, end, label, ", ".join(warnings), is_alarm=self.dead_letters > 0)


def short(number: float) -> str:
    """Return a number of at most five characters: 17, 0.04, 1.2k, 340M."""
    if number and number < 10 and number != int(number):
        return f"{number:.2g}"
    for unit in ("", "k", "M", "G"):
        if round(number) < 1000:
            return f"{number:.1f}{unit}" if unit and number < 10 else f"{number:.0f}{unit}"
        number /= 1000
    return f"{number:.0f}T"


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
    return {"produced": "sends", "consumed by": "consumed", "in topic": "in"}.get(words, words)
