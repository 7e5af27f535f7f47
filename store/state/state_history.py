"""The running hashes of the state after recent entries, so that two nodes can compare them at the same entry.

The history is in memory only: a node that has just started knows only the hashes of the entry its index ends with.
"""

from __future__ import annotations

from typing import Final, NamedTuple

HASH_KIND: Final = 1
"""Version of the hash computation: a build that computes other hashes from equal entries has another number."""
RECENT_ENTRIES: Final = 4096
STEP_ENTRIES: Final = 1024
"""An older entry's hashes are kept if its index is a multiple of this number ..."""
STEPS_MAX: Final = 4096
"""... up to this number of older entries."""


class StateDigest(NamedTuple):
    """The hashes of the state after an entry."""

    index: int  # type: ignore[assignment]  # hides tuple.index
    state_hash: bytes
    """Hash over all entries and their results."""
    rows_from: int
    """`rows_hash` covers the entries after this one: two values are comparable only if their `rows_from` is the same.
    """
    rows_hash: int
    """Hash over all keys and values that were staged."""

    def differs(self, other: StateDigest) -> bool:
        """Return whether two states after the same entry are known to differ."""
        if self.state_hash != other.state_hash:
            return True
        return self.rows_from == other.rows_from and self.rows_hash != other.rows_hash


class StateHistory:
    """The digests of recent entries, and of a selection of older ones. Loop-only. `note` runs for each entry, so it
    does as little as possible.
    """

    def __init__(self, now: StateDigest) -> None:
        self._rows_from = now.rows_from
        kept = now.index, now.state_hash, now.rows_hash
        self._recent = [kept] * RECENT_ENTRIES
        self._steps: dict[int, tuple[int, bytes, int]] = {}
        self._now = kept

    @property
    def now(self) -> StateDigest:
        return self._digest(self._now)

    def note(self, index: int, state_hash: bytes, rows_hash: int) -> None:
        """Note the hashes of the state after the next entry."""
        self._now = self._recent[index % RECENT_ENTRIES] = kept = (index, state_hash, rows_hash)
        if not index % STEP_ENTRIES:
            self._steps[index] = kept
            if len(self._steps) > STEPS_MAX:
                del self._steps[next(iter(self._steps))]

    def at(self, index: int) -> StateDigest | None:
        """Return the digest after an entry; None if the entry is not applied, or its hashes are no longer kept."""
        kept = self._recent[index % RECENT_ENTRIES]
        if kept[0] != index:
            found = self._steps.get(index)
            return None if found is None else self._digest(found)
        return self._digest(kept)

    def known_between(self, first: int, last: int) -> list[int]:
        """Return the entries of that range whose hashes are kept, in order."""
        kept = {index for index, _, _ in self._recent} | self._steps.keys()
        return sorted(index for index in kept if first <= index <= last)

    def _digest(self, kept: tuple[int, bytes, int]) -> StateDigest:
        return StateDigest(kept[0], kept[1], self._rows_from, kept[2])
