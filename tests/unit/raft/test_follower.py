"""A follower's own part of an append: its sync begins as soon as the entries are written, and only for new ones."""

import pytest
from pysyncobj import syncobj as library

from raft.messages import make_append
from store.log.record import KIND_ENTRY, Entry
from tests.unit.raft.test_second_vote import LEADER_TERM, Wiped

FOLLOWING = [Entry(b"%d" % index, index, LEADER_TERM, KIND_ENTRY, -1) for index in (4, 5)]


def test_the_sync_of_new_entries_begins_before_anything_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "monotonicTime", lambda: 1_000.0)
    follower = Wiped()
    begun: list[tuple[int, int]] = []
    follower.node.follower.on_written = lambda: begun.append((follower.log.last_index, len(follower.transport.sent)))
    sent = len(follower.transport.sent)
    follower.hear(2, make_append(LEADER_TERM, 3, LEADER_TERM, 3, FOLLOWING))
    assert begun == [(5, sent)], "once, with both entries, and before any answer"
    follower.hear(2, make_append(LEADER_TERM, 3, LEADER_TERM, 3, FOLLOWING))  # sent again
    follower.hear(2, make_append(LEADER_TERM, 5, LEADER_TERM, 3, ()))  # a heartbeat
    assert len(begun) == 1
    assert len(follower.transport.sent) > sent, "the heartbeat is answered at once"
