"""The rows that apply stages have the same hash on every replica, however the node came to its state."""

from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import store.state.machine
from store.commands.entry import Proposal
from store.commands.groups import CommitOffsets, QueueOffset
from store.commands.topics import DeleteTopic, PutTopic
from store.state.rows_hash import rows_hash
from tests.unit.store.replica import Replica, header, produce

ROWS = [(b"a", b"1"), (b"b",), (b"c", b"d"), (b"a", b"2")]
both_ways = pytest.mark.parametrize("summed", [True, False], ids=["summed", "sorted"])


@both_ways
def test_the_order_of_the_rows_does_not_matter(summed: bool) -> None:
    assert rows_hash(ROWS[::-1], 7, summed=summed) == rows_hash(ROWS, 7, summed=summed)


@both_ways
@pytest.mark.parametrize(
    "other",
    [ROWS[1:], [*ROWS, ROWS[0]], [*ROWS[:3], (b"a", b"3")], [*ROWS[:3], (b"a",)], []],
    ids=["fewer", "twice", "another value", "deleted", "none"],
)
def test_other_rows_have_another_hash(other: list[tuple[bytes, ...]], summed: bool) -> None:
    assert rows_hash(other, 7, summed=summed) != rows_hash(ROWS, 7, summed=summed)


@both_ways
def test_the_hash_follows_from_the_one_before(summed: bool) -> None:
    assert rows_hash(ROWS, 8, summed=summed) != rows_hash(ROWS, 7, summed=summed)


def test_what_versions_compare_does_not_change() -> None:
    """The first is the hash of feature level 1, the second of level 2."""
    assert [rows_hash(ROWS, 7, summed=summed) for summed in (False, True)] == [3445336321, 1816912681]


@pytest.mark.parametrize("level", [1, 2])
def test_the_level_says_how_rows_are_hashed(replica: Replica, level: int) -> None:
    replica.raise_level(level)
    asked: list[bool] = []

    def noted(rows: Any, before: int, *, summed: bool) -> int:
        asked.append(summed)
        return rows_hash(rows, before, summed=summed)

    with mock.patch.object(store.state.machine, "rows_hash", noted):
        replica.do(PutTopic("orders", 2))
    assert asked == [level == 2]


def commit(group: str, queue: int) -> Proposal:
    return Proposal(CommitOffsets(group, None, None, (QueueOffset("orders", queue, 1),)))


@pytest.mark.parametrize("change", [PutTopic("orders", 4), DeleteTopic("orders")], ids=["enlarged", "deleted"])
@pytest.mark.parametrize(
    "commits", [[commit("g", 1), commit("g", 0)], [commit("zeta", 0), commit("alpha", 0)]], ids=["queues", "groups"]
)
def test_a_node_that_was_restarted_stages_the_same(
    tmp_path: Path, commits: list[Proposal], change: PutTopic | DeleteTopic
) -> None:
    """Found in review: groups and their queues are walked in the order in which they came, or were loaded in, and a
    healthy node was taken for one that differs.
    """
    running, restarted = Replica(tmp_path / "running"), Replica(tmp_path / "restarted")
    for replica in (running, restarted):
        replica.do(PutTopic("orders", 2))
        for queue, batch_id in enumerate(("x", "y")):
            replica.do(produce(header(queue=queue, batch_id=batch_id)))
        for each in commits:
            replica.do(each)
    restarted.reopen()
    for replica in (running, restarted):
        replica.do(change)
    assert not running.machine.history.now.differs(restarted.machine.history.now)
    running.close()
    restarted.close()
