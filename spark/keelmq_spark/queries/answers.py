"""Queries about messages, answered from the tables alone; most answers are a list of facts."""

from datetime import datetime, timedelta
from typing import Any, Final

from keelmq_spark.queries.graph import DEPTH_MAX, Fact, Graph, also_unnamed
from keelmq_spark.tables import schema

LIMIT: Final = 1_000
"""Default maximum number of rows of a listing."""

_TOPIC_OF: Final = "split_part(substr({0}, 9), '/', 1)"
"""SQL expression for the topic in the node id of a message."""


RATE_S: Final = 300.0
"""Length of the time before the last event for which rates are told."""

_LAGS: Final = r"""
    WITH own AS (
        SELECT type, "group", topic, queue, "offset", offset_end,
               raft_index * 1000000 + CAST(split_part(event_id, ':', 3) AS BIGINT) AS moment
        FROM events WHERE type IN ('PUBLISH', 'ACK', 'RESET', 'TOPIC_DELETE') AND NOT starts_with(topic, '%')),
    deleted AS (SELECT topic, max(moment) AS moment FROM own WHERE type = 'TOPIC_DELETE' GROUP BY ALL),
    current AS (
        SELECT o.* FROM own o LEFT JOIN deleted d USING (topic) WHERE o.moment > coalesce(d.moment, -1)),
    published AS (
        SELECT topic, queue, "offset", moment, lag("offset") OVER (PARTITION BY topic, queue ORDER BY moment) AS before
        FROM current WHERE type = 'PUBLISH'),
    ends AS (  -- in logs that do not tell that a topic was deleted: made again, it begins at a smaller offset
        SELECT topic, queue, max_by("offset", moment) + 1 AS ends,
               coalesce(max(moment) FILTER (WHERE before >= "offset"), -1) AS begin
        FROM published GROUP BY ALL),
    moves AS (
        SELECT o.* FROM current o JOIN ends e USING (topic, queue) WHERE o.type <> 'PUBLISH' AND o.moment > e.begin),
    resets AS (
        SELECT "group", topic, queue, max(moment) AS moment, max_by(offset_end, moment) AS position FROM moves
        WHERE type = 'RESET' GROUP BY ALL),
    commits AS (  -- the largest one: pop consumers acknowledge in any order
        SELECT a."group", a.topic, a.queue, max(a.offset_end) AS position
        FROM moves a LEFT JOIN resets r ON (r."group", r.topic, r.queue) = (a."group", a.topic, a.queue)
        WHERE a.type = 'ACK' AND a.moment > coalesce(r.moment, -1) GROUP BY ALL),
    positions AS (
        SELECT "group", topic, queue, greatest(c.position, r.position) AS position
        FROM commits c FULL JOIN resets r USING ("group", topic, queue))
    SELECT "group", topic, sum(greatest(e.ends - p.position, 0)) AS n
    FROM positions p JOIN ends e USING (topic, queue) GROUP BY ALL"""
"""Number of messages that a group has not passed, in the queues in which it has an offset."""

_IS_OPEN: Final = """d.kind = 'DEAD_LETTERED' AND NOT EXISTS (
    SELECT 1 FROM edges c WHERE c.kind = 'CONSUMED_BY' AND c.src = d.src AND c.dst = d.dst AND c.ts >= d.ts)"""
"""Condition for an edge `d` that is a dead letter, which its group has not processed since."""

_DEAD: Final = f"""
    SELECT {_TOPIC_OF.format("d.src")} AS topic, replace(d.dst, 'consumer_group:', '') AS "group",
           count(DISTINCT d.src) AS n FROM edges d WHERE {_IS_OPEN} GROUP BY ALL"""  # noqa: S608
"""Number of open dead letters."""


