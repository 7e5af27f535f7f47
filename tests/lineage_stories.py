"""Orders that a made-up shop processes, the same ones each time: for the pictures of docs/lineage.md and tests."""

import heapq
import itertools
import random
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from keelmq_spark.queries.graph import Graph
from keelmq_spark.queries.pictures import story_picture
from tests.unit.spark.history import START_US, History

STORIES: Final = {10: 2, 50: 14, 200: 52}
"""Number of boxes that a story has about, and of messages for it."""
_FLOWS: Final = {
    "orders": (("billing", "bills"), ("stock", "picks"), ("audit", None)),
    "bills": (("ledger", None), ("mail", "mails")),
    "picks": (("shipping", "shipments"), ("audit", None)),
    "shipments": (("tracking", "positions"), ("mail", "mails")),
    "positions": (("search", None),),
    "mails": (("postbox", None),),
}
"""The groups that consume each topic, and where their handlers send to."""
_MS: Final = 1000
_ATTEMPTS_MAX: Final = 3
_TRACE: Final = "4bf92f3577b34da6a3ce929d0e0e4736"


class _Delivery(NamedTuple):
    """A message at a group: where it was first, and where the group got it from this time."""

    group: str
    target: str | None
    topic: str
    message_id: str
    offset: int
    attempt: int
    from_topic: str
    from_offset: int


class _Shop:
    """A history of one order; what happens is in the order of its times."""

    def __init__(self, messages: int) -> None:
        self.log = History()
        self._left = messages
        self._drawn = random.Random(messages)
        self._due: list[tuple[int, int, Callable[[int], None]]] = []
        self._numbers = itertools.count()

    def at(self, us: int, then: Callable[[int], None]) -> None:
        heapq.heappush(self._due, (us, next(self._numbers), then))

    def run(self) -> None:
        while self._due:
            us, _, then = heapq.heappop(self._due)
            then(us)

    def order(self, us: int) -> None:
        """Have the web prepare an order in a transaction, and commit it a while later."""
        fields = {"topic": "orders", "queue": 0, "message_id": "order-17", "group": "web", "trace_id": _TRACE}
        prepared = {"type": "HALF", "transaction_id": "pay-17", **fields, "ts": us}
        self.log.entry(prepared)
        self._left -= 1

        def check(now: int) -> None:
            self.log.entry({"type": "CHECK", "transaction_id": "pay-17", "group": "web", "attempt": 1, "ts": now})

        def commit(now: int) -> None:
            decided = {"type": "COMMIT", "transaction_id": "pay-17", "group": "web", "ts": now}
            row = self.log.published(
                "orders", "order-17", transaction_id="pay-17", ts=now, group="web", trace_id=_TRACE
            )
            self.log.entry(decided, row)
            self.deliver("orders", "order-17", row["offset"], now)

        self.at(us + 31 * _MS, check)
        self.at(us + 42 * _MS, commit)

    def deliver(self, topic: str, message_id: str, offset: int, us: int) -> None:
        for group, target in _FLOWS[topic]:
            delivery = _Delivery(group, target, topic, message_id, offset, 1, topic, offset)
            self.at(us, partial(self._handle, delivery))

    def _handle(self, it: "_Delivery", us: int) -> None:
        lasts = self._drawn.randint(3, 30) * _MS
        fails = self._drawn.random() < (0.15 if it.attempt == 1 else 0.5)
        if it.target and not fails:
            count = min(self._left, 1 + self._drawn.randint(0, max(1, self._left // 6)))
            self._left -= count
            for number in range(count):
                name = f"{it.target[:-1]}-{next(self._numbers)}"
                begin = us + lasts * (number + 1) // (count + 2)
                self.at(begin, partial(self._send, it, name))
        self.at(us + lasts, partial(self._give_back if fails else self._ack, it))

    def _send(self, it: "_Delivery", name: str, us: int) -> None:
        topic, cause = it.target or "", f"{it.topic}/{it.message_id}"
        fields = {"group": it.group, "causation_id": cause, "trace_id": _TRACE, "ts": us}
        if topic == "mails" and self._drawn.random() < 0.5:
            self.log.entry({"type": "SCHEDULE", "topic": topic, "queue": 0, "message_id": name, **fields})
            self.at(us + 60_000 * _MS, lambda now: self._publish(topic, name, {"group": it.group, "ts": now}))
        else:
            self._publish(topic, name, fields)

    def _publish(self, topic: str, name: str, fields: dict[str, Any]) -> None:
        row = self.log.published(topic, name, **fields)
        self.log.entry(row)
        self.deliver(topic, name, row["offset"], row["ts"])

    def _ack(self, it: "_Delivery", us: int) -> None:
        begin = {"topic": it.from_topic, "queue": 0, "offset": it.from_offset, "offset_end": it.from_offset + 1}
        self.log.entry({"type": "ACK", "group": it.group, **begin, "ts": us})

    def _give_back(self, it: "_Delivery", us: int) -> None:
        kind = "RETRY" if it.attempt < _ATTEMPTS_MAX else "DLQ"
        of = {"group": it.group, "topic": it.topic, "queue": 0, "offset": it.offset, "attempt": it.attempt}
        self.log.entry({"type": kind, **of, "message_id": it.message_id, "ts": us})
        self._ack(it, us)

        def again(now: int) -> None:
            copy = self.log.published(f"%{kind}%{it.group}", it.message_id, attempt=it.attempt, ts=now)
            self.log.entry(copy)
            if kind == "RETRY":
                following = it._replace(attempt=it.attempt + 1, from_topic=copy["topic"], from_offset=copy["offset"])
                self._handle(following, now)

        self.at(us + (10_000 * _MS * it.attempt if kind == "RETRY" else 0), again)


def order_history(messages: int) -> History:
    """Return the history of an order that leads to about so many messages."""
    shop = _Shop(messages)
    shop.at(START_US, shop.order)
    shop.run()
    return shop.log


def story(boxes: int) -> str:
    """Return the picture of a story that has about so many boxes."""
    with tempfile.TemporaryDirectory() as directory:
        order_history(STORIES[boxes]).write(Path(directory))
        with Graph(directory) as graph:
            return story_picture(graph, "message:orders/order-17") + "\n"
