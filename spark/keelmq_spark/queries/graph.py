"""Reads the tables with DuckDB, without Spark: point look-ups, and walks along CAUSED_BY.

A graph shows the tables as they were complete when it was opened. A node that came again after it was settled, or an
edge that was seen twice, is merged: the newest state, the first edge. Of messages with one id, a published one is the
message: half messages of other transactions that had its id never became visible, and say nothing about it (`others`).
"""

from collections.abc import Iterable, Sequence
from functools import reduce
from types import TracebackType
from typing import Any, Final, Self

import duckdb

from keelmq_spark.tables import schema
from keelmq_spark.tables.errors import TablesError
from keelmq_spark.tables.published import Rows, rows_sql
from keelmq_spark.tables.storage import Place
from keelmq_spark.tables.tables import Tables

DEPTH_MAX: Final = 64
"""Maximum number of steps of a walk between cause and effect."""
OPENINGS_MAX: Final = 20
"""Number of times that tables are opened whose files are replaced meanwhile."""
EACH_MAX: Final = 16
"""Number of ids up to which each is looked up by itself, with the help of Bloom filters, which a list of ids has not.
Object stores are read without them."""
FOUND_MAX: Final = 10_000
"""Maximum number of messages that a walk visits."""

Fact = dict[str, Any]
"""A row of an answer."""

_UNNAMED: Final = f"{schema.MESSAGE}:{schema.ANY_TOPIC}/"
"""Beginning of the node id of a cause that was named without its topic."""

_NODE_COLUMNS: Final = "node_id, kind, first_ts, last_ts, state, unnest(attrs)"

_OTHERS: Final = """
    SELECT DISTINCT o.node_id, o.first_ts FROM nodes o JOIN nodes p USING (node_id)
    WHERE o.kind = 'message' AND o.state <> 'published' AND o.attrs.transaction_id IS NOT NULL
      AND p.kind = 'message' AND p.state = 'published' AND p.first_ts <> o.first_ts
      AND p.attrs.transaction_id IS DISTINCT FROM o.attrs.transaction_id"""
"""Half messages that never became visible and have the id of a message that did, by when they were prepared."""

_WITHOUT_OTHERS: Final = "ANTI JOIN others o ON o.node_id = e.{0} AND o.first_ts = e.ts"
"""Clause that leaves `others` out; a query without others has no such clause, which is usual and faster."""

_PRODUCED: Final = "SELECT src, dst, ts, event_id FROM edges e {0} WHERE e.kind = 'PRODUCED'"
"""Edges from producer groups to their messages, without those of `others`."""

_CAUSED: Final = "SELECT src, dst, ts, event_id FROM edges e {0} WHERE e.kind = 'CAUSED_BY'"
"""Edges from messages to their causes as the table has them, without those of `others`."""

_CAUSES: Final = f"""
    SELECT * FROM caused WHERE NOT starts_with(dst, '{_UNNAMED}')
    UNION ALL
    SELECT e.src, coalesce(n.node_id, e.dst) AS dst, e.ts, e.event_id FROM caused e LEFT JOIN (
        SELECT DISTINCT node_id, attrs.message_id AS id FROM nodes
        WHERE kind = 'message' AND NOT starts_with(node_id, 'message:%RETRY%')
    ) n ON n.id = substr(e.dst, {len(_UNNAMED) + 1})
    WHERE starts_with(e.dst, '{_UNNAMED}')"""  # noqa: S608
"""The edges `caused`, in which a cause without a topic is each message that may be meant, otherwise
`message:?/<id>`."""

_VISIBLE: Final = "SELECT DISTINCT src AS node_id FROM edges WHERE kind = 'IN_TOPIC'"
"""Messages that ever were in a topic: not those of undecided and rolled-back transactions, nor cancelled ones."""


class NoTables(Exception):
    """Raised when there are no tables at the path; the message says what to do."""