def story(graph: Graph, node_id: str) -> Fact:
    """Return the facts of one message or transaction: `node`, its `edges`, ordered `events`, and `related` nodes. Of a
    topic or group, which has an edge for each message, only the last LIMIT edges in each direction.
    """
    (node,) = graph.nodes([node_id]) or [{"node_id": node_id, "kind": node_id.partition(":")[0], "state": None}]
    around = [node_id]
    if node["kind"] == schema.MESSAGE:
        around += [edge["src"] for edge in graph.edges("dst", [node_id], [schema.RETRY_OF])]
    last = None if node["kind"] in (schema.MESSAGE, schema.TRANSACTION) else LIMIT
    own = node["kind"] == schema.MESSAGE
    edges = graph.named(graph.edges("src", around, last=last, own=own))
    edges += graph.edges("dst", [node_id], last=last, own=own)
    if own:
        unnamed = graph.edges("dst", also_unnamed([node_id])[1:], [schema.CAUSED_BY], own=True)
        edges += [edge | {"dst": node_id} for edge in unnamed]
    unique = {(edge["src"], edge["dst"], edge["kind"]): edge for edge in edges}
    edges = sorted(unique.values(), key=lambda edge: (edge["ts"], edge["event_id"]))
    related = [end for edge in edges for end in (edge["src"], edge["dst"]) if end != node_id]
    return {"node": node, "edges": edges, "events": _events(graph, node, edges), "related": graph.nodes(related)}


def _events(graph: Graph, node: Fact, edges: list[Fact]) -> list[Fact]:
    """Return the events that name the message or its transaction, and the offset commits that passed it."""
    if node["kind"] == schema.TRANSACTION:
        rows = graph.rows("SELECT * FROM events WHERE transaction_id = ?", [node["node_id"].partition(":")[2]])
    else:
        topic, _, message_id = node["node_id"].partition(":")[2].partition("/")
        of_message = graph.rows("SELECT * FROM events WHERE message_id = ?", [message_id])
        elsewhere = graph.delivery_events([node["node_id"]])[node["node_id"]]
        rows = [r for r in of_message if r["topic"] == topic or r["event_id"] in elsewhere]
        ids = {row["event_id"] for row in rows}
        for edge in edges:
            if edge["kind"] in (schema.CONSUMED_BY, schema.DECIDED_BY) and edge["event_id"] not in ids:
                index = int(edge["event_id"].split(":")[-2])
                found = graph.rows(
                    "SELECT * FROM events WHERE raft_index = ? AND event_id = ?", [index, edge["event_id"]]
                )
                rows += found
                ids.add(edge["event_id"])
    return sorted(rows, key=lambda row: (row["raft_index"], int(row["event_id"].split(":")[-1])))


def ancestors(graph: Graph, node_id: str, depth: int = DEPTH_MAX) -> list[Fact]:
    """Return the causes of the message, nearest first."""
    return _with_nodes(graph, graph.walk(node_id, forward=False, depth=depth))


def descendants(graph: Graph, node_id: str, depth: int = DEPTH_MAX) -> list[Fact]:
    """Return the effects of the message, nearest first."""
    return _with_nodes(graph, graph.walk(node_id, forward=True, depth=depth))


def _with_nodes(graph: Graph, walked: list[Fact]) -> list[Fact]:
    nodes = {node["node_id"]: node for node in graph.nodes(fact["node_id"] for fact in walked)}
    known: tuple[str, ...] = ("state", "group", "topic", "queue", "offset", "first_ts")
    return [fact | {name: nodes.get(fact["node_id"], {}).get(name) for name in known} for fact in walked]


def impact(graph: Graph, producer_group: str, begin: datetime, end: datetime) -> list[Fact]:
    """Return the topics and consumer groups reached by messages that `producer_group` sent at begin <= time < end.

    Messages that were visible in their topic count, directly or through handlers. Each row has the number of messages
    and their maximum distance from the group in steps.
    """
    return graph.rows(
        f"""WITH RECURSIVE touched AS (
               SELECT dst AS node_id, 0 AS depth FROM produced
               WHERE src = ? AND ts >= ? AND ts < ?
               UNION
               SELECT e.src, t.depth + 1 FROM touched t
               JOIN causes e ON e.dst = t.node_id WHERE t.depth < {DEPTH_MAX}
           ), nearest AS (
               SELECT node_id, min(depth) AS depth FROM touched SEMI JOIN visible USING (node_id) GROUP BY node_id),
           consumed AS (
               SELECT n.node_id, n.depth, e.dst AS consumer FROM nearest n
               LEFT JOIN edges e ON e.kind = 'CONSUMED_BY' AND e.src = n.node_id
           )
           SELECT {_TOPIC_OF.format("node_id")} AS topic, replace(consumer, 'consumer_group:', '') AS consumer_group,
                  count(*) AS messages, max(depth) AS depth
           FROM consumed GROUP BY ALL ORDER BY depth, topic, consumer_group""",  # noqa: S608
        [schema.node(schema.PRODUCER_GROUP, producer_group), begin, end],
        prepared=True,
    )


