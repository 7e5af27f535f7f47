"""Checks a topic that keeps its messages for seconds: none goes before its time, none comes back, and all nodes keep
the same.
"""

from collections.abc import Mapping
from typing import NamedTuple

from tests.chaos.ledger import Outcome, WorkerLedger
from tests.chaos.message import name_of, number_of
from tests.chaos.violations import Kind, Violations


class Kept(NamedTuple):
    """A message that a node holds."""

    offset: int
    number: int
    stored_at_ms: int


class Pulled(NamedTuple):
    """A node's answer to a pull: the bounds of its queue, and messages from the requested offset on."""

    min_offset: int
    max_offset: int
    messages: tuple[Kept, ...]


class ExpiringQueues:
    """Checks the reads of an expiring topic: call `pulled` for every read of every node, then `finish`."""

    def __init__(self, topic: str, retention_ms: int, violations: Violations) -> None:
        self._topic = topic
        self._retention_ms = retention_ms
        self._violations = violations
        self._stored_at_ms: dict[tuple[int, int], int] = {}  # by queue and offset
        self._places: dict[int, tuple[int, int]] = {}  # number -> queue and offset
        self._gone: dict[int, int] = {}  # queue -> offset before which some node has nothing
        self._begins: dict[tuple[int, int, int], int] = {}  # node, its start, queue -> where it began last

    @property
    def gone(self) -> int:
        """Number of messages that were removed, as far as any read has shown."""
        return sum(self._gone.values())

    def pulled(self, node: tuple[int, int], queue: int, offset: int, answer: Pulled, latest_ms: float) -> None:
        """Check one read. `node` is the node's id and the number of its start: within one start, a queue never begins
        earlier again. `latest_ms` is an upper bound of all clocks.
        """
        where = f"node {node[0]}, {self._topic}/{queue}"
        before = self._begins.get((*node, queue), 0)
        if answer.min_offset < before:
            self._add(Kind.EXPIRED, f"{where} begins at {answer.min_offset}, after it began at {before}")
        self._begins[*node, queue] = answer.min_offset
        expected = max(offset, answer.min_offset)
        for message in answer.messages:
            if message.offset != expected:
                self._add(Kind.GAP, f"{where} goes on at {message.offset}, where {expected} is due")
            expected = message.offset + 1
            self._stored_at_ms[queue, message.offset] = message.stored_at_ms
            place = self._places.setdefault(message.number, (queue, message.offset))
            if place != (queue, message.offset):
                self._add(Kind.DUPLICATED, f"{where} has {name_of(message.number)} at {message.offset}, and {place}")
        self._note_gone(where, queue, answer.min_offset, latest_ms)

    def finish(self, ledger: WorkerLedger, nodes: Mapping[int, Mapping[int, Pulled]]) -> None:
        """Check whole queues by node and queue, of nodes that have applied the same entries."""
        if any(queues != other for queues in nodes.values() for other in nodes.values()):
            ranges = {
                node_id: {queue: (each.min_offset, each.max_offset) for queue, each in queues.items()}
                for node_id, queues in nodes.items()
            }
            self._add(Kind.EXPIRED, f"the nodes have applied the same, and keep {ranges} of {self._topic}, or others")
        for node_id, queues in nodes.items():
            there = {each.number: (queue, each.offset) for queue, pull in queues.items() for each in pull.messages}
            for queue, pulled in queues.items():
                if pulled.min_offset < self._gone.get(queue, 0):
                    self._add(
                        Kind.EXPIRED, f"node {node_id}: {self._topic}/{queue} begins at {pulled.min_offset} again"
                    )
            for sequence, outcome in enumerate(ledger.outcomes):
                number = number_of(ledger.worker, sequence)
                self._judge(node_id, number, Outcome(outcome), ledger.place(sequence), there, queues)

    def _judge(
        self,
        node_id: int,
        number: int,
        outcome: Outcome,
        told: tuple[str, int, int] | None,
        there: Mapping[int, tuple[int, int]],
        queues: Mapping[int, Pulled],
    ) -> None:
        what = f"node {node_id}: {name_of(number)}"
        place = there.get(number)
        if outcome == Outcome.FAILED and place is not None:
            self._add(Kind.FAILED_BUT_STORED, f"{what} was refused for certain and is at {place} of {self._topic}")
        if outcome != Outcome.ACKED or told is None:
            return
        _, queue, offset = told
        if place is None and offset >= queues[queue].min_offset:
            self._add(Kind.LOST, f"{what} was acknowledged at {told}, which is kept, and is not there")
        elif place not in (None, (queue, offset)):
            self._add(Kind.MOVED, f"{what} was acknowledged at {told}, and is at {place}")

    def _note_gone(self, where: str, queue: int, begin: int, latest_ms: float) -> None:
        for offset in range(self._gone.get(queue, 0), begin):
            stored_at_ms = self._stored_at_ms.get((queue, offset))
            if stored_at_ms is not None and stored_at_ms + self._retention_ms > latest_ms:
                left_ms = stored_at_ms + self._retention_ms - latest_ms
                self._add(Kind.EXPIRED, f"{where} has lost offset {offset}, {left_ms:.0f} ms before its time was over")
        self._gone[queue] = max(begin, self._gone.get(queue, 0))

    def _add(self, kind: Kind, detail: str) -> None:
        self._violations.add(kind, detail)
