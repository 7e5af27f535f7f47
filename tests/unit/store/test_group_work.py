"""A change of a topic costs no more than the groups that it concerns, and the offsets that they have in it."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from store.commands.entry import Command
from store.commands.groups import CommitOffsets, JoinGroup, QueueOffset
from store.commands.topics import DeleteTopic, PutTopic
from store.errors import Refused
from store.index import keys
from tests.unit.store.counted_work import work_of
from tests.unit.store.replica import Replica

FEW, MANY = 4, 64


@pytest.fixture
def replicas(tmp_path: Path) -> Iterator[tuple[Replica, Replica]]:
    """Return two replicas, for few and for many things that a command does not concern."""
    opened = Replica(tmp_path / "few"), Replica(tmp_path / "many")
    for replica in opened:  # what is remembered of the first command of a kind is not counted
        for command in (PutTopic("first", 1), read_all("first", "first", 1), DeleteTopic("first")):
            replica.one(command)
    yield opened
    for replica in opened:
        replica.close()


def read_all(group: str, topic: str, queues: int) -> CommitOffsets:
    return CommitOffsets(group, None, None, tuple(QueueOffset(topic, queue, 0) for queue in range(queues)))


def works(replicas: tuple[Replica, Replica], command: Command) -> tuple[int, int]:
    """Return the work of applying the command to each replica."""
    found = []
    for replica in replicas:
        entry = replica.log.append(replica.now_ms, [command])
        results: Sequence[list[object]] = []

        def apply(replica: Replica = replica, entry: object = entry) -> None:
            nonlocal results
            results = replica.machine.apply([entry])  # type: ignore[list-item, assignment]

        found.append(work_of(apply))
        assert not isinstance(results[0][0], Refused), results
    return found[0], found[1]


def offsets_in(replica: Replica) -> int:
    return sum(1 for _ in replica.index.scan(keys.GROUP_OFFSET, keys.after(keys.GROUP_OFFSET)))


def test_a_deleted_topic_costs_nothing_of_what_its_groups_have_read_of_others(
    replicas: tuple[Replica, Replica],
) -> None:
    for replica, queues in zip(replicas, (FEW, MANY), strict=True):
        replica.do(PutTopic("others", queues), PutTopic("orders", 2))
        replica.do(read_all("g", "others", queues), read_all("g", "orders", 2))
    few, many = works(replicas, DeleteTopic("orders"))
    assert many == few
    assert [offsets_in(replica) for replica in replicas] == [FEW, MANY]


@pytest.mark.parametrize("command", [DeleteTopic("orders"), PutTopic("orders", 8)])
def test_a_changed_topic_costs_nothing_of_groups_that_do_not_read_it(
    replicas: tuple[Replica, Replica], command: Command
) -> None:
    for replica, groups in zip(replicas, (FEW, MANY), strict=True):
        replica.do(PutTopic("others", 1), PutTopic("orders", 2), read_all("g", "orders", 2))
        for number in range(groups):
            replica.do(read_all(f"other-{number}", "others", 1), JoinGroup(f"m-{number}", "m", "c", ("others",), 9_000))
    few, many = works(replicas, command)
    assert many <= few * 1.05, "what sorts keys takes some steps more"
    for replica in replicas:
        replica.reopen()
    few, many = works(replicas, PutTopic("others", 1))
    assert many == few, "nothing has changed"


def test_the_offsets_of_a_deleted_topic_are_removed_together(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    """The offsets of a wide topic would be thousands of writes."""
    replica.do(PutTopic("orders", MANY), *(read_all(f"g{number}", "orders", MANY) for number in range(FEW)))
    staged: list[int] = []
    commit = replica.index.commit

    def count_and_commit() -> None:
        staged.append(replica.index.staged_rows)
        commit()

    monkeypatch.setattr(replica.index, "commit", count_and_commit)
    replica.one(DeleteTopic("orders"))
    assert offsets_in(replica) == 0
    assert max(staged) < MANY
    touched = {key for key, *_ in replica.index.touched if key[:1] == keys.GROUP_OFFSET}
    assert len(touched) == FEW * MANY, "the hash of the rows has each of them"
    replica.reopen()
    assert offsets_in(replica) == 0
