"""The model of retention keeps to its rules about purges, deleted topics and counted bytes; each is kept and broken."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from store.commands.entry import Command, Proposal, Result
from store.commands.messages import BatchHeader, Produce
from store.commands.retention import ExpiredQueue, ExpireMessages
from store.commands.topics import DeleteTopic, PurgeTopic, PutTopic, TopicPurged
from store.commands.transactions import Decide, Prepare
from store.errors import Refused
from tests.unit.store.replica import Replica

from .checkers import Violation
from .checkers.history import History
from .checkers.stored_rows import WritesByCommand


class Watched:
    """A replica whose entries are fed to the models, with results that a test may falsify."""

    def __init__(self, directory: Path) -> None:
        self.replica = Replica(directory)
        self.history = History()
        self._writes = WritesByCommand(self.replica.machine, self.replica.index)

    def do(self, *commands: Proposal | Command, said: dict[int, Result] | None = None) -> list[Result | Refused]:
        """Apply one entry. The models are told `said` instead of the results of these commands."""
        self.replica.now_ms += 1
        entry = self.replica.log.append(self.replica.now_ms, commands)
        (results,) = self.replica.machine.apply([entry])
        told = [(said or {}).get(at, result) for at, result in enumerate(results)]
        self.history.on_applied(self.replica.machine, entry, told, self._writes)
        return results

    def gone(self, queue: int = 0) -> list[str]:
        return [row.batch_id for row in self.history.retention.gone.get(("orders", queue), ())]

    def check_replica(self) -> None:
        self.history.retention.check_replica(1, self.replica.machine, self.replica.index, 0)


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    made = Watched(tmp_path / "index")
    made.replica.raise_level()
    made.do(PutTopic("orders", 2, -1))
    yield made
    made.replica.close()


def produce(name: str, queue: int = 0) -> Proposal:
    return Proposal(Produce((BatchHeader("orders", queue, 2, name, None, 0, 30),)), (bytes(30),))


@pytest.mark.parametrize("removed_at_once", [False, True])
def test_a_message_may_come_and_be_purged_within_one_entry(watched: Watched, removed_at_once: bool) -> None:
    """An entry that held both made an earlier model take the purge for one of messages that nobody had sent."""
    removal = [ExpireMessages((), 100)] * removed_at_once
    watched.do(produce("a"), PurgeTopic("orders"), produce("b"), PurgeTopic("orders", 0), *removal, produce("c"))
    assert watched.gone() == ["a", "b"]
    assert watched.history.retention.start(("orders", 0)) == 4
    watched.do(ExpireMessages((), 100))
    watched.check_replica()
    watched.do(produce("d"), produce("e", 1), PurgeTopic("orders", 1))
    assert (watched.gone(), watched.gone(1)) == (["a", "b"], ["e"])


def test_a_half_that_is_committed_and_purged_within_one_entry(watched: Watched) -> None:
    half = Prepare("t", "pay", "c", 100, (BatchHeader("orders", 0, 1, "half", None, 0, 30),))
    watched.do(Proposal(half, (bytes(30),)), Decide("t", "commit", "producer", "c", "pay"), PurgeTopic("orders"))
    assert watched.gone() == ["half"]


@pytest.mark.parametrize("purged", [False, True])
def test_a_topic_that_is_made_anew_within_the_entry_that_deletes_it(watched: Watched, purged: bool) -> None:
    purge = [PurgeTopic("orders")] * purged
    watched.do(produce("a", 1))
    watched.do(produce("b"), DeleteTopic("orders"), PutTopic("orders", 1, -1), produce("c"), *purge)
    assert (watched.gone(), watched.history.retention.start(("orders", 0))) == ((["c"], 2) if purged else ([], 0))
    watched.do(ExpireMessages((), 100))
    watched.check_replica()


def test_a_commit_for_a_topic_that_is_gone_is_refused(watched: Watched) -> None:
    half = Prepare("t", "pay", "c", 100, (BatchHeader("orders", 1, 1, "half", None, 0, 30),))
    decide = Decide("t", "commit", "producer", "c", "pay")
    watched.do(Proposal(half, (bytes(30),)))
    (_, refused) = watched.do(DeleteTopic("orders"), decide)
    assert isinstance(refused, Refused)
    assert watched.history.transactions.state_of("t") == "prepared"
    watched.do(PutTopic("orders", 2, -1), decide)
    assert watched.history.transactions.state_of("t") == "committed"
    assert watched.history.retention.ever["orders"] == {"half"}


@pytest.mark.parametrize(
    "queues",
    [
        (),
        (ExpiredQueue("orders", 0, 3, 3),),
        (ExpiredQueue("orders", 0, 5, 4),),
        (ExpiredQueue("orders", 0, 4, 3),),
        (ExpiredQueue("orders", 0, 4, 4), ExpiredQueue("orders", 1, 0, 0)),
    ],
)
def test_a_purge_takes_all_messages_and_no_others(watched: Watched, queues: tuple[ExpiredQueue, ...]) -> None:
    watched.do(produce("a"), produce("b"))
    with pytest.raises(Violation, match=r"purged|retention"):
        watched.do(PurgeTopic("orders"), said={0: TopicPurged(queues)})


def test_a_purge_that_can_be_carried_out_is_not_refused(watched: Watched) -> None:
    with pytest.raises(Violation, match="purged"):
        watched.do(PurgeTopic("orders", 1), said={0: Refused("queue_not_found", "")})  # type: ignore[dict-item]
    watched.do(PurgeTopic("orders", 2), PurgeTopic("gone"))


def test_bytes_that_are_not_those_of_the_rows_are_found(watched: Watched) -> None:
    watched.do(produce("a"))
    topic = watched.replica.machine._topics.require("orders")
    topic.add_bytes(0, 1)
    with pytest.raises(Violation, match="counted"):
        watched.do(produce("b"))


def test_only_rows_of_before_the_level_may_be_uncounted(tmp_path: Path) -> None:
    watched = Watched(tmp_path / "old")
    watched.do(PutTopic("orders", 2, -1))
    watched.do(produce("a"))
    watched.replica.raise_level()
    watched.do(produce("b"))
    topic = watched.replica.machine._topics.require("orders")
    assert watched.replica.machine.kept_bytes("orders").total is None
    topic.counted_from[1] = 1
    with pytest.raises(Violation, match="counted"):
        watched.do(PutTopic("other"))
    watched.replica.close()


def test_a_purge_below_its_level_is_found(tmp_path: Path) -> None:
    watched = Watched(tmp_path / "old")
    watched.do(PutTopic("orders", 2, -1))
    with pytest.raises((Violation, ValueError), match="level"):
        watched.do(PurgeTopic("orders"))
    watched.replica.close()


def test_what_is_left_to_remove_is_told(watched: Watched) -> None:
    retention, machine, index = watched.history.retention, watched.replica.machine, watched.replica.index
    watched.do(produce("a"), PurgeTopic("orders"))
    assert "purged" in str(retention.unremoved(machine, index, 0))
    watched.do(ExpireMessages((), 100))
    assert retention.unremoved(machine, index, 0) is None
    watched.do(produce("b"), produce("c"), PutTopic("orders", retention_bytes=10))
    assert "should keep 10" in str(retention.unremoved(machine, index, 0))


def test_the_oldest_of_one_millisecond_is_that_of_the_lowest_queue(watched: Watched) -> None:
    """Seed 8900152: a large message and a small one of one request; without the large one too little would be left."""
    large = Proposal(Produce((BatchHeader("orders", 0, 2, "large", None, 0, 300),)), (bytes(300),))
    watched.do(produce("small", 1), large, PutTopic("orders", retention_bytes=50))
    retention, machine, index = watched.history.retention, watched.replica.machine, watched.replica.index
    watched.do(ExpireMessages((("orders", 0), ("orders", 1)), 100, by_bytes_before=9))
    assert retention.unremoved(machine, index, 0) is None
    watched.do(produce("b", 1))
    assert "should keep 50" in str(retention.unremoved(machine, index, 0))


def test_a_message_whose_time_is_over_has_to_go_though_the_clock_of_the_log_stands(watched: Watched) -> None:
    """The replicated clock stands without commands; the true time goes on, and a leader has to look."""
    watched.do(PutTopic("orders", 2, 500))
    watched.do(produce("a"))
    machine, index, retention = watched.replica.machine, watched.replica.index, watched.history.retention
    over_ms = watched.replica.now_ms + 500
    assert retention.unremoved(machine, index, over_ms - 1) is None
    assert "is over" in str(retention.unremoved(machine, index, over_ms))
    watched.replica.now_ms = over_ms
    watched.do(ExpireMessages((("orders", 0),), 10))
    assert retention.unremoved(machine, index, over_ms + 1) is None