class Graph:
    """A read-only view of the tables as they were when it was opened. Use it as a context manager."""

    def __init__(self, place: Place) -> None:
        """Raise NoTables, and TablesError for tables that cannot be read."""
        self._place = place
        self.end_index = 0
        """Index before which the tables have every entry of the log."""
        self._each_max = EACH_MAX
        self._open()

    def _open(self) -> None:
        for left in reversed(range(OPENINGS_MAX)):
            found = self._found()
            if found is None:
                continue
            self._connection = duckdb.connect()
            self._connection.execute("SET TimeZone = 'UTC'; SET parquet_metadata_cache = true")
            try:
                for name, rows in found.items():
                    self._connection.execute(f"CREATE VIEW {name} AS {rows_sql(self._connection, name, rows)}")
            except duckdb.IOException:  # compacted or pruned since
                self.close()
                if not left:
                    raise
            else:
                self._is_prepared = False
                return
        raise TablesError(f"{self._place} is committed more often than its files can be listed: ask again")

    def _found(self) -> dict[str, Rows] | None:
        """Return the rows of the tables as of the last commit; None when another one has come meanwhile, whose job may
        have replaced files by ones that have later rows too.
        """
        tables = Tables(self._place)
        path = tables.storage.name
        if tables.commit is None:
            raise NoTables(f"there are no lineage tables in {path}: `keelmq-lineage run --tables {path}` makes them")
        found = {name: table.rows() for name, table in tables.all.items()}
        self._each_max = EACH_MAX if all(rows.dataset is None for rows in found.values()) else 1
        self.end_index = tables.commit.end_index
        return found if tables.format == "delta" or tables.is_current() else None

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def rows(self, query: str, parameters: Sequence[Any] = (), *, prepared: bool = False) -> list[Fact]:
        """Return the rows of `query`, which is SQL over `events`, `nodes` and `edges`; with `prepared` also over
        `others`, `produced`, `caused`, `causes` and `visible`, for which all nodes are read.

        Files that were compacted or pruned since the graph was opened have it opened anew."""
        for last in (False, True):
            try:
                if prepared:
                    self._prepare()
                rows: list[Fact] = self._connection.sql(query, params=list(parameters)).to_arrow_table().to_pylist()
            except (duckdb.IOException, duckdb.InvalidInputException):  # the second one for a dataset
                if last:
                    raise
                self.close()
                self._open()
            else:
                return rows
        raise AssertionError

    def _prepare(self) -> None:
        if not self._is_prepared:
            self._connection.execute(f"CREATE TEMP TABLE others AS {_OTHERS}")
            (found,) = self._connection.execute("SELECT count(*) FROM others").fetchone() or (0,)
            of_dst, of_src = (_WITHOUT_OTHERS.format(end) if found else "" for end in ("dst", "src"))
            views = {"produced": _PRODUCED.format(of_dst), "caused": _CAUSED.format(of_src)}
            for name, view in {**views, "causes": _CAUSES, "visible": _VISIBLE}.items():
                self._connection.execute(f"CREATE VIEW {name} AS {view}")
            self._is_prepared = True

    def nodes(self, node_ids: Iterable[str]) -> list[Fact]:
        """Return the existing nodes with these ids, each once, in the order of the ids."""
        wanted = list(dict.fromkeys(node_ids))
        found = self._rows_of(wanted)
        return [reduce(_merged, without_others(found[node_id])) for node_id in wanted if node_id in found]

    def _rows_of(self, node_ids: Sequence[str]) -> dict[str, list[Fact]]:
        """Return the rows of the nodes."""
        found: dict[str, list[Fact]] = {}
        if node_ids:
            for row in self._rows_with(f"SELECT {_NODE_COLUMNS} FROM nodes", "node_id", node_ids):  # noqa: S608
                found.setdefault(row["node_id"], []).append(row)
        return found

    def _rows_with(
        self, select: str, column: str, ids: Sequence[str], kinds: Sequence[str] = (), end: str = ""
    ) -> list[Fact]:
        """Return the rows of `select` whose `column` is one of the ids, and whose kind is one of `kinds` if there are
        any; `end` is the end of the query.
        """
        of_kinds = f" AND kind IN ({', '.join('?' for _ in kinds)})" if kinds else ""
        if len(ids) <= self._each_max:
            query = " UNION ALL ".join([f"{select} WHERE {column} = ?{of_kinds}"] * len(ids))
            return self.rows(query + end, [value for node_id in ids for value in (node_id, *kinds)])
        query = f"{select} WHERE {column} IN ({', '.join('?' for _ in ids)}){of_kinds}"
        return self.rows(query + end, [*ids, *kinds])

    def _own(self, edges: Sequence[Fact]) -> list[Fact]:
        """Return the edges without those of a half message that says nothing about the message with its id."""
        of_messages = {"PRODUCED": "dst", "CAUSED_BY": "src", "DECIDED_BY": "src"}
        ends = {edge[of_messages[edge["kind"]]] for edge in edges if edge["kind"] in of_messages}
        others = set()
        for node_id, rows in self._rows_of(sorted(ends)).items():
            kept = without_others(rows)
            others |= {(node_id, row[time]) for row in rows if row not in kept for time in ("first_ts", "last_ts")}
        return [
            edge
            for edge in edges
            if edge["kind"] not in of_messages or (edge[of_messages[edge["kind"]]], edge["ts"]) not in others
        ]

    def edges(
        self,
        column: str,
        node_ids: Iterable[str],
        kinds: Sequence[str] = (),
        *,
        last: int | None = None,
        own: bool = False,
    ) -> list[Fact]:
        """Return the edges whose `column` (src or dst) is one of the ids, each once, ordered by time; with `last` no
        more than this number, the last ones, and with `own` without those of `others`.
        """
        wanted = list(dict.fromkeys(node_ids))
        if not wanted:
            return []
        end = "" if last is None else f" ORDER BY ts DESC, src, dst LIMIT {last:d}"
        found: dict[tuple[str, str, str], Fact] = {}
        rows = self._rows_with("SELECT src, dst, kind, ts, event_id FROM edges", column, wanted, kinds, end)
        for row in self._own(rows) if own else rows:
            known = found.get((row["src"], row["dst"], row["kind"]))
            if known is None or row["ts"] < known["ts"]:
                found[row["src"], row["dst"], row["kind"]] = row
        return sorted(found.values(), key=lambda row: (row["ts"], row["kind"], row["src"], row["dst"]))

    def delivery_events(self, messages: Sequence[str]) -> dict[str, set[str]]:
        """Return the ids of the events in topics of groups that are about each message: its redeliveries, its dead
        letters, and how it was given back there. Other messages may have its id, which is unique in its topic only.
        """
        found: dict[str, set[str]] = {message: set() for message in messages}
        origins = {message: message for message in messages}
        for edge in self.edges("dst", messages, [schema.RETRY_OF]):
            origins[edge["src"]] = edge["dst"]
            found[edge["dst"]].add(edge["event_id"])
        if origins:
            kinds = (schema.IN_TOPIC, schema.DEAD_LETTERED)
            for row in self._rows_with("SELECT src, event_id FROM edges", "src", list(origins), kinds):
                found[origins[row["src"]]].add(row["event_id"])
        return found

    def find(self, what: str) -> list[str]:
        """Return the node ids that `what` may mean: a node id, topic/id, a message id or a transaction id."""
        if what.partition(":")[0] in (schema.MESSAGE, schema.TRANSACTION, schema.TOPIC, *_GROUPS) and ":" in what:
            return [row["node_id"] for row in self.nodes([what])]
        if "/" in what:
            return [row["node_id"] for row in self.nodes([f"{schema.MESSAGE}:{what}"])]
        found = [row["node_id"] for row in self.nodes([schema.node(schema.TRANSACTION, what)])]
        return found + self.messages_of_id(what)

    def messages_of_id(self, message_id: str) -> list[str]:
        """Return the node ids of the messages with this id, in all topics."""
        rows = self.rows(
            """SELECT topic FROM events WHERE message_id = ? AND topic IS NOT NULL
               UNION  -- what is open outlives its events
               SELECT attrs.topic FROM nodes WHERE kind = 'message' AND open AND attrs.message_id = ?""",
            [message_id, message_id],
        )
        topics = sorted(row["topic"] for row in rows if not row["topic"].startswith(schema.GROUP_TOPICS))
        return [schema.message_node(topic, message_id) for topic in topics]

    def walk(self, start: str, *, forward: bool, depth: int = DEPTH_MAX) -> list[Fact]:
        """Return the effects of `start` (`forward`) or its causes.

        Each has a `node_id`, its `depth`, and `via`, the node one step nearer to `start`.
        """
        seen = {start}
        found: list[Fact] = []
        frontier = [start]
        for step in range(1, depth + 1):
            near, far = ("dst", "src") if forward else ("src", "dst")
            following = []
            near_ids = also_unnamed(frontier) if forward else frontier
            for edge in self.edges(near, near_ids, [schema.CAUSED_BY], own=True):
                for node_id in [edge[far]] if forward else self._named(edge[far]):
                    if node_id not in seen and len(seen) < FOUND_MAX:
                        seen.add(node_id)
                        following.append(node_id)
                        found.append({"node_id": node_id, "depth": step, "via": edge[near], "ts": edge["ts"]})
            if not following:
                break
            frontier = following
        return found

    def named(self, edges: Iterable[Fact]) -> list[Fact]:
        """Return the edges, with each cause without a topic replaced by the messages that it may mean."""
        return [
            edge | {"dst": cause} if cause != edge["dst"] else edge
            for edge in edges
            for cause in (self._named(edge["dst"]) if edge["kind"] == schema.CAUSED_BY else [edge["dst"]])
        ]

    def _named(self, cause: str) -> list[str]:
        """Return the known messages that a cause without a topic may mean; an unknown cause is returned as it is."""
        if not cause.startswith(_UNNAMED):
            return [cause]
        return self.messages_of_id(cause.removeprefix(_UNNAMED)) or [cause]


_GROUPS: Final = (schema.PRODUCER_GROUP, schema.CONSUMER_GROUP)


def also_unnamed(node_ids: Sequence[str]) -> list[str]:
    """Return the ids, and the ids by which a cause without a topic refers to them."""
    return [*node_ids, *(schema.message_node(schema.ANY_TOPIC, node_id.partition("/")[2]) for node_id in node_ids)]


def without_others(rows: Sequence[Fact]) -> list[Fact]:
    """Return the rows of a node without those of half messages that never became visible, when one row is of a message
    that did, and is not of their transaction.
    """
    published = [row for row in rows if row["kind"] == schema.MESSAGE and row["state"] == schema.PUBLISHED]
    own = {row["transaction_id"] for row in published}
    return [row for row in rows if not own or row["state"] == schema.PUBLISHED or row["transaction_id"] in {None, *own}]


def _merged(one: Fact, other: Fact) -> Fact:
    newer, older = (one, other) if (one["raft_index"] or 0) > (other["raft_index"] or 0) else (other, one)
    merged = {name: value if value is not None else older[name] for name, value in newer.items()}
    merged["first_ts"] = min(one["first_ts"], other["first_ts"])
    merged["last_ts"] = max(one["last_ts"], other["last_ts"])
    return merged
