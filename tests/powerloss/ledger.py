"""The ledger of sent messages, and of the cluster's promises about them.

One thread writes and another reads, so everything that is read meanwhile is a list that only grows.
"""

import enum
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from tests.chaos.ledger import Place

Decided = Literal["commit", "rollback"]


class Fate(enum.Enum):
    """The sender's knowledge about a message outside of transactions."""

    UNKNOWN = "unknown"
    STORED = "stored"
    REFUSED = "refused"
    """The answer was that certainly nothing was stored."""


class Promise(NamedTuple):
    """An acknowledged write: the Raft entry that holds the messages, and the nodes that had it fsynced."""

    numbers: tuple[int, ...]
    index: int  # type: ignore[assignment]  # hides tuple.index
    term: int
    durable_on: tuple[int, ...]


class Half(msgspec.Struct):
    """A transaction with its application's intention and its progress."""

    id: str
    numbers: tuple[int, ...]
    intention: Decided
    local_ran: bool = False
    """True when the application's own transaction took place: from then on the broker has to carry the intention out.
    """
    fenced: bool = False
    """True when a check was answered with a rollback before the application's transaction: it must not take place any
    more.
    """

    @property
    def to_be_visible(self) -> bool:
        return self.local_ran and self.intention == "commit"


class Ledger:
    """Owns messages, promises and transactions. Messages are numbered in the order of their sends. `kept_ms` is the
    topics' retention in ms, None for ever.
    """

    def __init__(self, kept_ms: int | None = None) -> None:
        self._kept_ms = kept_ms
        self._begun_ms: list[int] = []
        self._kept_for_ever_from_ms: int | None = None
        self.fates: list[Fate] = []
        self.promises: list[Promise] = []
        self.places: list[tuple[int, Place]] = []
        self.decisions: list[tuple[str, Decided]] = []
        self.complaints: list[str] = []
        """Answers that no client should ever get."""
        self.halves: dict[str, Half] = {}
        self.acknowledged = 0
        """Number of messages that the cluster promised to keep, prepared ones included."""
        self._half_of: dict[int, Half] = {}

    def begin(self, count: int) -> list[int]:
        """Return numbers for messages about to be sent; their fate is unknown until it is noted here."""
        first = len(self.fates)
        self._begun_ms.extend([_now_ms()] * count)
        self.fates.extend([Fate.UNKNOWN] * count)
        return list(range(first, first + count))

    def begin_half(self, transaction_id: str, count: int, intention: Decided) -> Half:
        half = Half(transaction_id, tuple(self.begin(count)), intention)
        self._half_of.update(dict.fromkeys(half.numbers, half))
        self.halves[transaction_id] = half
        return half

    def stored(self, placed: Mapping[int, Place], promise: Promise) -> None:
        for number, place in placed.items():
            self.fates[number] = Fate.STORED
            self.places.append((number, place))
        self.prepared(promise)

    def prepared(self, promise: Promise) -> None:
        self.promises.append(promise)
        self.acknowledged += len(promise.numbers)

    def decided(self, half: Half, decision: Decided, placed: Iterable[tuple[int, Place]] = ()) -> None:
        """Note that the broker confirmed the decision."""
        self.decisions.append((half.id, decision))
        self.places.extend(placed)

    def refused(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self.fates[number] = Fate.REFUSED

    def keep_all(self) -> None:
        """Note that the topics keep their present messages for ever."""
        self._kept_for_ever_from_ms = _now_ms()

    def is_over(self, number: int) -> bool:
        """Return whether the message's retention is over, so that it may be gone."""
        if self._kept_ms is None:
            return False
        now_ms = _now_ms() if self._kept_for_ever_from_ms is None else self._kept_for_ever_from_ms
        return self._begun_ms[number] + self._kept_ms <= now_ms

    def was_sent(self, number: int) -> bool:
        return number < len(self.fates)

    def may_be_visible(self, number: int) -> bool:
        half = self._half_of.get(number)
        return half.to_be_visible if half is not None else self.fates[number] is not Fate.REFUSED

    def must_be_visible(self) -> set[int]:
        """Return the messages that must be visible once every transaction is decided."""
        stored = {number for number, fate in enumerate(self.fates) if fate is Fate.STORED}
        return stored.union(*(half.numbers for half in self.halves.values() if half.to_be_visible))


def _now_ms() -> int:
    """Return the time in ms of this machine's clock, which the nodes use as well."""
    return time.time_ns() // 1_000_000
