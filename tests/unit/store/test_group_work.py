"""A change of a topic costs no more than the groups that it concerns, and the offsets that they have in it."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from store.commands.entry import Command, Proposal
from store.commands.groups import (
    CloneOffsets,
    CommitOffsets,
    DeleteGroup,
    GiveBack,
    GivenBack,
    JoinGroup,
    QueueOffset,
    ResetOffsets,
)
from store.commands.pops import Pop
from store.commands.retention import ExpireMessages
from store.commands.topics import DeleteTopic, PutTopic
from store.errors import Refused
from store.groups.leases import Lease, LeaseKey, Leases
from store.index import keys
from tests.unit.store.counted_work import work_of
from tests.unit.store.replica import Replica, header, produce

FEW, MANY = 4, 64


@pytest.fixture
def replicas(tmp_path: Path) -> Iterator[tuple[Replica, Replica]]:
    """Return two replicas, for few and for many things that a command does not concern."""
    opened = Replica(tmp_path / "few"), Replica(tmp_path / "many")
    for replica in opened:  # what is remembered of the first command of a kind is not counted
        first: list[Proposal | Command] = [PutTopic("first", 1, 1), produce(header("first")), PutTopic("first", 2)]
        first += [read_all("first", "first", 1), GiveBack("first", None, None, (GivenBack("first", 0, 0),))]
        for command in (*first, ExpireMessages((("first", 0),), 9), DeleteTopic("first"), DeleteGroup("first")):
            replica.one(command)
            replica.now_ms += 1_000
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


@pytest.mark.parametrize("command", [DeleteTopic("orders"), PutTopic("orders", 8), ExpireMessages((("orders", 0),), 9)])
def test_a_changed_topic_costs_nothing_of_groups_that_do_not_read_it(
    replicas: tuple[Replica, Replica], command: Command
) -> None:
    for replica, groups in zip(replicas, (FEW, MANY), strict=True):
        replica.do(PutTopic("others", 1), PutTopic("orders", 2, retention_ms=1), read_all("g", "orders", 2))
        replica.do(produce(header("orders", count=2)), GiveBack("g", None, None, (GivenBack("orders", 0, 0),)))
        replica.one(produce(header("others", batch_id="b", count=MANY)))
        for number in range(groups):
            replica.do(read_all(f"other-{number}", "others", 1), JoinGroup(f"m-{number}", "m", "c", ("others",), 9_000))
            replica.do(Pop(f"p-{number}", "others", "c", 1, 9_000))
            replica.do(GiveBack(f"other-{number}", None, None, (GivenBack("others", 0, number),)))
        replica.now_ms += 1_000
    few, many = works(replicas, command)
    assert many == few
    for replica in replicas:
        replica.reopen()
    few, many = works(replicas, PutTopic("others", 1))
    assert many <= 1.1 * few, "it visits none of the others' groups"


def test_the_offsets_of_a_deleted_topic_are_removed_together(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    """The offsets of a wide topic would be thousands of writes."""
    replica.do(PutTopic("orders", MANY), *(read_all(f"g{number}", "orders", MANY) for number in range(FEW)))
    staged: list[int] = []
    commit = replica.index.try_commit

    def count_and_commit() -> bool:
        staged.append(replica.index.staged_rows)
        return commit()

    monkeypatch.setattr(replica.index, "try_commit", count_and_commit)
    replica.one(DeleteTopic("orders"))
    assert offsets_in(replica) == 0
    assert max(staged) < MANY
    touched = {key for key, *_ in replica.index.touched if key[:1] == keys.GROUP_OFFSET}
    assert len(touched) == FEW * MANY, "the hash of the rows has each of them"
    replica.reopen()
    assert offsets_in(replica) == 0


def test_a_reset_looks_at_the_leases_of_its_group_once(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    replica.do(PutTopic("orders", FEW), *(produce(header(queue=each, batch_id=f"b{each}")) for each in range(FEW)))
    replica.one(Pop("g", "orders", "c", FEW, 9_000))
    looks: list[int] = []
    of_group = Leases.of_group

    def counted(leases: Leases, group_id: int) -> Iterator[tuple[LeaseKey, Lease]]:
        looks.append(group_id)
        return of_group(leases, group_id)

    monkeypatch.setattr(Leases, "of_group", counted)
    replica.one(ResetOffsets("g", tuple(QueueOffset("orders", queue, 0) for queue in range(FEW - 1))))
    assert len(looks) == 1
    assert [each.held for each in replica.machine.offsets("g") or ()] == [0] * (FEW - 1) + [1], "others keep theirs"


def test_a_queue_that_a_group_begins_is_not_searched_for_its_history(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica.do(PutTopic("orders", FEW), *(produce(header(queue=each, batch_id=f"b{each}")) for each in range(FEW)))
    searches: list[bytes] = []
    last = replica.index.last

    def counted(begin: bytes, end: bytes) -> tuple[bytes, bytes] | None:
        searches.append(begin)
        return last(begin, end)

    monkeypatch.setattr(replica.index, "last", counted)
    offsets = tuple(QueueOffset("orders", queue, 1) for queue in range(FEW))
    replica.one(CommitOffsets("g", None, None, offsets))
    replica.one(CloneOffsets("copy", "g"))
    assert searches == []
    replica.one(CloneOffsets("copy", "g"))
    assert [each.offset for each in replica.machine.offsets("copy") or ()] == [1] * FEW


def test_offsets_are_read_one_by_one(replicas: tuple[Replica, Replica]) -> None:
    for replica, queues in zip(replicas, (FEW, MANY), strict=True):
        replica.do(PutTopic("orders", queues), read_all("g", "orders", queues))
    readers = [replica.machine.each_offset("g", None, None) for replica in replicas]
    few, many = (work_of(partial(next, reader)) for reader in readers)
    assert many == few
    few, many = (work_of(partial(replica.machine.committed, "g", "orders", 1)) for replica in replicas)
    assert many == few
    few, many = (work_of(partial(replica.machine.committed_in, "g", "orders")) for replica in replicas)
    assert many == few, "a copy"
    assert replicas[0].machine.committed_in("g", "orders") == dict.fromkeys(range(FEW), 0)
    assert replicas[0].machine.committed_in("g", "none") == replicas[0].machine.committed_in("none", "orders") == {}


def test_what_is_gone_since_reading_began_is_left_out(replica: Replica) -> None:
    replica.do(PutTopic("a", 2), PutTopic("b", 2), PutTopic("c", 1))
    replica.do(*(read_all("g", topic, queues) for topic, queues in (("a", 2), ("b", 2), ("c", 1))))
    reader = replica.machine.each_offset("g", None, None)
    first = next(reader)
    replica.do(DeleteTopic("b"), PutTopic("b", 1), read_all("g", "b", 1))
    assert [(first.topic, first.queue), *((each.topic, each.queue) for each in reader)] == [
        ("a", 0),
        ("a", 1),
        ("c", 0),
    ]
    reader = replica.machine.each_offset("g", None, None)
    next(reader)
    replica.one(DeleteGroup("g"))
    with pytest.raises(Refused) as refused:
        next(reader)
    assert refused.value.code == "group_not_found"


def test_a_queue_that_is_reset_costs_little(replicas: tuple[Replica, Replica]) -> None:
    for replica, queues in zip(replicas, (FEW, MANY), strict=True):
        replica.do(PutTopic("orders", queues), read_all("g", "orders", queues))
        replica.do(CloneOffsets("first", "g"))
    few, many = works(replicas, CloneOffsets("copy", "g"))
    assert (many - few) / (MANY - FEW) < 400, "the instructions of one queue"
