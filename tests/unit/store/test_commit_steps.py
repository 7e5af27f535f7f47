"""A transaction that costs much is committed in steps, and all of it is seen at once."""

from collections.abc import Callable

import pytest

from store.commands.entry import Proposal
from store.commands.topics import PutTopic
from store.commands.transactions import Decide, Decided
from store.steps import ITEMS_PER_STEP
from tests.unit.store.paused import never, steps_of
from tests.unit.store.replica import Replica, header, prepare, produce

FEW, MANY = 8, 128
TOPICS = ("orders", "items")
LISTED = 200
"""Instructions for each batch where they are listed, or shown."""


def prepared(replica: Replica, transaction_id: str, batches: int, ids: int = 1) -> list[Proposal]:
    """Prepare a transaction of batches with explicit ids; return them as sends."""
    headers = [
        header(
            TOPICS[each % len(TOPICS)],
            batch_id=f"{transaction_id}-{each}",
            count=ids,
            message_ids=[f"m-{transaction_id}-{each}-{number}" for number in range(ids)],
        )
        for each in range(batches)
    ]
    replica.do(prepare(transaction_id, *headers))
    return [produce(each) for each in headers]


@pytest.fixture
def ready(replica: Replica) -> Replica:
    replica.raise_level()
    for topic in TOPICS:
        replica.one(PutTopic(topic, 1))
    return replica


def test_all_of_a_transaction_is_seen_at_once(ready: Replica) -> None:
    sends = prepared(ready, "tx", FEW)
    machine = ready.machine
    views: list[Callable[[], bool]] = [
        lambda: machine.max_offset("orders", 0) > 0,
        lambda: machine.max_offset("items", 0) > 0,
        lambda: bool(machine.rows("orders", 0, 0, 1, 1_000)),
        lambda: {place.state for place in machine.message_places("orders", "m-tx-0-0", 9)} == {"visible"},
        lambda: {place.state for place in machine.message_places("orders", "tx-0-0", 9)} == {"visible"},
        lambda: [each.state for each in (machine.transaction("tx"),) if each] == ["committed"],
        lambda: machine.carried_out(sends[0].command) is not None,
    ]
    entry = ready.log.append(ready.now_ms, [Decide("tx", "commit")])
    seen: list[set[bool]] = []
    while not machine.apply([entry], never):
        seen.append({view() for view in views})
    seen.append({view() for view in views})
    assert {frozenset(each) for each in seen} == {frozenset({False}), frozenset({True})}
    assert seen.count({False}) >= FEW - 1


def test_offsets_are_those_of_a_commit_at_once(ready: Replica) -> None:
    """Batches of one queue, ids that are repeated within the transaction, and one that is known before."""
    ready.one(produce(header("orders", batch_id="before", count=2, message_ids=["known", "other"])))
    batches = [
        header("orders", batch_id="a", count=3, message_ids=["x", "x", "y"]),
        header("items", batch_id="b", count=1),
        header("orders", batch_id="c", count=3, message_ids=["known", "y", "z"]),
        header("orders", batch_id="d", count=2),
    ]
    ready.do(prepare("tx", *batches))
    decided = ready.one(Decide("tx", "commit"))
    assert isinstance(decided, Decided)
    assert [(each.topic, each.offset, each.count) for each in decided.positions] == [
        ("orders", 2, 2),
        ("items", 0, 1),
        ("orders", 4, 1),
        ("orders", 5, 2),
    ]
    assert [ready.machine.max_offset(topic, 0) for topic in TOPICS] == [7, 1]


def test_the_work_of_a_step_does_not_grow_with_the_batches_of_a_transaction(ready: Replica) -> None:
    worked: list[list[int]] = []
    for batches in (FEW, MANY):
        prepared(ready, f"tx{batches}", batches)
        worked.append(steps_of(ready, Decide(f"tx{batches}", "commit")))
    few, many = worked
    assert len(many) >= MANY
    assert max(many) < max(few) + LISTED * MANY, "what all of them add to a step is their list, and showing it"


def test_ids_of_a_transaction_are_looked_up_in_portions(ready: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared(ready, "tx", 3, ids=ITEMS_PER_STEP)
    looked_up: list[int] = []
    get = ready.index.get

    def counted(key: bytes) -> bytes | None:
        looked_up[-1] += 1
        return get(key)

    monkeypatch.setattr(ready.index, "get", counted)
    entry = ready.log.append(ready.now_ms, [Decide("tx", "commit")])
    looked_up.append(0)
    while not ready.machine.apply([entry], never):
        looked_up.append(0)
    assert sum(looked_up) > 3 * ITEMS_PER_STEP
    assert max(looked_up) <= ITEMS_PER_STEP + 16


def test_a_restart_within_a_commit_does_it_again(ready: Replica) -> None:
    prepared(ready, "tx", FEW)
    ready.index.flush()
    before, state_hash = ready.dump(), ready.machine.state_hash
    entry = ready.log.append(ready.now_ms, [Decide("tx", "commit")])
    assert ready.machine.apply([entry], never) == []
    ready.index.flush()
    ready.reopen()
    assert (ready.dump(), ready.machine.state_hash) == (before, state_hash)
    assert ready.machine.apply([entry]) != []
    assert ready.machine.max_offset("orders", 0) == FEW // 2


def test_a_send_that_repeats_a_batch_is_answered_once_that_is_seen(ready: Replica) -> None:
    (send, *_) = prepared(ready, "tx", FEW)
    entry = ready.log.append(ready.now_ms, [Decide("tx", "commit")])
    answered = []
    while not ready.machine.apply([entry], never):
        answered.append(ready.machine.carried_out(send.command) is not None)
        assert answered[-1] is (ready.machine.max_offset("orders", 0) > 0)
    assert answered.count(False) > 0


def test_the_writes_of_a_commit_are_those_of_the_last_release(replica: Replica) -> None:
    """Replicas compare the hash of what each entry writes: at level 1 a node of 0.2.0 has this one."""
    replica.log.level = 1
    replica.do(PutTopic("orders", 2, 1_000))
    ids = [(f"m{number}", f"n{number}") for number in range(4)]
    batches = [header("orders", at % 2, f"b{at}", 2, message_ids=list(each)) for at, each in enumerate(ids)]
    replica.do(prepare("tx", *batches))
    replica.do(Decide("tx", "commit"))
    assert replica.machine.history.now.rows_hash == 530_756_223
