"""Checks the queues of one node against the ledgers: no message is lost, made up, duplicated or in another place than
acknowledged.
"""

from collections.abc import Callable, Mapping

from tests.chaos.ledger import Book, Outcome, WorkerLedger
from tests.chaos.message import name_of, number_in, number_of, sequence_of, worker_of
from tests.chaos.reads import TopicQueue
from tests.chaos.violations import Kind, Violations

Committed = Callable[[int], bool]
"""Returns whether the message with this number is in a committed transaction."""


class DeliveredOnce:
    """Checks one node: call `message` for every message of every queue in order, then `finish`. `committed` maps a
    transactional worker to its committed messages.
    """

    def __init__(self, node: str, book: Book, committed: Mapping[int, Committed], violations: Violations) -> None:
        self._node = node
        self._book = book
        self._committed = committed
        self._violations = violations
        self._seen = [bytearray(len(ledger)) for ledger in book.workers]
        self._ends: dict[TopicQueue, int] = {}

    def message(self, place: TopicQueue, offset: int, body: bytes, stored_at_ms: int) -> None:
        """Note a message. It is in its queue since `stored_at_ms`, by the replicated clock."""
        end = self._ends.get(place, 0)
        if offset != end:
            self._add(Kind.GAP, f"{place[0]}/{place[1]} goes on at {offset} after {end - 1}")
        self._ends[place] = offset + 1
        number = number_in(body)
        if number is None:
            self._add(Kind.DAMAGED, f"{place[0]}/{place[1]} offset {offset} holds {body[:60]!r}")
            return
        ledger = self._book.ledger_of(worker_of(number))
        sequence = sequence_of(number)
        if ledger is None or sequence >= len(ledger):
            self._add(Kind.PHANTOM, f"{place[0]}/{place[1]} offset {offset} holds {name_of(number)}, which nobody sent")
            return
        seen = self._seen[ledger.worker]
        seen[sequence] = min(seen[sequence] + 1, 255)
        due_ms = ledger.due_ms.get(sequence, 0)
        if stored_at_ms < due_ms:
            self._add(Kind.EARLY, f"{name_of(number)} is delivered at {stored_at_ms} ms, it was to come at {due_ms}")
        told = ledger.place(sequence)
        if told is not None and told != (*place, offset):
            self._add(
                Kind.MOVED, f"{name_of(number)} is at {place[0]}/{place[1]} offset {offset}, it was acknowledged {told}"
            )

    def finish(self) -> None:
        for ledger in self._book.workers:
            seen = self._seen[ledger.worker]
            committed = self._committed.get(ledger.worker)
            if ledger.expires:
                continue  # judged by tests/chaos/checkers/expiring.py
            if ledger.transactional and committed is not None:
                self._judge_transactions(ledger, seen, committed)
            else:
                self._judge(ledger, seen)
                if ledger.keys:
                    self._judge_order(ledger)

    def _judge(self, ledger: WorkerLedger, seen: bytearray) -> None:
        for sequence, (outcome, times) in enumerate(zip(ledger.outcomes, seen, strict=True)):
            if times == outcome == Outcome.ACKED:  # once, and acknowledged: almost always
                continue
            if outcome == Outcome.ACKED and times == 0:
                place = ledger.place(sequence)
                self._about(Kind.LOST, ledger, sequence, f"was acknowledged at {place} and is in no queue")
            elif times > 1:
                self._about(Kind.DUPLICATED, ledger, sequence, f"is {times} times in the queues")
            elif outcome == Outcome.FAILED and times:
                self._about(Kind.FAILED_BUT_STORED, ledger, sequence, "was refused for certain and is in a queue")
            elif outcome == Outcome.TAKEN_BACK and times:
                self._about(Kind.TAKEN_BACK, ledger, sequence, "was taken back and is in a queue")

    def _judge_transactions(self, ledger: WorkerLedger, seen: bytearray, committed: Committed) -> None:
        for sequence, times in enumerate(seen):
            wanted = committed(number_of(ledger.worker, sequence))
            if times > 1:
                self._about(Kind.DUPLICATED, ledger, sequence, f"is {times} times in the queues")
            elif wanted and not times:
                self._about(Kind.LOST, ledger, sequence, "is in a committed transaction and in no queue")
            elif times and not wanted:
                self._about(Kind.TRANSACTION, ledger, sequence, "is in a queue, its transaction is not committed")

    def _judge_order(self, ledger: WorkerLedger) -> None:
        """Check that acknowledged messages of a key are in the order of their sends; messages with an unknown outcome
        may come late.
        """
        last = [(-1, -1)] * ledger.keys  # offset, sequence
        for sequence, outcome in enumerate(ledger.outcomes):
            place = ledger.place(sequence) if outcome == Outcome.ACKED else None
            if place is None:
                continue
            offset, before = last[sequence % ledger.keys]
            if place.offset <= offset:
                detail = f"has offset {place.offset}, {before} was sent before it with the same key and has {offset}"
                self._about(Kind.REORDERED, ledger, sequence, detail)
            last[sequence % ledger.keys] = (place.offset, sequence)

    def _about(self, kind: Kind, ledger: WorkerLedger, sequence: int, detail: str) -> None:
        self._add(kind, f"{ledger.name} {name_of(number_of(ledger.worker, sequence))} {detail}")

    def _add(self, kind: Kind, detail: str) -> None:
        self._violations.add(kind, f"{self._node}: {detail}")
