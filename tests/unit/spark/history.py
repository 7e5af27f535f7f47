"""Histories for the tests of the lineage: rows of the view `events`, in the words of a broker."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from keelmq_spark.folding.sink import LineageSink
from keelmq_spark.tables.commits import Format
from keelmq_spark.tables.tables import Tables
from keelmq_spark.views.events import EVENTS_ARROW

START_US = 1_790_000_000_000_000


class History:
    """A history in which each call is an entry of the log; `table()` returns the view of all of them."""

    def __init__(self) -> None:
        self._rows: list[dict[str, Any]] = []
        self._index = 0
        self._ends: dict[tuple[str, int], int] = {}

    def entry(self, *rows: dict[str, Any]) -> int:
        """Add an entry with these rows and return its Raft index."""
        self._index += 1
        for number, row in enumerate(rows):
            fixed = {"event_id": f"0:{self._index}:{number}", "ts": START_US + self._index * 1_000_000}
            self._rows.append(
                dict.fromkeys(EVENTS_ARROW.names) | fixed | {"raft_term": 1, "raft_index": self._index} | row
            )
        return self._index

    def publish(self, topic: str, *message_ids: str, queue: int = 0, **fields: Any) -> int:
        return self.entry(*(self.published(topic, each, queue, **fields) for each in message_ids))

    def restart(self, topic: str) -> None:
        """Have the offsets of a topic begin anew, as when it was deleted and made again; the log does not tell that."""
        self._ends = {place: end for place, end in self._ends.items() if place[0] != topic}

    def delete(self, topic: str) -> int:
        """Delete a topic; one of this name that is made later begins anew."""
        self.restart(topic)
        return self.entry({"type": "TOPIC_DELETE", "topic": topic})

    def published(self, topic: str, message_id: str, queue: int = 0, **fields: Any) -> dict[str, Any]:
        offset = self._ends.get((topic, queue), 0)
        self._ends[topic, queue] = offset + 1
        row = {
            "type": "PUBLISH",
            "topic": topic,
            "queue": queue,
            "offset": offset,
            "message_id": message_id,
            "bytes": 1,
        }
        return row | fields

    def half(self, transaction_id: str, topic: str, *message_ids: str, group: str = "shop", **fields: Any) -> int:
        row = {"type": "HALF", "transaction_id": transaction_id, "topic": topic, "queue": 0, "group": group} | fields
        return self.entry(*(row | {"message_id": each} for each in message_ids))

    def decide(self, kind: str, transaction_id: str, *and_then: dict[str, Any], group: str = "shop") -> int:
        return self.entry({"type": kind, "transaction_id": transaction_id, "group": group}, *and_then)

    def commit(self, transaction_id: str, topic: str, *message_ids: str, group: str = "shop") -> int:
        rows = [self.published(topic, each, transaction_id=transaction_id, group=group) for each in message_ids]
        return self.decide("COMMIT", transaction_id, *rows, group=group)

    def ack(self, group: str, topic: str, begin: int, end: int, queue: int = 0, filter: str | None = None) -> int:
        row = {"type": "ACK", "group": group, "topic": topic, "queue": queue, "offset": begin, "offset_end": end}
        return self.entry(row | {"filter": filter})

    def reset(self, group: str, topic: str, begin: int | None, end: int) -> int:
        return self.entry(
            {"type": "RESET", "group": group, "topic": topic, "queue": 0, "offset": begin, "offset_end": end}
        )

    def purge(self, topic: str, begin: int, end: int) -> int:
        return self.entry({"type": "PURGE", "topic": topic, "queue": 0, "offset": begin, "offset_end": end})

    def retry(self, group: str, topic: str, offset: int, message_id: str, attempt: int = 1, kind: str = "RETRY") -> int:
        row = {"type": kind, "group": group, "topic": topic, "queue": 0, "offset": offset, "attempt": attempt}
        return self.entry(row | {"message_id": message_id})

    def table(self) -> Any:
        rows = [
            row | {"ts": pa.scalar(row["ts"], pa.int64()).cast(EVENTS_ARROW.field("ts").type)} for row in self._rows
        ]
        return pa.Table.from_pylist(rows, schema=EVENTS_ARROW)

    @property
    def end(self) -> int:
        """Index of the next entry."""
        return self._index + 1

    def between(self, begin: int, end: int) -> Any:
        """Return the view of the entries begin <= index < end."""
        table = self.table()
        return table.filter(pc.and_(pc.greater_equal(table["raft_index"], begin), pc.less(table["raft_index"], end)))

    def write(self, path: Path, format: Format = "delta") -> None:
        """Have a new process add to the tables what they do not have yet."""
        sink = LineageSink(Tables(path, format))
        begin = max(sink.next_index, 1)
        sink.write(self.between(begin, self.end), begin, self.end)


def shop() -> History:
    """Return transactions of all outcomes, a retry, a dead letter, scheduled messages, and handlers that send
    onward.
    """
    log = History()
    log.publish("orders", "a-0", "a-1", group="web", client="c", key="k")
    log.half("t1", "orders", "t1-0")
    log.publish("orders", "b-0")
    log.commit("t1", "orders", "t1-0")
    log.half("t2", "orders", "t2-0", "t2-1")
    log.ack("shipping", "orders", 0, 2)
    log.publish("shipments", "s-0", group="shipping", causation_id="orders/a-0", trace_id="ab" * 16)
    log.decide("ROLLBACK", "t2")
    log.half("t3", "orders", "t3-0")
    log.decide("CHECK", "t3")
    log.retry("shipping", "orders", 2, "b-0")
    log.ack("shipping", "orders", 2, 4)
    log.publish("%RETRY%shipping", "b-0", attempt=1)
    log.publish("shipments", "s-1", group="shipping", causation_id="orders/b-0,orders/t1-0")
    log.ack("shipping", "%RETRY%shipping", 0, 1)
    log.entry({"type": "SCHEDULE", "topic": "orders", "queue": 0, "message_id": "later-0", "group": "web"})
    log.entry({"type": "SCHEDULE", "topic": "orders", "queue": 0, "message_id": "never-0"})
    log.publish("orders", "later-0", group="web")
    log.entry({"type": "CANCEL", "topic": "orders", "queue": 0, "message_id": "never-0"})
    log.retry("shipping", "orders", 4, "later-0")
    log.ack("shipping", "orders", 4, 5)
    log.publish("%RETRY%shipping", "later-0", attempt=1)
    log.retry("shipping", "orders", 4, "later-0", attempt=2, kind="DLQ")
    log.publish("%DLQ%shipping", "later-0", attempt=2)
    log.ack("shipping", "%RETRY%shipping", 1, 2)
    log.ack("audit", "orders", 0, 5)
    log.ack("audit", "shipments", 0, 2)
    log.decide("DISCARD", "t3")
    return log
