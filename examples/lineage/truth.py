"""The workload's own record of its actions, and its comparison with the lineage tables.

The workload never looks at the log: it records which messages it sent, decided, processed and gave back, by the names
it chose.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from keelmq_spark.graph import Graph

EdgeKey = tuple[str, str, str]


@dataclass
class Truth:
    """Expected states of nodes by id, and expected edges.

    Deliveries of a retry topic are only counted, because their ids contain log indexes.
    """

    states: dict[str, str] = field(default_factory=dict)
    edges: Counter[EdgeKey] = field(default_factory=Counter)

    def sent(self, topic: str, message_id: str, group: str, cause: str | None = None) -> str:
        """Record that a message was sent, in a transaction or not; return its node. Repetitions change nothing."""
        node = f"message:{topic}/{message_id}"
        self.edge(f"producer_group:{group}", node, "PRODUCED")
        if cause is not None:
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
    (events,) = graph.rows("SELECT count(*) AS n FROM events")
    return {
        "messages": sum(1 for node in truth.states if node.startswith("message:")),
        "transactions": sum(1 for node in truth.states if node.startswith("transaction:")),
        "events": events["n"],
        "edges": sum(found.values()),
        "missing": sum(missing.values()) + len(absent),
        "extra": sum(extra.values()) + len(unknown) + doubled,
        "wrong_state": len(wrong),
        "examples": examples,
    }


def _plain(node: str) -> str:
    return node.partition("@")[0] if node.startswith("message:%RETRY%") else node
