"""Tests that the applier goes on where an entry has paused."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from raft.entries.applier import Applier
from raft.entries.proposing import Proposing
from raft.state import RaftState
from store.log.record import KIND_ENTRY, Entry


class Log:
    """A log of three entries, which counts how often it is read."""

    def __init__(self) -> None:
        self.reads = 0

    def entries(self, first: int, _max_bytes: int, last: int) -> list[Entry]:
        self.reads += 1
        return [Entry(b"", index, 1, KIND_ENTRY, index) for index in range(first, last + 1)]


class Resolved:
    def __init__(self) -> None:
        self.indexes: list[int] = []

    def resolve(self, entries: Sequence[Entry], results: Sequence[Any]) -> None:
        assert len(entries) == len(results)
        self.indexes.extend(entry.index for entry in entries)


def test_an_entry_that_paused_is_applied_on_and_answered_once() -> None:
    library = SimpleNamespace(last_applied=1)
    log, resolved = Log(), Resolved()

    class State:
        commit_index = 4

        @property
        def last_applied(self) -> int:
            return int(library.last_applied)

    state = State()
    state.log, state.library = log, library  # type: ignore[attr-defined]
    answers = iter([[], [], [["a"], ["b"]], [], [["c"]]])
    asked: list[list[int]] = []

    def apply(entries: Sequence[Entry], _may_go_on: Callable[[], bool]) -> list[Any]:
        asked.append([entry.index for entry in entries])
        return next(answers)

    applier = Applier(cast(RaftState, state), apply, cast(Proposing, resolved))
    applied = []
    while applier.has_unapplied:
        applier.apply_committed()
        applied.append(library.last_applied)
    assert asked == [[2, 3, 4]] * 3 + [[4]] * 2, "the same entries, until there are results"
    assert applied == [1, 1, 3, 3, 4]
    assert resolved.indexes == [2, 3, 4]
    assert log.reads == 1


def test_a_log_that_lacks_what_is_committed_is_an_error() -> None:
    """Asking the log again would last for ever."""
    log = SimpleNamespace(entries=lambda _first, _max_bytes, last: [])
    state = SimpleNamespace(commit_index=2, last_applied=1, log=log, library=SimpleNamespace(last_applied=1))
    applier = Applier(cast(RaftState, state), lambda _entries, _may_go_on: [], cast(Proposing, Resolved()))
    with pytest.raises(IndexError):
        applier.apply_committed()
