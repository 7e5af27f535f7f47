"""Pop consumers of a topic whose messages expire: an expired message is never handed out, and does not come again."""

import pytest

from store.commands.groups import TopicFilter
from store.commands.pops import (
    AckPopped,
    ChangeInvisible,
    ExpirePopped,
    InvisibleChanged,
    Pop,
    PopHandle,
    Popped,
    PoppedMessages,
    PopPick,
    PopsAcked,
    PopsExpired,
)
from store.commands.retention import Expired, ExpireMessages
from store.commands.topics import PutTopic
from store.commands.views import GroupOffset
from tests.unit.store.replica import Replica, header, produce

KEPT_MS = 1_000
ONLY = TopicFilter("orders", "tags", "A")


@pytest.fixture(autouse=True)
def two_batches(replica: Replica) -> None:
    """Store the messages 0 and 1, which expire half a retention before 2 to 4."""
    replica.one(PutTopic("orders", 1, retention_ms=KEPT_MS))
    replica.one(produce(header(batch_id="first", count=2)))
    replica.now_ms += KEPT_MS // 2
    replica.one(produce(header(batch_id="second", count=3)))


def first_goes(replica: Replica) -> None:
    replica.now_ms += KEPT_MS // 2
    expired = replica.one(ExpireMessages((("orders", 0),), 100))
    assert isinstance(expired, Expired)
    assert [(each.start, each.messages) for each in expired.queues] == [(2, 2)]


def popped(replica: Replica, most: int = 10, *picks: PopPick) -> list[PopHandle]:
    done = replica.one(Pop("g", "orders", "w", most, 60_000, False, ONLY if picks else None, picks))
    assert isinstance(done, Popped), done
    return [each.handle(offset) for each in done.messages for offset in each.offsets]


def progress(replica: Replica) -> GroupOffset:
    found = replica.machine.offsets("g", "orders")
    assert found is not None
    return found[0]


def test_what_is_gone_is_not_handed_out(replica: Replica) -> None:
    assert [handle.offset for handle in popped(replica, 1)] == [0]
    first_goes(replica)
    assert [handle.offset for handle in popped(replica)] == [2, 3, 4]


def test_what_a_filter_found_and_is_gone_since_is_not_handed_out(replica: Replica) -> None:
    assert popped(replica, 1, PopPick(0, 0, 0, ())) == []
    first_goes(replica)
    assert [handle.offset for handle in popped(replica, 2, PopPick(0, 0, 5, (0, 1, 2, 4)))] == [2, 4]
    assert progress(replica) == GroupOffset("orders", 0, 5, 5, 2, 2, 2)


def test_what_is_gone_is_acknowledged_and_held_on_to_like_anything_else_and_does_not_come_again(
    replica: Replica,
) -> None:
    acked, held, alive = popped(replica, 3)
    first_goes(replica)
    assert replica.one(AckPopped("g", (acked,))) == PopsAcked("g", ("acked",))
    assert replica.one(ChangeInvisible("g", held, 500)) == InvisibleChanged("g", "held", replica.now_ms + 500)
    assert replica.one(ChangeInvisible("g", held, 0)) == InvisibleChanged("g", "gone", None)
    assert replica.one(ChangeInvisible("g", alive, 0)) == InvisibleChanged("g", "scheduled", replica.now_ms)


def test_what_nobody_acknowledged_comes_again_unless_it_is_gone(replica: Replica) -> None:
    handles = popped(replica, 3)
    first_goes(replica)
    replica.now_ms += 60_000
    given = PoppedMessages("orders", 0, handles[0].raft_index, 0, (0, 1, 2))
    assert replica.one(ExpirePopped(100)) == PopsExpired((("g", given),), 1, 0, 1)
    assert progress(replica) == GroupOffset("orders", 0, 3, 5, 2, 0, 3)
