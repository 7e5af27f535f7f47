"""Votes on which of two replicas is right."""

from typing import Any

import pytest
from pysyncobj import syncobj as library

from raft.copies.replicas import Replicas
from raft.membership import Configuration, InForce, Member, Membership
from store.log.commit_log import CommitLog
from store.log.differs import Difference
from store.log.record import KIND_ENTRY
from store.state.state_history import StateDigest, StateHistory
from tests.unit.store.logs import sim_disk

NODES = (0, 1, 2)
ENTRIES = 60
FLIPPED_AT = 30


def make_log() -> CommitLog:
    log = CommitLog.open(sim_disk(), "/data/log", segment_bytes=1 << 16, cache_bytes=1 << 16)
    for index in range(2, ENTRIES + 1):
        log.append(index, 1, KIND_ENTRY, b"entry")
    return log


class Trio:
    """Three replicas of one log that tell each other their states; node 1 differs from entry FLIPPED_AT on.

    `rows_from` is the entry from which each node hashes its rows. Messages are lost while `loses_messages` is True; the
    states that nodes tell each other once a second arrive all the same.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, rows_from: tuple[int, int, int] = (0, 0, 0)) -> None:
        self._now_s = 0.0
        monkeypatch.setattr(library, "monotonicTime", lambda: self._now_s)
        members = Configuration(tuple(Member(node, f"h{node}", 1, "", voter=True) for node in NODES))
        self._said: list[tuple[int, int, Any]] = []
        self.loses_messages = False
        self.replicas = [
            Replicas(
                node,
                make_log(),
                Membership(InForce(0, members)),
                1_000,
                lambda peer, message, node=node: self._said.append((node, peer, message)),
            )
            for node in NODES
        ]
        for node, replica in enumerate(self.replicas):
            replica.history = StateHistory(StateDigest(1, b"state-00", rows_from[node], 7))
            for peer in NODES:
                if peer != node:
                    replica.met(peer, f"disk {peer}")
        self.exchange()
        for index in range(2, ENTRIES + 1):
            for node, replica in enumerate(self.replicas):
                flipped = node == 1 and index >= FLIPPED_AT
                rows = index + (1_000 if flipped else 0) + (0 if rows_from[node] == 0 else 500)
                replica.history.note(index, b"state-%02d" % index, rows)  # type: ignore[union-attr]

    def exchange(self, times: int = 1) -> None:
        """Let every node hear every other one's state, and what they send because of it, once a second."""
        for _ in range(times):
            states = [replica.state(votes=not replica.differs) for replica in self.replicas]
            for node in NODES:
                for peer in NODES:
                    if node != peer:
                        self.replicas[peer].hear(node, states[node])
            while self._said:
                node, peer, message = self._said.pop(0)
                if not self.loses_messages:
                    self.replicas[peer].on_message(node, message)
            self._now_s += 1.0


@pytest.mark.parametrize("third_compares_all", [True, False])
def test_who_could_not_compare_everything_vouches_for_nobody(
    monkeypatch: pytest.MonkeyPatch, third_compares_all: bool
) -> None:
    """Found in review: the third hashes its rows from another entry on, as after an upgrade, so as far as it can tell
    it equals both; each of the two took it for a witness, and gave its vote up.
    """
    trio = Trio(monkeypatch, (0, 0, 0 if third_compares_all else 20))
    trio.exchange(5)
    assert [replica.differs for replica in trio.replicas] == [False, third_compares_all, False]


def test_a_lost_question_is_asked_again_although_states_keep_coming(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found on a busy machine: a node that started again differed, and asked before its own connections stood. Each
    state that it heard put the next question off, so that the first differing entry was never known.
    """
    trio = Trio(monkeypatch)
    trio.loses_messages = True
    trio.exchange(2)
    assert trio.replicas[1].difference == Difference(ENTRIES, 1, records=False)
    trio.loses_messages = False
    trio.exchange(20)
    assert trio.replicas[1].difference == Difference(FLIPPED_AT, FLIPPED_AT - 1, records=False)
