"""The knowledge of the clients: their requests, the promises made to them, and the messages they read."""

from dataclasses import dataclass, field

from .checkers.transactions import check_one_outcome

BatchKey = tuple[str, str]
"""Topic and batch id: the same id on another topic is another batch."""


@dataclass
class SentBatch:
    """A batch that some client has sent. It is placed once it, or the commit of its transaction, was acknowledged."""

    topic: str
    queue: int
    count: int
    crc32c: int
    purged_before: int = 0
    """Offset before which its queue was told to be purged when the batch was made."""
    known: int = 0
    """Number of the batch's messages that were delivered before, by their explicit ids, in another batch."""
    transaction_id: str | None = None
    placed: tuple[int, int] | None = None  # queue and offset of its first message, as acknowledged
    delay_ms: int = 0
    deliver_at_ms: int | None = None  # as acknowledged, of one that waits for its time


@dataclass
class SentTransaction:
    batches: tuple[BatchKey, ...]
    producer_group: str
    prepared: bool = False  # acknowledged
    asked: set[str] = field(default_factory=set)  # decisions that some client has sent
    outcomes: set[str] = field(default_factory=set)  # final states that answers named
    operated: bool = False  # an operator may have got it out of `discarded`
    reborn: bool = False  # it was forgotten, and prepared once more: answers may be about either

    def told(self, transaction_id: str, state: str) -> None:
        """Record the transaction's state that an answer to somebody has named."""
        if state != "prepared":
            self.outcomes.add(state)
        check_one_outcome(transaction_id, self.final)

    @property
    def final(self) -> set[str]:
        """The outcomes that answers named and that cannot change any more. It is empty if the transaction was forgotten
        and prepared once more.
        """
        if self.reborn:
            return set()
        return self.outcomes - {"discarded"} if self.operated else self.outcomes

    @property
    def batch_ids(self) -> list[str]:
        return [batch_id for _, batch_id in self.batches]


class Ledger:
    def __init__(self) -> None:
        self.batches: dict[BatchKey, SentBatch] = {}
        self.transactions: dict[str, SentTransaction] = {}
        self.offsets: dict[tuple[str, int], int] = {}  # (topic, queue) -> highest acknowledged of the one group
        self.read: dict[tuple[str, int, int], str] = {}  # (topic, queue, offset) -> message, by whoever read it first
        self.ends: dict[tuple[str, int], int] = {}  # (topic, queue) -> the highest end that anybody was told
        self._purged: dict[tuple[str, int], int] = {}
        self.acknowledged = 0
        self.duplicates = 0
        self.refused = 0
        self.unknown = 0

    def note_purged(self, place: tuple[str, int], start: int) -> None:
        """Note the answer to a purge: the queue goes on at `start`."""
        self._purged[place] = max(start, self._purged.get(place, 0))

    def purged_before(self, topic: str, queue: int) -> int:
        """Return the offset before which the queue is purged, as far as any client was told."""
        return self._purged.get((topic, queue), 0)
