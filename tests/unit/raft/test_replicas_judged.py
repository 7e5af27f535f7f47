"""Votes on which of two replicas is right."""

from typing import Any

import pytest
from pysyncobj import syncobj as library

from raft.copies.replicas import Replicas
from raft.membership import Configuration, InForce, Member, Membership
from store.log.commit_log import CommitLog
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


@pytest.mark.parametrize("third_compares_all", [True, False])
def test_who_could_not_compare_everything_vouches_for_nobody(
    monkeypatch: pytest.MonkeyPatch, third_compares_all: bool
) -> None:
    """Found in review: the third hashes its rows from another entry on, as after an upgrade, so as far as it can tell
    it equals both; each of the two took it for a witness, and gave its vote up.
    """
    now_s = [0.0]
    monkeypatch.setattr(library, "monotonicTime", lambda: now_s[0])
    members = Configuration(tuple(Member(node, f"h{node}", 1, "", voter=True) for node in NODES))
    said: list[tuple[int, int, Any]] = []
    replicas = [
        Replicas(
            node,
            make_log(),
            Membership(InForce(0, members)),
            1_000,
            lambda peer, message, node=node: said.append((node, peer, message)),
        )
        for node in NODES
    ]
    rows_from = {0: 0, 1: 0, 2: 0 if third_compares_all else 20}
    for node, replica in enumerate(replicas):
        replica.history = StateHistory(StateDigest(1, b"state-00", rows_from[node], 7))
        for peer in NODES:
            if peer != node:
                replica.met(peer, f"disk {peer}")

    def exchange() -> None:
        states = [replica.state(votes=not replica.differs) for replica in replicas]
        for node in NODES:
            for peer in NODES:
                if node != peer:
                    replicas[peer].hear(node, states[node])
        while said:
            node, peer, message = said.pop(0)
            replicas[peer].on_message(node, message)
        now_s[0] += 1.0

    exchange()
    for index in range(2, ENTRIES + 1):
        for node, replica in enumerate(replicas):
            flipped = node == 1 and index >= FLIPPED_AT
            rows = index + (1_000 if flipped else 0) + (0 if rows_from[node] == 0 else 500)
            replica.history.note(index, b"state-%02d" % index, rows)  # type: ignore[union-attr]
    for _ in range(5):
        exchange()
    assert [replica.differs for replica in replicas] == [False, third_compares_all, False]
