"""The story of a message as rows of a time axis: what was sent, what became of it in its topic, and in each group.

A row is a message in its topic, a message in a group, a transaction of its producer, or the plain sends of a producer.
Groups of one name are one lane, whether they produce, consume or both. The log does not tell when a handler began, so
a message in a group begins when the group could get it.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from keelmq_spark.queries import answers
from keelmq_spark.queries.graph import Fact, Graph
from keelmq_spark.queries.placing import layers
from keelmq_spark.queries.swimlanes import Bar, Link, Point, Row
from keelmq_spark.tables import schema
from keelmq_spark.views import event_types as events

DEPTH: Final = 8
MESSAGES_MAX: Final = 80
"""Maximum number of messages, the nearest ones first; the others are counted."""

OTHERS_MAX: Final = 3
"""Maximum number of causes of one message outside the story that have a row each."""

# States of bars that are not states of messages.
WAITS: Final = "waits"
PROCESSED: Final = "processed"
GIVEN_BACK: Final = "given back"
DEAD: Final = "dead letter"
OPEN: Final = "not processed yet"
PURGED: Final = "purged"

OTHER: Final = "other causes"
"""Lane of messages outside the story that caused one of it, among others."""
UNKNOWN: Final = "not in the tables"
"""Lane of causes that are in no table."""

_AT: Final = "@"
"""Character in the keys of rows that no name and no id has. Names have no space and no colon either."""

_BEFORE: Final = 0
_STORED: Final = 1
_SEEN: Final = 2
"""Stops of an entry: a transaction begins, its messages are stored, groups can get them."""

_COLUMNS: Final = 'type, ts, event_id, topic, queue, "offset", "group", attempt, message_id, transaction_id, raft_index'
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_US: Final = timedelta(microseconds=1)


class Story(NamedTuple):
    rows: Sequence[Row]
    links: Sequence[Link]
    labels: Mapping[str, str]
    """Text at each row."""
    traces: Sequence[str]
    messages_left_out: int


class _Rows:
    """The rows as they are found."""

    def __init__(self) -> None:
        self.lanes: dict[str, str] = {}
        self.labels: dict[str, str] = {}
        self.bars: dict[str, list[Bar]] = {}
        self.links: list[Link] = []

    def row(self, key: str, lane: str, label: str) -> str:
        self.lanes.setdefault(key, lane)
        self.labels.setdefault(key, label)
        self.bars.setdefault(key, [])
        return key

    def link(self, source: str, target: str, at: Point) -> None:
        link = Link(source, target, at)
        if link not in self.links:
            self.links.append(link)

    def ordered(self) -> list[Row]:
        """Return the rows lane by lane, each below those that lead to it, as far as there is no circle."""
        first: dict[str, Point] = {key: bars[0].begin for key, bars in self.bars.items() if bars}
        for link in self.links:
            before = (*link.at[:2], link.at[2] - 1)
            first[link.source] = min(first.get(link.source, before), before)
        shown = sorted((key for key in self.lanes if key in first), key=lambda key: (first[key], key))
        begins = {self.lanes[key]: first[key] for key in reversed(shown)}
        leads = [(self.lanes[link.source], self.lanes[link.target]) for link in self.links]
        layer = layers(sorted(begins, key=lambda lane: (begins[lane], lane)), leads)
        shown.sort(key=lambda key: (layer[self.lanes[key]], begins[self.lanes[key]], self.lanes[key], first[key], key))
        return [Row(key, self.lanes[key], self.bars[key]) for key in shown]


def story_of(graph: Graph, node_id: str) -> Story:
    """Return the rows of a message or transaction, with all messages that caused it or that it caused."""
    found = _messages(graph, node_id)
    nodes = {node["node_id"]: node for node in graph.nodes(found[:MESSAGES_MAX])}
    messages = [each for each in found[:MESSAGES_MAX] if each in nodes or each == node_id]
    of_messages = _events_of(graph, nodes)
    edges: dict[str, list[Fact]] = {}
    for edge in graph.named(graph.edges("src", messages, [schema.CAUSED_BY, schema.PURGED_FROM], own=True)):
        edges.setdefault(edge["src"], []).append(edge)
    for edge in graph.edges("dst", messages, [schema.PRODUCED], own=True):
        edges.setdefault(edge["dst"], []).append(edge)
    for edge in graph.rows(*_any_of("src, dst, kind, ts, event_id FROM edges", "src", messages, schema.CONSUMED_BY)):
        edges.setdefault(edge["src"], []).append(edge)
    rows = _Rows()
    transactions = _transactions(graph, rows, of_messages, node_id)
    for message in messages:
        _in_topic(rows, message, nodes.get(message), of_messages.get(message, []), edges.get(message, []), transactions)
    for message in messages:
        _in_groups(rows, message, of_messages.get(message, []), edges.get(message, []))
    causes = {edge["dst"] for of in edges.values() for edge in of if edge["kind"] == schema.CAUSED_BY}
    outside = dict.fromkeys(causes.difference(messages), UNKNOWN)
    outside |= {node["node_id"]: OTHER for node in graph.nodes(sorted(outside))}
    for message in messages:
        _sent(rows, message, of_messages.get(message, []), edges.get(message, []), outside)
    ordered = rows.ordered()
    traces = dict.fromkeys(node["trace_id"] for node in nodes.values() if node["trace_id"])
    return Story(ordered, rows.links, rows.labels, list(traces), max(0, len(found) - MESSAGES_MAX))


def _messages(graph: Graph, node_id: str) -> list[str]:
    """Return the messages of a story: those asked about, then causes and effects, nearest first."""
    begins = [node_id]
    if node_id.startswith(f"{schema.TRANSACTION}:"):
        rows = graph.rows(
            "SELECT DISTINCT topic, message_id FROM events WHERE transaction_id = ? AND message_id IS NOT NULL",
            [node_id.partition(":")[2]],
        )
        begins = sorted(schema.message_node(row["topic"], row["message_id"]) for row in rows)
    walked = [
        fact
        for begin in begins[:MESSAGES_MAX]
        for fact in (*answers.ancestors(graph, begin, DEPTH), *answers.descendants(graph, begin, DEPTH))
    ]
    return list(dict.fromkeys([*begins, *(fact["node_id"] for fact in sorted(walked, key=lambda fact: fact["depth"]))]))


def _any_of(what: str, column: str, values: Iterable[str], kind: str | None = None) -> tuple[str, list[str]]:
    wanted = list(values)
    of_kind = f" AND kind = '{kind}'" if kind else ""
    return f"SELECT {what} WHERE {column} IN ({', '.join('?' for _ in wanted) or 'NULL'}){of_kind}", wanted


def _events_of(graph: Graph, nodes: Mapping[str, Fact]) -> dict[str, list[Fact]]:
    """Return the events of each message, in the order of the log, without those of other halves with its id."""
    by_id: dict[str, list[Fact]] = {}
    for node in nodes.values():
        by_id.setdefault(node["message_id"], []).append(node)
    elsewhere = graph.delivery_events(list(nodes))
    found: dict[str, list[Fact]] = {}
    for row in sorted(graph.rows(*_any_of(f"{_COLUMNS} FROM events", "message_id", by_id)), key=_order):
        for node in by_id[row["message_id"]]:
            own = row["topic"] == node["topic"] or row["event_id"] in elsewhere[node["node_id"]]
            if own and row["transaction_id"] in (None, node["transaction_id"]):
                found.setdefault(node["node_id"], []).append(row)
    return found


def _order(row: Fact) -> tuple[int, int]:
    return row["raft_index"], int(row["event_id"].split(":")[-1])


def _at(fact: Fact, stop: int = _STORED) -> Point:
    return (fact["ts"] - _EPOCH) // _US, int(fact["event_id"].split(":")[-2]), stop


def _first(node: Fact) -> Point:
    return (node["first_ts"] - _EPOCH) // _US, 0, _STORED


def _transactions(
    graph: Graph, rows: _Rows, of_messages: Mapping[str, Sequence[Fact]], node_id: str
) -> dict[str, list[Fact]]:
    """Add a row for each transaction, and return their events."""
    ids = {row["transaction_id"]: row["group"] for events_of in of_messages.values() for row in events_of}
    ids.pop(None, None)
    if node_id.startswith(f"{schema.TRANSACTION}:"):
        ids.setdefault(node_id.partition(":")[2], None)
    found: dict[str, list[Fact]] = {}
    for row in sorted(graph.rows(*_any_of(f"{_COLUMNS} FROM events", "transaction_id", ids)), key=_order):
        found.setdefault(row["transaction_id"], []).append(row)
    for transaction_id, happened in found.items():
        group = next((row["group"] for row in happened if row["group"]), None) or "?"
        key = rows.row(schema.node(schema.TRANSACTION, transaction_id), _service(group), transaction_id)
        begin = _at(happened[0], _BEFORE)
        state = _outcome(happened)
        checks = 0
        for row in happened:
            if row["type"] in (events.CHECK, events.DISCARD, events.RESUME, events.COMMIT, events.ROLLBACK):
                checks += row["type"] == events.CHECK
                end = max(_at(row), begin)
                rows.bars[key].append(Bar(begin, end, state, f"prepared, until {row['type']}, {checks} checks"))
                begin = end
        if state in (schema.PREPARED, schema.DISCARDED):
            rows.bars[key].append(Bar(begin, None, state, f"not decided, {checks} checks"))
    return found


def _outcome(happened: Sequence[Fact]) -> str:
    states = {
        events.COMMIT: schema.COMMITTED,
        events.ROLLBACK: schema.ROLLED_BACK,
        events.DISCARD: schema.DISCARDED,
        events.RESUME: schema.PREPARED,
    }
    return next((states[row["type"]] for row in reversed(happened) if row["type"] in states), schema.PREPARED)


def _service(group: str) -> str:
    return f"service:{group}"


def _in_topic(
    rows: _Rows,
    message: str,
    node: Fact | None,
    happened: Sequence[Fact],
    edges: Sequence[Fact],
    transactions: Mapping[str, Sequence[Fact]],
) -> None:
    """Add what became of the message in its topic."""
    topic, _, message_id = message.partition(":")[2].partition("/")
    key = rows.row(message, schema.node(schema.TOPIC, topic), message_id)
    bars = rows.bars[key]
    ended = {events.CANCEL: schema.CANCELLED, events.EXPIRE: schema.EXPIRED}
    decided = {events.ROLLBACK: schema.ROLLED_BACK, events.DISCARD: schema.DISCARDED, events.RESUME: schema.HALF}
    own = {row["transaction_id"] for row in happened if row["transaction_id"]}
    of_transactions = [row for each in own for row in transactions.get(each, []) if row["type"] in decided]
    begin: Point | None = None
    state = ""

    def close(at: Point) -> None:
        nonlocal begin
        if begin is not None:
            bars.append(Bar(begin, max(at, begin), state, state))
        begin = None

    for row in sorted([*(row for row in happened if row["topic"] == topic), *of_transactions], key=_order):
        at, kind = _at(row), row["type"]
        if kind in (events.HALF, events.SCHEDULE, events.DISCARD, events.RESUME):
            close(at)
            begin = at
            state = decided.get(kind) or (schema.HALF if kind == events.HALF else schema.SCHEDULED)
        elif kind == events.PUBLISH or kind in ended or kind == events.ROLLBACK:
            close(at)
            done = schema.PUBLISHED if kind == events.PUBLISH else ended.get(kind, schema.ROLLED_BACK)
            place = f", queue {row['queue']} offset {row['offset']}" if kind == events.PUBLISH else ""
            bars.append(Bar(at, at, done, done + place))
    if begin is not None:
        bars.append(Bar(begin, None, state, state))
    bars.extend(Bar(_at(edge), _at(edge), PURGED, PURGED) for edge in edges if edge["kind"] == schema.PURGED_FROM)
    if not bars and node is not None:
        bars.append(Bar(_first(node), _first(node), node["state"], f"{node['state']}; its events are removed"))


def _in_groups(rows: _Rows, message: str, happened: Sequence[Fact], edges: Sequence[Fact]) -> None:
    """Add the message in each group that got it: deliveries, waits for the next one, and how it ended."""
    topic = message.partition(":")[2].partition("/")[0]
    visible = next(
        (_at(row, _SEEN) for row in happened if row["type"] == events.PUBLISH and row["topic"] == topic), None
    )
    steps: dict[str, list[tuple[Point, str, Fact]]] = {}
    for row in happened:
        if row["type"] in (events.RETRY, events.DLQ):
            steps.setdefault(row["group"], []).append((_at(row), row["type"], row))
        elif row["type"] == events.PUBLISH and row["topic"].startswith(schema.GROUP_TOPICS):
            _, kind, group = row["topic"].split("%", 2)
            steps.setdefault(group, []).append((_at(row), kind + " again", row))
    for edge in edges:
        if edge["kind"] == schema.CONSUMED_BY:
            group = edge["dst"].partition(":")[2]
            steps.setdefault(group, []).append((_at(edge), events.ACK, edge))
    for group, happened_there in steps.items():
        _in_group(rows, message, group, visible, sorted(happened_there, key=lambda step: step[0]))


def _in_group(
    rows: _Rows, message: str, group: str, visible: Point | None, steps: Sequence[tuple[Point, str, Fact]]
) -> None:
    message_id = message.partition("/")[2]
    key = rows.row(in_group(message, group), _service(group), message_id)
    bars = rows.bars[key]
    if visible is not None:
        rows.link(message, key, visible)
    begin, is_waiting = visible, False
    for at, kind, fact in steps:
        start = begin if begin is not None else at
        end = max(at, start)
        if kind == "DLQ again":
            dead_letters = schema.node(schema.TOPIC, fact["topic"])
            dead = rows.row(f"{message}{_AT}{dead_letters}", dead_letters, message_id)
            rows.bars[dead].append(Bar(at, at, DEAD, DEAD))
            rows.link(key, dead, at)
            if is_waiting:
                bars.append(Bar(start, end, WAITS, "on its way to the dead letters", is_thin=True))
            begin, is_waiting = None, False
        elif kind == "RETRY again":
            if is_waiting:
                bars.append(Bar(start, end, WAITS, f"waits for delivery {(fact['attempt'] or 0) + 1}", is_thin=True))
            begin, is_waiting = end, False
        elif kind == events.ACK:
            bars.append(Bar(start, end, PROCESSED, f"processed by {group}"))
            begin, is_waiting = None, False
        else:
            state = GIVEN_BACK if kind == events.RETRY else DEAD
            replayed = kind == events.RETRY and fact["attempt"] == 0
            if not replayed:
                bars.append(Bar(start, end, state, f"{state} by {group}, attempt {fact['attempt']}"))
            begin, is_waiting = end, True
    if begin is not None:
        state = WAITS if is_waiting else OPEN
        bars.append(Bar(begin, None, state, state, is_waiting))


def in_group(message: str, group: str) -> str:
    """Return the key of the row of a message in a group."""
    return f"{message}{_AT}{group}"


def node_of(key: str) -> str:
    """Return the node of a row: the message, where the row is of a message in a group."""
    return key.partition(_AT)[0]


def _sent(
    rows: _Rows, message: str, happened: Sequence[Fact], edges: Sequence[Fact], outside: Mapping[str, str]
) -> None:
    """Add the arrows that lead to the message: from the handler, transaction or producer that sent it."""
    bars = rows.bars[message]
    if not bars:
        return
    at = bars[0].begin
    producer = next((edge["src"].partition(":")[2] for edge in edges if edge["kind"] == schema.PRODUCED), None)
    transaction = next((row["transaction_id"] for row in happened if row["transaction_id"]), None)
    sender, sent = message, at
    if transaction is not None:
        key = schema.node(schema.TRANSACTION, transaction)
        if rows.bars.get(key):
            rows.link(key, message, at)
            sender, sent = key, rows.bars[key][0].begin
    causes = [edge["dst"] for edge in edges if edge["kind"] == schema.CAUSED_BY]
    others = [cause for cause in causes if cause in outside]
    if len(others) > OTHERS_MAX:  # a handler of batches
        lane = OTHER if producer is None else _service(producer)
        rows.link(rows.row(f"{message}{_AT}{OTHER}", lane, f"{len(others)} other messages"), sender, sent)
        causes = [cause for cause in causes if cause not in outside]
    for cause in causes:
        rows.link(_handler(rows, cause, producer, outside.get(cause), sent), sender, sent)
    if not causes and not others and sender == message and producer is not None:
        rows.link(rows.row(f"{producer}{_AT}sends", _service(producer), "sends"), message, at)


def _handler(rows: _Rows, cause: str, group: str | None, outside: str | None, at: Point) -> str:
    """Return the row of the message in whose handler something was sent; `outside` is the lane of those without one."""
    message_id = cause.partition("/")[2]
    name = cause.partition(":")[2]
    if group is None:
        return cause if outside is None else rows.row(cause, outside, name)
    key = in_group(cause, group)
    if outside is not None:
        return rows.row(key, _service(group), name)
    if not rows.bars.get(key):  # it is still at work, or has not committed the offset yet
        rows.row(key, _service(group), message_id)
        published = [bar for bar in rows.bars[cause] if bar.state == schema.PUBLISHED]
        if published:
            begin = (*published[0].begin[:2], _SEEN)
            if begin < at:
                rows.bars[key].append(Bar(begin, None, OPEN, OPEN))
                rows.link(cause, key, begin)
    return key
