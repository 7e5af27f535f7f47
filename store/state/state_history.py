"""What the state's running hashes were behind the last entries, so that two nodes can compare them at the same one.

In memory only: a node that has just started knows those of the entry that its index ends with.
"""

from __future__ import annotations

from typing import Final, NamedTuple

HASH_KIND: Final = 1
"""Of the way in which the hashes are computed: a build that computes another one, from equal entries, has another."""
RECENT_ENTRIES: Final = 4096
STEP_ENTRIES: Final = 1024
"""Of older entries each whose index is a multiple of this is kept ..."""
STEPS_MAX: Final = 4096
"""... and no more of them than this."""


class StateDigest(NamedTuple):
    """The state behind an entry."""

    index: int  # type: ignore[assignment]  # hides tuple.index
    state_hash: bytes
    """Over all entries and their results."""
    rows_from: int
    """`rows_hash` runs from behind this entry on: two of them are comparable only where this is the same."""
    rows_hash: int
    """Over all keys and values that were staged."""

    def differs(self, other: StateDigest) -> bool:
        """Whether two states behind the same entry are known to differ."""
        if self.state_hash != other.state_hash:
            return True
        return self.rows_from == other.rows_from and self.rows_hash != other.rows_hash


class StateHistory:
    """Loop-only. `note` is called for each entry, so it does the least that can be done."""

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
        """The state behind the next entry."""
        self._now = self._recent[index % RECENT_ENTRIES] = kept = (index, state_hash, rows_hash)
        if not index % STEP_ENTRIES:
            self._steps[index] = kept
            if len(self._steps) > STEPS_MAX:
                del self._steps[next(iter(self._steps))]

    def at(self, index: int) -> StateDigest | None:
        """None for an entry that is not applied, or whose hashes are not kept any more."""
        kept = self._recent[index % RECENT_ENTRIES]
        if kept[0] != index:
            found = self._steps.get(index)
            return None if found is None else self._digest(found)
        return self._digest(kept)

    def known_between(self, first: int, last: int) -> list[int]:
        """The entries of that range whose hashes are kept, in order."""
        kept = {index for index, _, _ in self._recent} | self._steps.keys()
        return sorted(index for index in kept if first <= index <= last)

    def _digest(self, kept: tuple[int, bytes, int]) -> StateDigest:
        return StateDigest(kept[0], kept[1], self._rows_from, kept[2])
