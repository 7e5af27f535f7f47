"""Collects every read of every client: an offset must have one value for ever."""

from array import array
from collections.abc import Callable

from tests.chaos.ledger import Book
from tests.chaos.message import name_of, number_in, sequence_of, worker_of
from tests.chaos.violations import Kind, Violations

TopicQueue = tuple[str, int]


class QueueReads:
    """Owns the values read so far. Every read goes through `read`; the first read of an offset binds all others."""

    def __init__(self, book: Book, violations: Violations) -> None:
        self.reads = 0
        self._book = book
        self._violations = violations
        self._rules: dict[int, Callable[[int], bool]] = {}
        self._values: dict[TopicQueue, array[int]] = {}  # number + 1 by offset; 0: not read yet

    def require(self, worker: int, rule: Callable[[int], bool]) -> None:
        """Allow reads of this worker's messages only when `rule` holds for their number at that time."""
        self._rules[worker] = rule

    def read(self, place: TopicQueue, offset: int, body: bytes, reader: str) -> int | None:
        """Note a read. Returns the message's number, or None (and a violation) for a body that nobody sent."""
        self.reads += 1
        number = number_in(body)
        if number is None:
            self._violations.add(Kind.DAMAGED, f"{_at(place, offset)}: {reader} read {body[:60]!r}")
            return None
        self._judge(place, offset, number, reader)
        values = self._values.setdefault(place, array("Q"))
        if offset >= len(values):
            values.extend([0] * (offset + 1 - len(values)))
        before = values[offset]
        if before == 0:
            values[offset] = number + 1
        elif before != number + 1:
            self._violations.add(
                Kind.CONFLICTING_READ,
                f"{_at(place, offset)}: {reader} read {name_of(number)}, an earlier read was {name_of(before - 1)}",
            )
        return number

    def places(self) -> dict[TopicQueue, int]:
        """Return the queues that were read, each with the offset after the highest one read."""
        return {place: len(values) for place, values in self._values.items()}

    def numbers(self, topic: str) -> set[int]:
        """Return the numbers of all messages that were read from the topic."""
        values = (each for place, each in self._values.items() if place[0] == topic)
        return {number - 1 for queue in values for number in queue if number}

    def _judge(self, place: TopicQueue, offset: int, number: int, reader: str) -> None:
        ledger = self._book.ledger_of(worker_of(number))
        if ledger is None or sequence_of(number) >= len(ledger):
            detail = f"{_at(place, offset)}: {reader} read {name_of(number)}, which nobody sent"
            self._violations.add(Kind.PHANTOM, detail)
            return
        rule = self._rules.get(ledger.worker)
        if rule is not None and not rule(number):
            self._violations.add(
                Kind.TRANSACTION, f"{_at(place, offset)}: {reader} read {name_of(number)}, which was never committed"
            )


def _at(place: TopicQueue, offset: int) -> str:
    return f"{place[0]}/{place[1]} offset {offset}"