def unresolved(graph: Graph, older_than_s: float, now: datetime, limit: int = LIMIT) -> list[Fact]:
    """Return the transactions that are neither committed nor rolled back after `older_than_s` seconds, oldest first."""
    return graph.rows(
        """SELECT attrs.transaction_id AS transaction_id, state, attrs."group" AS producer_group, first_ts,
                  attrs.attempt AS checks, epoch(?::TIMESTAMPTZ - first_ts) AS age_s
           FROM nodes WHERE kind = 'transaction' AND open AND state IN ('prepared', 'discarded')
             AND first_ts <= ?::TIMESTAMPTZ - to_seconds(?)
           ORDER BY first_ts, transaction_id LIMIT ?""",
        [now, now, older_than_s, limit],
    )


def orphans(graph: Graph, limit: int = LIMIT) -> list[Fact]:
    """Return published messages that no group has consumed and nobody has purged, and causes that are in no table;
    oldest first.
    """
    return graph.rows(
        r"""SELECT 'not consumed' AS what, n.node_id, n.first_ts AS ts FROM nodes n
           WHERE n.kind = 'message' AND n.state = 'published' AND n.attrs.topic NOT LIKE '\%RETRY\%%' ESCAPE '\'
             AND NOT EXISTS (
                 SELECT 1 FROM edges e WHERE e.src = n.node_id
                   AND e.kind IN ('CONSUMED_BY', 'DEAD_LETTERED', 'PURGED_FROM'))
           UNION ALL
           SELECT 'unknown cause', e.src, e.ts FROM causes e
           WHERE NOT EXISTS (SELECT 1 FROM nodes n WHERE n.node_id = e.dst)
           ORDER BY ts, node_id, what LIMIT ?""",
        [limit],
        prepared=True,
    )


def topic_graph(graph: Graph) -> list[Fact]:
    """Return which topics lead to which: `source`, `target`, the group between them, the number of `messages` that
    were visible, and how many there were `per_second` in the last RATE_S seconds of the tables.

    A message with causes in several topics is in the row of each; `sent` and `sent_per_second` count what the group
    sent to the target because of messages of any topic, each message once, and are the same in all these rows. What a
    group consumes is a row without a target. It has the group's `lag` in this topic, in messages, as far as the
    tables have its commits, and its open `dead_letters`.
    """
    (times,) = graph.rows("SELECT max(ts) AS last, epoch(max(ts) - min(ts)) AS seconds FROM events")
    seconds = max(1.0, min(RATE_S, times["seconds"] or 0.0))
    counts = "count(*) AS messages, count(*) FILTER (WHERE {0}.ts >= ?) AS recent"
    facts = graph.rows(
        f"""WITH effects AS (
               SELECT {_TOPIC_OF.format("c.dst")} AS source, replace(p.src, 'producer_group:', '') AS "group",
                      {_TOPIC_OF.format("c.src")} AS target, c.src AS node_id, c.ts
               FROM causes c SEMI JOIN visible v ON v.node_id = c.src
               LEFT JOIN produced p ON p.dst = c.src)
           SELECT source, "group", target, count(DISTINCT node_id) AS messages,
                  count(DISTINCT node_id) FILTER (WHERE ts >= ?) AS recent, grouping(source) = 1 AS is_sum
           FROM effects GROUP BY GROUPING SETS ((source, "group", target), ("group", target))
           UNION ALL
           SELECT NULL, replace(p.src, 'producer_group:', ''), {_TOPIC_OF.format("p.dst")}, {counts.format("p")}, false
           FROM produced p SEMI JOIN visible v ON v.node_id = p.dst
           WHERE NOT EXISTS (SELECT 1 FROM caused c WHERE c.src = p.dst)
           GROUP BY ALL
           UNION ALL
           SELECT {_TOPIC_OF.format("e.src")}, replace(e.dst, 'consumer_group:', ''), NULL, {counts.format("e")}, false
           FROM edges e WHERE e.kind = 'CONSUMED_BY' GROUP BY ALL""",  # noqa: S608
        [times["last"] - timedelta(seconds=seconds) if times["last"] else None] * 3,
        prepared=True,
    )
    sums = {(fact["group"], fact["target"]): fact for fact in facts if fact["is_sum"]}
    facts = [fact for fact in facts if not fact["is_sum"]]
    consumed = {(fact["source"], fact["group"]): fact for fact in facts if fact["target"] is None}
    for name, rows in (("lag", graph.rows(_LAGS)), ("dead_letters", graph.rows(_DEAD))):
        for row in rows:
            nothing = {"source": row["topic"], "group": row["group"], "target": None, "messages": 0, "recent": 0}
            if (row["topic"], row["group"]) not in consumed:  # nothing was processed yet
                facts.append(nothing)
                consumed[row["topic"], row["group"]] = nothing
            consumed[row["topic"], row["group"]][name] = int(row["n"])
    facts.sort(key=lambda fact: [(fact[name] is not None, fact[name] or "") for name in ("source", "group", "target")])
    return [
        {name: fact[name] for name in ("source", "group", "target", "messages")}
        | {"per_second": round(fact["recent"] / seconds, 3), "lag": fact.get("lag")}
        | {"dead_letters": fact.get("dead_letters", 0 if fact["target"] is None else None)}
        | _sent(fact if fact["source"] is None else sums.get((fact["group"], fact["target"])), seconds)
        for fact in facts
    ]


