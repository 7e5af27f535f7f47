"""The entries that a leader keeps in its log for other nodes."""

from raft.replication.retention import needed_from
from store.log.commit_log import CommitLog
from store.log.record import HEADER_BYTES, KIND_ENTRY
from tests.unit.store.logs import sim_disk

LAST = 100
RECORD_BYTES = HEADER_BYTES + 200
EVERYTHING = 1 << 30


def log() -> CommitLog:
    made = CommitLog.open(sim_disk(), "/data/log", segment_bytes=4096, cache_bytes=0)
    for index in range(2, LAST + 1):
        made.append(index, 1, KIND_ENTRY, b"x" * 200)
    made.sync()
    return made


def test_nothing_is_needed_by_those_who_have_everything() -> None:
    assert needed_from(log(), {}, None, EVERYTHING) == LAST + 1
    assert needed_from(log(), {2: LAST, 3: LAST}, None, EVERYTHING) == LAST + 1


def test_what_the_slowest_has_not_acknowledged_stays() -> None:
    assert needed_from(log(), {2: 70, 3: 90}, None, EVERYTHING) == 71


def test_a_node_that_lags_by_more_than_the_limit_holds_nothing_up() -> None:
    limit = 20 * RECORD_BYTES
    assert needed_from(log(), {2: 70, 3: 90}, None, limit) == 91
    assert needed_from(log(), {2: 81}, None, limit) == 82


def test_a_node_that_was_not_heard_yet_may_need_all_within_the_limit() -> None:
    made = log()
    assert needed_from(made, {2: 0}, None, EVERYTHING) == made.first_index
    assert needed_from(made, {2: 0}, None, 20 * RECORD_BYTES) == LAST - 19


def test_what_follows_a_snapshot_under_way_stays() -> None:
    assert needed_from(log(), {2: 0, 3: LAST}, 33, 0) == 33


def test_what_is_not_synced_stays() -> None:
    made = log()
    made.append(LAST + 1, 1, KIND_ENTRY, b"x")
    assert needed_from(made, {}, None, EVERYTHING) == LAST + 1


def test_what_was_removed_is_not_asked_for() -> None:
    made = log()
    base = made.drop_before(60)
    assert base.index > 40
    assert needed_from(made, {2: base.index - 5, 3: LAST}, None, EVERYTHING) == LAST + 1, "it is sent a snapshot"
    assert needed_from(made, {2: base.index}, None, EVERYTHING) == base.index + 1
    assert needed_from(made, {2: 0}, None, EVERYTHING) == made.first_index
