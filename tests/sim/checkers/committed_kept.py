"""A committed entry is never truncated, and every later leader has it (leader completeness).

An entry counts as committed when any node says so, or acts on it: the first claim fixes the entry of that index.
*Later* means a term above the one in which it was committed. That may be well above the entry's own term; a leader of a
term in between may be elected late, by votes that were slow, and rightly lacks the entry.
"""

from collections.abc import Callable, Iterable

from .violation import Violation


class CommittedKept:
    def __init__(self) -> None:
        self._committed: dict[int, tuple[int, int]] = {}  # index -> (term, lowest term in which it was said committed)

    def on_commit(self, node_id: int, index: int, term: int, current_term: int) -> None:
        """Record that `node_id`, itself in `current_term`, holds the entry (index, term) to be committed."""
        first, committed_in = self._committed.get(index, (term, current_term))
        if first != term:
            raise Violation(
                "committed_kept",
                f"node {node_id} commits term {term} at index {index}, where term {first} is committed already",
            )
        self._committed[index] = (term, min(committed_in, current_term))

    def knows(self, index: int, term: int) -> bool:
        """Return whether any node has said that the entry is committed."""
        return self._committed.get(index, (None, 0))[0] == term

    @property
    def entry_count(self) -> int:
        """Number of entries that are known to be committed."""
        return len(self._committed)

    def term_of(self, index: int) -> int | None:
        """Return the term of the entry that is known to be committed at `index`; None if no entry is."""
        known = self._committed.get(index)
        return None if known is None else known[0]

    def check_applied(self, node_id: int, index: int, term: int) -> None:
        """Check that the last entry that `node_id` has applied is committed: some node has said so, and was checked."""
        if index and not self.knows(index, term):
            raise Violation("applied_uncommitted", f"node {node_id} has applied entry {index} of term {term}")

    def check_base(self, node_id: int, index: int, term: int) -> None:
        """Check that everything up to the entry (index, term) is committed, because the log of `node_id` begins behind
        it.
        """
        if index and self.term_of(index) != term:
            raise Violation(
                "base",
                f"node {node_id} has its log begin behind {index} of term {term}; committed there is term "
                f"{self.term_of(index)}",
            )

    def knows_any_of(self, term: int) -> bool:
        """Return whether an entry of `term` is known to be committed."""
        return any(found == term for found, _ in self._committed.values())

    @staticmethod
    def on_leader_commit(node_id: int, leader_term: int, index: int, term: int) -> None:
        """Check that the leader of `leader_term` advances its commit index to an entry of its own term: by counting
        copies it may commit no other entries (Raft paper 5.4.2).
        """
        if term != leader_term:
            raise Violation("commit_rule", f"node {node_id}, leader of {leader_term}, commits {index} of term {term}")

    def check_rejoined(self, node_id: int, bound: Iterable[int], term_at: Callable[[int], int | None]) -> None:
        """Check that `node_id`, which votes again on a new disk that `term_at` reads, has the committed entries
        `bound`, for which its old disk was counted on.
        """
        for index in sorted(bound):
            if self._committed[index][0] != term_at(index):
                raise Violation(
                    "rejoined_too_early", f"node {node_id} votes again without entry {index}, which is committed"
                )

    def on_leader(self, node_id: int, leader_term: int, term_at: Callable[[int], int | None]) -> None:
        """Check that the new leader of `leader_term` has every committed entry; `term_at` reads its log (None past the
        end).
        """
        for index, (term, committed_in) in self._committed.items():
            if committed_in < leader_term and term_at(index) != term:
                raise Violation(
                    "leader_completeness",
                    f"node {node_id} leads term {leader_term} without entry {index} of term {term}, "
                    f"committed in term {committed_in}",
                )

    def on_truncate(self, node_id: int, commit_index: int, first_removed: int) -> None:
        """Check that no committed entry goes when `node_id`, itself knowing `commit_index` to be committed, removes
        everything from `first_removed` on.
        """
        if first_removed <= commit_index:
            raise Violation(
                "committed_truncated",
                f"node {node_id} removes entries from {first_removed} with commit index {commit_index}",
            )