def _sent(total: Fact | None, seconds: float) -> Fact:
    """Return what a group sent to a topic, whatever the topics of the causes; nothing for what it consumed."""
    if total is None:
        return {"sent": None, "sent_per_second": None}
    return {"sent": total["messages"], "sent_per_second": round(total["recent"] / seconds, 3)}


def latency(graph: Graph) -> list[Fact]:
    """Return the milliseconds from a message's first event until a group's offset passed it, by topic and group."""
    return graph.rows(
        """WITH passed AS (
               SELECT n.attrs.topic AS topic, replace(e.dst, 'consumer_group:', '') AS consumer_group,
                      date_diff('microseconds', n.first_ts, e.ts) / 1000.0 AS ms
               FROM edges e
               JOIN (FROM nodes ANTI JOIN others USING (node_id, first_ts)) n ON n.node_id = e.src
               WHERE e.kind = 'CONSUMED_BY')
           SELECT topic, consumer_group, count(*) AS messages, round(quantile_cont(ms, 0.5), 1) AS p50_ms,
                  round(quantile_cont(ms, 0.99), 1) AS p99_ms, round(max(ms), 1) AS max_ms
           FROM passed GROUP BY ALL ORDER BY topic, consumer_group""",
        prepared=True,
    )


def redeliveries(graph: Graph, limit: int | None = LIMIT, of_topic: int | None = None) -> list[Fact]:
    """Return the messages that were given back, most often first; `dead_lettered_by` is the group that gave one up.
    With `of_topic`, no topic has more messages than that.
    """
    return graph.rows(
        f"""WITH again AS (
               SELECT r.dst AS node_id, count(DISTINCT r.src) AS redeliveries,
                      any_value(replace(d.dst, 'consumer_group:', '')) AS dead_lettered_by
               FROM edges r LEFT JOIN edges d ON d.kind = 'DEAD_LETTERED' AND d.src = r.dst
               WHERE r.kind = 'RETRY_OF' GROUP BY r.dst)
           FROM again QUALIFY ?::BIGINT IS NULL OR row_number() OVER (
               PARTITION BY {_TOPIC_OF.format("node_id")} ORDER BY redeliveries DESC, node_id) <= ?::BIGINT
           ORDER BY redeliveries DESC, node_id LIMIT ?""",  # noqa: S608
        [of_topic, of_topic, limit],
    )


