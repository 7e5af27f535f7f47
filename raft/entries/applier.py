"""Committed entries go to the state machine, a few milliseconds' worth of them at a time.

The applier says which entries, and how long. The function that it is given (raft/applying.py) applies them.
"""

from collections.abc import Callable, Sequence
from typing import Any

from raft.entries.proposing import Proposing
from raft.library import now
from raft.state import RaftState
from store.log.errors import LogError, LogFailed
from store.log.record import Entry

APPLY_BYTES = 1024 * 1024
"""Entries read at a time to be applied; a larger entry is read alone."""
APPLY_BUDGET_MS = 4
"""Time of one turn of the loop. The rest is left to the next turn: votes, heartbeats and clients come in between,
however much there is to apply. Entries that cost much pause within (docs/architecture.md says what one step can cost).
"""

Apply = Callable[[Sequence[Entry], Callable[[], bool]], list[Any]]


class Applier:
    """Invariant: every committed entry is applied once, in order, and nothing else is. Loop-only."""

    def __init__(self, state: RaftState, apply: Apply, proposing: Proposing) -> None:
        """`apply(entries, may_go_on)` applies the first entries, as many as `may_go_on()` lets it; it must return one
        result per entry that it applied, and raise only when the node must stop. Without any result it has paused: it
        is called again with the same entries.
        """
        self._state = state
        self._apply = apply
        self._proposing = proposing
        self._to_apply: Sequence[Entry] = ()  # committed entries that were read and not applied yet

    @property
    def has_unapplied(self) -> bool:
        """True when another step would apply more."""
        return self._state.last_applied < self._state.commit_index

    def apply_committed(self) -> None:
        """Apply committed entries for APPLY_BUDGET_MS, which may end within one.

        Row 10: an exception of `apply` comes out of the step and stops the node; refusals are results.
        """
        state = self._state
        if not self.has_unapplied:
            return
        entries = self._to_apply
        if not entries or entries[0].index != state.last_applied + 1:
            entries = state.log.entries(state.last_applied + 1, APPLY_BYTES, last=state.commit_index)
        ends_at = now() + APPLY_BUDGET_MS / 1000
        try:
            results = self._apply(entries, lambda: now() < ends_at)
        except LogError as error:  # also DiskFull, which elsewhere says that nothing was changed
            raise LogFailed(f"entry {entries[0].index} or later cannot be applied here: {error}") from error
        if entries and not results:  # paused; without entries the log lacks what is committed, and that is an error
            self._to_apply = entries
            return
        entries, self._to_apply = entries[: len(results)], entries[len(results) :]
        state.library.last_applied = entries[-1].index
        self._proposing.resolve(entries, results)
