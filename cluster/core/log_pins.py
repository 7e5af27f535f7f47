"""Pins: the part of this node's log that stays although neither the state nor another node needs it."""

from typing import NamedTuple


class LogPin(NamedTuple):
    """Keeps the log from `first_index` on, for the object `key`, since `since_ms` of the cluster's clock."""

    first_index: int
    since_ms: int
    key: str


class LogPins:
    """Keeps the log from certain entries on. Nothing of it is durable. Use on the event loop only."""

    def __init__(self) -> None:
        self._pins: dict[str, LogPin] = {}

    def pin(self, key: str, first_index: int, now_ms: int) -> None:
        """Keep the log from `first_index` on until `unpin(key)`."""
        self._pins[key] = LogPin(first_index, now_ms, key)

    def unpin(self, key: str) -> None:
        self._pins.pop(key, None)

    def first(self) -> LogPin | None:
        """Return the pin of the lowest entry; None if there is none."""
        return min(self._pins.values(), default=None)

    def first_index(self, otherwise: int) -> int:
        """Return the first index that is pinned, at most `otherwise`."""
        first = self.first()
        return otherwise if first is None else min(otherwise, first.first_index)
