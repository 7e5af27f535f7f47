"""Walks through large tables go in steps, whatever comes and goes meanwhile."""

from pathlib import Path

import pytest

from store.commands.retention import ExpireMessages
from store.commands.topics import DeleteTopic, PutTopic
from store.messages.sorted_names import SortedNames
from store.state.walks import STEP
from tests.unit.store.replica import Replica, header, produce

TOPICS, QUEUES = 200, 8


@pytest.fixture
def many(tmp_path: Path) -> Replica:
    replica = Replica(tmp_path / "index")
    replica.do(*(PutTopic(f"t{number}", QUEUES, 1_000) for number in range(TOPICS)))
    for number in range(0, TOPICS, 10):
        replica.one(produce(header(topic=f"t{number}", queue=3, batch_id=f"b{number}")))
    return replica


def test_names_are_given_in_order_behind_any_name() -> None:
    names = SortedNames(("b", "d", "a"))
    names.add("c")
    names.add("c")
    names.remove("b")
    assert (list(names), len(names)) == (["a", "c", "d"], 3)
    assert names.after("b", 1) == names.after("a", 1) == ["c"]
    assert (names.after(None, 2), names.after("d", 9)) == (["a", "c"], [])
    with pytest.raises(ValueError, match="no such name"):
        names.remove("b")


def test_a_walk_finds_everything_and_pauses_after_each_step(many: Replica) -> None:
    found = list(many.machine.expired_queues(1 << 50))
    holding = TOPICS // 10
    assert {each for each in found if each is not None} == {(f"t{number}", 3) for number in range(0, TOPICS, 10)}
    steps = sum(each is None for each in found)
    looks = TOPICS + holding * QUEUES + 3  # one look at a topic that holds nothing, as at the system's
    assert looks // STEP - 1 <= steps <= looks // STEP
    assert many.machine.walks.steps == steps


def test_what_is_deleted_during_a_walk_is_passed_by(many: Replica) -> None:
    walk = many.machine.expired_queues(1 << 50)
    first = next(each for each in walk if each is not None)
    many.one(DeleteTopic(first[0]))
    many.one(DeleteTopic("t190"))
    many.one(PutTopic("t190", 1))
    rest = {each for each in walk if each is not None}
    assert first not in rest
    assert ("t190", 3) not in rest
    assert len(rest) == TOPICS // 10 - 2
    assert many.machine.still_expired([first, ("t10", 3), ("t20", 2)], 1 << 50) == [("t10", 3)]


def test_a_topic_that_is_gone_has_no_first_row(many: Replica) -> None:
    """A walk that met the topic before may come back to it after its rows were removed."""
    topic = many.machine._topics.require("t0")
    assert many.machine._queues.first_row(topic, 3) is not None
    many.one(DeleteTopic("t0"))
    many.one(ExpireMessages((), 100))
    assert topic.starts[3] != topic.ends[3]
    assert many.machine._queues.first_row(topic, 3) is None


def test_a_topic_whose_oldest_message_is_too_young_is_one_look(many: Replica) -> None:
    def steps(at_ms: int) -> int:
        before = many.machine.walks.steps
        assert not list(filter(None, many.machine.expired_queues(at_ms)))
        return many.machine.walks.steps - before

    for number in range(TOPICS):
        many.do(
            *(
                produce(header(topic=f"t{number}", queue=queue, batch_id=f"c{number}-{queue}"))
                for queue in range(QUEUES)
            )
        )
    first = steps(1_999)
    assert first >= TOPICS * QUEUES // STEP - 1
    assert steps(1_999) <= TOPICS // STEP + 1
    many.one(PutTopic("t7", retention_ms=1))
    assert {each for each in many.machine.expired_queues(1_999) if each} == {("t7", queue) for queue in range(QUEUES)}


def test_what_was_looked_up_of_a_topic_is_forgotten_with_it(replica: Replica) -> None:
    """Or a broker whose topics live for an hour would take more memory with each of them."""
    machine = replica.machine
    kept: list[int] = []
    for number in range(3):
        replica.one(PutTopic("short", 2))
        replica.one(produce(header("short", 1, f"b{number}")))
        assert ("short", 1) in list(machine.expired_queues(10**12))
        replica.one(DeleteTopic("short"))
        replica.one(ExpireMessages((), 100))
        machine.take_grown_queues()
        machine.take_appended()
        kept.append(sum(len(each) for each in vars(machine._queues).values() if isinstance(each, dict)))
    assert kept == [0, 0, 0]
