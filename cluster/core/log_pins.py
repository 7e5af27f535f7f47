"""Pins: the part of this node's log that stays although neither the state nor another node needs it."""


class LogPins:
    """Keeps the log from certain entries on. Nothing of it is durable. Use on the event loop only."""

    def __init__(self) -> None:
        self._first_indexes: dict[str, int] = {}

    def pin(self, key: str, first_index: int) -> None:
        """Keep the log from `first_index` on until `unpin(key)`."""
        self._first_indexes[key] = first_index

    def unpin(self, key: str) -> None:
        self._first_indexes.pop(key, None)

    def first_index(self, otherwise: int) -> int:
        """Return the first index that is pinned, at most `otherwise`."""
        return min((otherwise, *self._first_indexes.values()))