def dead_letters(
    graph: Graph, consumer_group: str | None = None, limit: int | None = LIMIT, of_topic: int | None = None
) -> list[Fact]:
    """Return the open dead letters, oldest first: messages that a group gave up and has not processed since. With
    `of_topic`, no topic has more messages than that.
    """
    return graph.rows(
        f"""WITH dead AS (
               SELECT d.src AS node_id, replace(d.dst, 'consumer_group:', '') AS consumer_group,
                      min(d.ts) AS dead_since, any_value(n.attrs.key) AS key,
                      any_value(n.attrs."group") AS producer_group, min(n.first_ts) AS sent
               FROM edges d LEFT JOIN (FROM nodes ANTI JOIN others USING (node_id, first_ts)) n ON n.node_id = d.src
               WHERE {_IS_OPEN} AND (? IS NULL OR d.dst = ?) GROUP BY d.src, d.dst),
           told AS (  -- a message may be the dead letter of several groups
               SELECT node_id FROM dead GROUP BY node_id QUALIFY ?::BIGINT IS NULL OR row_number() OVER (
                   PARTITION BY {_TOPIC_OF.format("node_id")} ORDER BY min(dead_since), node_id) <= ?::BIGINT)
           FROM dead SEMI JOIN told USING (node_id)
           ORDER BY dead_since, node_id, consumer_group LIMIT ?""",  # noqa: S608
        [*[consumer_group and schema.node(schema.CONSUMER_GROUP, consumer_group)] * 2, of_topic, of_topic, limit],
        prepared=True,
    )


def resets(graph: Graph, limit: int = LIMIT) -> list[Fact]:
    """Return the resets of groups to other offsets, oldest first. A reset moved the offset from `reset_from` to
    `reset_to` between the times `after` and `before`, which are equal when the log has the reset itself.

    Logs of 0.2.0 have none: there, resets to earlier offsets are drawn from the commits around them.
    """
    return graph.rows(
        """WITH moves AS (
               SELECT type, "group", topic, queue, "offset", offset_end, ts, raft_index, event_id,
                      lag(ts) OVER log AS after, lag(offset_end) OVER log AS was
               FROM events WHERE type IN ('ACK', 'RESET')
               WINDOW log AS (PARTITION BY "group", topic, queue
                              ORDER BY raft_index, CAST(split_part(event_id, ':', 3) AS BIGINT)))
           SELECT "group" AS consumer_group, topic, queue, "offset" AS reset_from, offset_end AS reset_to,
                  ts AS after, ts AS before, event_id
           FROM moves WHERE type = 'RESET' AND "offset" <> offset_end
           UNION ALL
           SELECT "group", topic, queue, was, "offset", after, ts, event_id
           FROM moves a WHERE type = 'ACK' AND "offset" < was AND EXISTS (  -- pop consumers acknowledge in any order
               SELECT 1 FROM moves b
               WHERE b.type = 'ACK' AND b."group" = a."group" AND b.topic = a.topic AND b.queue = a.queue
                 AND b.raft_index < a.raft_index AND b."offset" < a.offset_end AND b.offset_end > a."offset"
                 AND NOT EXISTS (
                     SELECT 1 FROM moves r
                     WHERE r.type = 'RESET' AND r."group" = a."group" AND r.topic = a.topic AND r.queue = a.queue
                       AND r.raft_index BETWEEN b.raft_index AND a.raft_index))
           ORDER BY before, consumer_group, topic, queue LIMIT ?""",
        [limit],
    )


def summary(graph: Graph) -> dict[str, Any]:
    """Return the number of events, of nodes by kind and state, and of edges by kind. `events` also has the `raft_index`
    of the last one, and `end_index`, before which the tables have every entry of the log.
    """
    nodes = graph.rows(
        """SELECT kind, state, count(DISTINCT node_id) AS n FROM nodes ANTI JOIN others USING (node_id, first_ts)
           GROUP BY ALL ORDER BY ALL""",
        prepared=True,
    )
    edges = graph.rows("SELECT kind, count(DISTINCT (src, dst)) AS n FROM edges GROUP BY ALL ORDER BY ALL")
    (events,) = graph.rows("SELECT count(*) AS n, max(raft_index) AS raft_index FROM events")
    return {"events": events | {"end_index": graph.end_index}, "nodes": nodes, "edges": edges}
