"""A new cluster is at the highest feature level before its first command, if its first leader took it. That leader has
met all nodes, because the first election needs the word of each.
"""

from store.features import FEATURES, FIRST_LEVEL, read_level
from store.log.record import KIND_CONFIG, KIND_ENTRY, Entry

from .violation import Violation


class FoundingLevel:
    """Feed it the applied entries, each index once, in order."""

    def __init__(self) -> None:
        self.is_new = False
        """True when the cluster is founded by this version; operators raise the level of an earlier one."""
        self._first_term = 0
        self._level = FIRST_LEVEL
        self._is_judged = False

    def on_applied(self, entry: Entry) -> None:
        if self._is_judged:
            return
        self._first_term = self._first_term or entry.term
        if entry.kind == KIND_CONFIG:
            self._level = read_level(entry.payload).level
        elif entry.kind == KIND_ENTRY:
            self._is_judged = True
            if self.is_new and entry.term == self._first_term and self._level < FEATURES.maximum:
                raise Violation("founding_level", f"the first command, {entry.index}, is at level {self._level}")
