"""The workload's own record of its actions, and its comparison with the lineage tables.

The workload never looks at the log: it records which messages it sent, decided, processed and gave back, by the names
it chose.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from keelmq_spark.queries import answers
from keelmq_spark.queries.graph import Fact, Graph

EdgeKey = tuple[str, str, str]
Flow = tuple[str | None, str, str | None]
"""Source topic, group and target topic."""
UNNAMED: Final = "message:?/"
ALWAYS: Final = datetime(2000, 1, 1, tzinfo=UTC), datetime(3000, 1, 1, tzinfo=UTC)


@dataclass
class Truth:
    """Expected states of nodes by id, and expected edges.

    Deliveries of a retry topic are only counted, because their ids contain log indexes.
    """

    states: dict[str, str] = field(default_factory=dict)
    edges: Counter[EdgeKey] = field(default_factory=Counter)
    resets: set[tuple[str, str, int]] = field(default_factory=set)
    """Group, topic and queue of each offset that was reset to another one."""

    def sent(self, topic: str, message_id: str, group: str, *causes: str) -> str:
        """Record that a message was sent, in a transaction or not; return its node. Repetitions change nothing."""
        node = f"message:{topic}/{message_id}"
        self.edge(f"producer_group:{group}", node, "PRODUCED")
        for cause in causes:
            self.edge(node, cause, "CAUSED_BY")
        return node

    def published(self, node: str) -> None:
        self.states[node] = "published"
        self.edge(node, f"topic:{topic_of(node)}", "IN_TOPIC")

    def decided(self, transaction_id: str, state: str, nodes: Iterable[str]) -> None:
        self.states[f"transaction:{transaction_id}"] = state
        for node in nodes:
            if state == "committed":
                self.published(node)
            else:
                self.states[node] = "half" if state == "prepared" else state
            if state != "prepared":
                self.edge(node, f"transaction:{transaction_id}", "DECIDED_BY")

    def consumed(self, node: str, group: str) -> None:
        self.edge(node, f"consumer_group:{group}", "CONSUMED_BY")

    def given_back(self, node: str, group: str, attempts: int, *, dead: bool = False) -> None:
        """Record that a message was given back: `attempts` deliveries followed; if `dead`, none was processed."""
        copy = f"message:%RETRY%{group}/{node.partition('/')[2]}"
        self.edges[copy, node, "RETRY_OF"] = attempts
        self.edges[copy, f"topic:%RETRY%{group}", "IN_TOPIC"] = attempts
        if dead:
            self.edge(node, f"consumer_group:{group}", "DEAD_LETTERED")
            self.edge(node, f"topic:%DLQ%{group}", "IN_TOPIC")

    def edge(self, src: str, dst: str, kind: str) -> None:
        self.edges[src, dst, kind] = 1

    def cancelled(self, node: str) -> None:
        self.states[node] = "cancelled"

    # Answers

    def impact(self, producer_group: str) -> Counter[tuple[str, str | None]]:
        """Return the number of visible messages that a producer caused, by topic and consumer group."""
        caused: dict[str, list[str]] = {}
        for src, dst, kind in self.edges:
            if kind == "CAUSED_BY":
                caused.setdefault(dst.removeprefix(UNNAMED) if dst.startswith(UNNAMED) else dst, []).append(src)
        producer = f"producer_group:{producer_group}"
        touched: set[str] = set()
        coming = [dst for src, dst, kind in self.edges if kind == "PRODUCED" and src == producer]
        while coming:
            node = coming.pop()
            if node not in touched:
                touched.add(node)
                coming += caused.get(node, []) + caused.get(node.partition("/")[2], [])
        consumers: dict[str, list[str]] = {}
        for src, dst, kind in self.edges:
            if kind == "CONSUMED_BY":
                consumers.setdefault(src, []).append(dst.partition(":")[2])
        visible = [node for node in touched if self.states.get(node) == "published"]
        return Counter((topic_of(node), group) for node in visible for group in consumers.get(node, [None]))

    def topic_graph(self) -> Counter[Flow]:
        """Return the number of messages that were visible, by source topic, group and target topic; without a source
        those that have no cause, and without a target those that the group processed.
        """
        found: dict[Flow, set[str]] = {}
        for group, message, source in self._sent():
            found.setdefault((source, group, topic_of(message)), set()).add(message)
        for src, dst, kind in self.edges:
            if kind == "CONSUMED_BY":
                found.setdefault((topic_of(src), dst.partition(":")[2], None), set()).add(src)
        return Counter({flow: len(messages) for flow, messages in found.items()})

    def sent_by_handlers(self) -> Counter[tuple[str, str]]:
        """Return the number of visible messages with a cause, by group and target topic."""
        messages = {(group, message) for group, message, source in self._sent() if source is not None}
        return Counter((group, topic_of(message)) for group, message in messages)

    def _sent(self) -> Iterator[tuple[str, str, str | None]]:
        """Yield the group of each visible message, the message, and the topic of each cause, None without one."""
        topics_of_id: dict[str, set[str]] = {}
        causes: dict[str, list[str]] = {}
        for src, dst, kind in self.edges:
            for node in (src, dst):
                if node.startswith("message:") and not node.startswith(("message:%", UNNAMED)):
                    topics_of_id.setdefault(node.partition("/")[2], set()).add(topic_of(node))
            if kind == "CAUSED_BY":
                causes.setdefault(src, []).append(dst)
        for src, dst, kind in self.edges:
            if kind != "PRODUCED" or (dst, f"topic:{topic_of(dst)}", "IN_TOPIC") not in self.edges:
                continue
            group = src.partition(":")[2]
            if dst not in causes:
                yield group, dst, None
            for cause in causes.get(dst, []):
                topics = topics_of_id.get(cause.removeprefix(UNNAMED)) if cause.startswith(UNNAMED) else None
                for topic in topics or {topic_of(cause)}:
                    yield group, dst, topic

    def open_dead_letters(self) -> set[tuple[str, str]]:
        consumed = {(src, dst) for src, dst, kind in self.edges if kind == "CONSUMED_BY"}
        dead = {(src, dst) for src, dst, kind in self.edges if kind == "DEAD_LETTERED"}
        return {(src, dst.partition(":")[2]) for src, dst in dead - consumed}


def topic_of(node: str) -> str:
    return node.partition(":")[2].partition("/")[0]


def compare(truth: Truth, graph: Graph) -> dict[str, Any]:
    """Compare the tables with the truth: returns the numbers of differences, and `examples` of them."""
    found: Counter[EdgeKey] = Counter()
    for row in graph.rows("SELECT src, dst, kind FROM edges"):
        found[_plain(row["src"]), _plain(row["dst"]), row["kind"]] += 1
    states: dict[str, str] = {}
    doubled = 0
    for row in graph.rows("SELECT node_id, state FROM nodes WHERE kind IN ('message', 'transaction')"):
        if row["node_id"].startswith("message:%"):
            continue
        doubled += row["node_id"] in states
        states[row["node_id"]] = row["state"]
    missing = truth.edges - found
    extra = found - truth.edges
    absent = [node for node in truth.states if node not in states]
    unknown = [node for node in states if node not in truth.states]
    wrong = [node for node, state in truth.states.items() if node in states and states[node] != state]
    examples = [
        *(f"missing edge: {key}" for key in list(missing)[:5]),
        *(f"extra edge: {key}" for key in list(extra)[:5]),
        *(f"missing node: {node}" for node in absent[:5]),
        *(f"extra node: {node}" for node in unknown[:5]),
        *(f"{node} is {states[node]}, not {truth.states[node]}" for node in wrong[:5]),
    ]
    wrong_answers = _wrong_answers(truth, graph)
    examples += wrong_answers[:5]
    (events,) = graph.rows("SELECT count(*) AS n FROM events")
    return {
        "messages": sum(1 for node in truth.states if node.startswith("message:")),
        "transactions": sum(1 for node in truth.states if node.startswith("transaction:")),
        "events": events["n"],
        "edges": sum(found.values()),
        "missing": sum(missing.values()) + len(absent),
        "extra": sum(extra.values()) + len(unknown) + doubled,
        "wrong_state": len(wrong),
        "wrong_answers": len(wrong_answers),
        "examples": examples,
    }


def _wrong_answers(truth: Truth, graph: Graph) -> list[str]:
    """Return the answers of `impact`, `graph`, `dead-letters` and `resets` that differ from the truth."""
    wrong = []
    for group in sorted({src.partition(":")[2] for src, _, kind in truth.edges if kind == "PRODUCED"}):
        facts = answers.impact(graph, group, *ALWAYS)
        impact = Counter({(fact["topic"], fact["consumer_group"]): fact["messages"] for fact in facts})
        if impact != (expected := truth.impact(group)):
            wrong.append(f"impact of {group} is {impact}, not {expected}")
    wrong += _wrong_graph(truth, answers.topic_graph(graph))
    dead = {(fact["node_id"], fact["consumer_group"]) for fact in answers.dead_letters(graph, limit=1_000_000)}
    if dead != truth.open_dead_letters():
        wrong.append(f"the open dead letters differ: {sorted(dead ^ truth.open_dead_letters())[:3]}")
    resets = {(fact["consumer_group"], fact["topic"], fact["queue"]) for fact in answers.resets(graph, 1_000_000)}
    if resets != truth.resets:
        wrong.append(f"the resets are {sorted(resets)}, not {sorted(truth.resets)}")
    return wrong


def _wrong_graph(truth: Truth, facts: Sequence[Fact]) -> list[str]:
    """Return the numbers of messages and dead letters in the graph that differ from the truth; lags are not known."""
    messages: Counter[Flow] = Counter()
    for fact in facts:
        messages[fact["source"], fact["group"], fact["target"]] += fact["messages"]
    handlers = [fact for fact in facts if fact["source"] is not None and fact["target"] is not None]
    sent = {(fact["group"], fact["target"], fact["sent"]) for fact in handlers}
    dead = Counter({(fact["source"], fact["group"]): fact["dead_letters"] or 0 for fact in facts if not fact["target"]})
    expected = Counter((topic_of(node), group) for node, group in truth.open_dead_letters())
    handled = {(*flow, number) for flow, number in truth.sent_by_handlers().items()}
    compared: tuple[tuple[str, object, object], ...] = (
        ("messages", messages, truth.topic_graph()),
        ("sums of messages", sent, handled),
        ("dead letters", dead, expected),
    )
    return [f"the graph has the {what} {found}, not {known}" for what, found, known in compared if found != known]


def _plain(node: str) -> str:
    return node.partition("@")[0] if node.startswith("message:%RETRY%") else node
