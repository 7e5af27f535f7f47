"""A model of delayed messages with rules of its own. It is fed with each applied command and its result, once per
index.

A message waits until its time by the replicated clock: from the entry that brought it on, or in a transaction from the
commit on. It is delivered by an entry that fires timers, not before its time, once, and with all of its batch that was
not taken back. A message whose taking back was carried out is never delivered.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from store.commands.entry import Command
from store.commands.messages import BatchHeader, BatchPlaced, Cancelled, CancelScheduled, FireTimers, Produce, Produced
from store.commands.transactions import Decide, Decided, Prepare, Prepared
from store.commands.views import Row
from store.errors import NOT_SCHEDULED, Refused
from store.messages.topics import DLQ_PREFIX, RETRY_PREFIX, SYSTEM_TOPICS

from .retention import Place
from .violation import Violation

BatchKey = tuple[str, str]
"""Topic and batch id."""


@dataclass
class _Waiting:
    """Messages of a batch that wait for `due_ms`."""

    due_ms: int
    ordinals: set[int]


class Delays:
    def __init__(self) -> None:
        self.taken_back: set[tuple[str, str]] = set()
        """Topic and id of each message that was taken back."""
        self._waiting: dict[BatchKey, _Waiting] = {}
        self._halves: dict[str, tuple[BatchHeader, ...]] = {}
        """The batches of each transaction that was prepared, by its id; none once it is committed."""
        self._reborn: set[BatchKey] = set()
        """Batches of transactions that were forgotten and prepared once more: they may have been delivered before."""

    @property
    def waiting(self) -> list[BatchKey]:
        """The batches with messages that wait for their time."""
        return list(self._waiting)

    def on_applied(self, command: Command, result: object, clock_ms: int, rows: Sequence[tuple[Place, Row]]) -> None:
        """Take in a command with the rows that it has made visible."""
        fires = isinstance(command, FireTimers)
        for (topic, _), row in rows:
            if topic not in SYSTEM_TOPICS and not topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
                self._on_row(topic, row, clock_ms, fires=fires)
        if isinstance(command, Produce) and isinstance(result, Produced):
            for header, placed in zip(command.batches, result.results, strict=True):
                if not placed.duplicate:
                    self._on_placed(header, placed.offset, placed.deliver_at_ms, clock_ms, _appended(header, placed))
        elif isinstance(command, Prepare) and isinstance(result, Prepared) and not result.duplicate:
            if command.transaction_id in self._halves:
                self._reborn.update((header.topic, header.batch_id) for header in command.batches)
            self._halves[command.transaction_id] = command.batches
        elif isinstance(command, Decide) and isinstance(result, Decided) and result.state == "committed":
            self._on_committed(result, clock_ms)
        elif isinstance(command, CancelScheduled):
            self._on_cancel(command, result)

    def delete_topic(self, topic: str) -> None:
        """Forget what waits for a topic that is deleted: it is dropped."""
        for key in [key for key in self._waiting if key[0] == topic]:
            del self._waiting[key]

    def check_all_delivered(self) -> None:
        """Check, when no timer is left, that every message has been delivered or taken back."""
        if self._waiting:
            raise Violation("delayed_lost", f"no timer is left, and these still wait: {self._waiting}")

    def _on_committed(self, result: Decided, clock_ms: int) -> None:
        halves, self._halves[result.transaction_id] = self._halves.get(result.transaction_id, ()), ()
        if any((header.topic, header.batch_id) in self._reborn for header in halves):
            return
        if halves and len(halves) != len(result.positions):
            raise Violation("transaction_visibility", f"{result} does not name all batches of {halves}")
        for header, position in zip(halves, result.positions, strict=False):
            if position.count:
                ordinals = set(range(header.count)) if position.count == header.count else set[int]()
                self._on_placed(header, position.offset, position.deliver_at_ms, clock_ms, ordinals)

    def _on_placed(
        self, header: BatchHeader, offset: int | None, told_ms: int | None, clock_ms: int, ordinals: set[int]
    ) -> None:
        due_ms = header.deliver_at_ms if header.delay_ms is None else clock_ms + header.delay_ms
        if due_ms is None or due_ms <= clock_ms:
            if offset is None:
                raise Violation("delayed_lost", f"{header} is due at {due_ms}, and waits at {clock_ms}")
            return
        if offset is not None or told_ms != due_ms:
            found = f"at {offset}, for {told_ms}"
            raise Violation("delivered_early", f"{header}, due at {due_ms}, is placed {found} at {clock_ms}")
        self._waiting[header.topic, header.batch_id] = _Waiting(due_ms, ordinals)

    def _on_row(self, topic: str, row: Row, clock_ms: int, *, fires: bool) -> None:
        if (topic, row.batch_id) in self._reborn:
            self._waiting.pop((topic, row.batch_id), None)
            return
        if any((topic, f"{row.batch_id}-{ordinal}") in self.taken_back for ordinal in row.ordinals()):
            raise Violation("taken_back", f"{row} of {topic} is there, and messages of it were taken back")
        waiting = self._waiting.get((topic, row.batch_id))
        if not fires:
            if waiting is not None:
                raise Violation("delivered_early", f"{row} of {topic} waits for {waiting.due_ms}, and is there")
            return
        if waiting is None:
            raise Violation("delivered_once", f"{row} of {topic} is delivered by a timer, and does not wait")
        if clock_ms < waiting.due_ms:
            raise Violation("delivered_early", f"{row} of {topic} is due at {waiting.due_ms}, and there at {clock_ms}")
        if waiting.ordinals and set(row.ordinals()) != waiting.ordinals:
            found = f"{sorted(row.ordinals())} are delivered, {sorted(waiting.ordinals)} waited"
            raise Violation("taken_back", f"{row} of {topic}: of the batch {found}")
        del self._waiting[topic, row.batch_id]

    def _on_cancel(self, command: CancelScheduled, result: object) -> None:
        topic, message_id = command.topic, command.message_id
        batch_id, _, ordinal = message_id.rpartition("-")
        waiting = self._waiting.get((topic, batch_id))
        waits = waiting is not None and int(ordinal) in waiting.ordinals
        again = (topic, message_id) in self.taken_back
        if isinstance(result, Cancelled):
            if not waits and not again:
                raise Violation("taken_back", f"{message_id} of {topic} does not wait, and is taken back: {result}")
            self.taken_back.add((topic, message_id))
            if waiting is not None and waits:
                waiting.ordinals.discard(int(ordinal))
                if not waiting.ordinals:
                    del self._waiting[topic, batch_id]
        elif isinstance(result, Refused) and result.code == NOT_SCHEDULED and (waits or again):
            raise Violation("taken_back", f"{message_id} of {topic} waits, or was taken back: {result}")


def _appended(header: BatchHeader, placed: BatchPlaced) -> set[int]:
    """Return the ordinals of the messages that were not known before."""
    if placed.messages is None:
        return set(range(header.count))
    return {ordinal for ordinal, each in enumerate(placed.messages) if not each.duplicate}
