"""The inbox: one effect per message, whoever delivers it and however often."""

import random
import threading

import pytest
from sqlalchemy import Engine, text

from keelmq import inbox
from keelmq.errors import InvalidRequest
from keelmq.message import Origin, ReceivedMessage
from tests.databases import balance
from tests.patience import PATIENCE_S


def received(message_id: str, topic: str = "orders") -> ReceivedMessage:
    return ReceivedMessage(topic=topic, queue=0, offset=0, message_id=message_id, body=b"")


def add_points(engine: Engine, message_id: str, group: str = "points", topic: str = "orders") -> bool:
    with engine.begin() as connection:
        if not inbox.first_time(connection, group, received(message_id, topic)):
            return False
        connection.execute(text("UPDATE account SET balance = balance + 100 WHERE id = 1"))
        return True


def test_a_redelivered_message_has_no_second_effect(engine: Engine) -> None:
    assert add_points(engine, "m-1")
    assert not add_points(engine, "m-1")
    assert add_points(engine, "m-2")
    assert balance(engine) == 1200


def test_groups_are_apart(engine: Engine) -> None:
    assert add_points(engine, "m-1", "points")
    assert add_points(engine, "m-1", "audit")


def test_topics_are_apart(engine: Engine) -> None:
    """An Idempotency-Key of `order-17` on two topics makes two messages `order-17-0`: both have their effect."""
    assert add_points(engine, "order-17-0", topic="orders")
    assert add_points(engine, "order-17-0", topic="refunds")
    assert not add_points(engine, "order-17-0", topic="refunds")
    assert balance(engine) == 1200


def test_autocommit_is_refused_before_anything_is_remembered(engine: Engine) -> None:
    """The id would outlive an effect that failed, which would then never be applied."""
    connecting = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
    with connecting as connection, pytest.raises(InvalidRequest, match="autocommit"):
        inbox.first_time(connection, "points", received("m-1"))
    assert add_points(engine, "m-1")


def test_an_effect_that_failed_may_be_tried_again(engine: Engine) -> None:
    with engine.connect() as connection:
        assert inbox.first_time(connection, "points", received("m-1"))
        connection.rollback()
    assert add_points(engine, "m-1")
    assert balance(engine) == 1100


def test_two_consumers_with_the_same_message(engine: Engine) -> None:
    outcomes: list[bool] = []
    barrier = threading.Barrier(4)

    def work() -> None:
        for number in range(25):
            barrier.wait(30)
            outcomes.append(add_points(engine, f"m-{number}"))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert len(outcomes) == 100
    assert outcomes.count(True) == 25
    assert balance(engine) == 1000 + 25 * 100


def ids(messages: list[ReceivedMessage]) -> list[str]:
    return [message.message_id for message in messages]


def test_of_a_batch_the_new_ones_are_told_in_their_order(engine: Engine) -> None:
    assert add_points(engine, "m-3")
    batch = [received(f"m-{number}") for number in (5, 3, 1, 4)]
    with engine.begin() as connection:
        assert ids(inbox.first_times(connection, "points", batch)) == ["m-5", "m-1", "m-4"]
        assert inbox.first_times(connection, "points", batch) == []
        assert ids(inbox.first_times(connection, "audit", batch)) == ["m-5", "m-3", "m-1", "m-4"]
        assert inbox.first_times(connection, "points", []) == []
    assert not add_points(engine, "m-5")


def test_a_message_that_is_twice_in_a_batch_is_told_once(engine: Engine) -> None:
    """The message was given back and its first copy was not committed: the retry has the id and the topic of its
    origin.
    """
    first = received("m-1")
    again = ReceivedMessage(
        topic="%RETRY%points", queue=0, offset=7, message_id="m-1", body=b"", attempt=1, origin=Origin("orders", 0, 0)
    )
    with engine.begin() as connection:
        assert inbox.first_times(connection, "points", [first, again, first]) == [first]
        assert inbox.first_times(connection, "points", [again]) == []


def test_a_batch_that_failed_is_new_again_as_a_whole(engine: Engine) -> None:
    batch = [received(f"m-{number}") for number in range(3)]
    with engine.connect() as connection:
        assert inbox.first_times(connection, "points", batch) == batch
        connection.rollback()
    with engine.begin() as connection:
        assert inbox.first_times(connection, "points", batch) == batch


def test_a_batch_may_be_larger_than_a_statement(engine: Engine) -> None:
    batch = [received(f"m-{number}") for number in range(10_000)]
    with engine.begin() as connection:
        assert inbox.first_times(connection, "points", batch[::2]) == batch[::2]
    with engine.begin() as connection:
        assert inbox.first_times(connection, "points", batch) == batch[1::2]


def test_a_batch_in_autocommit_mode_is_refused(engine: Engine) -> None:
    connecting = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
    with connecting as connection, pytest.raises(InvalidRequest, match="autocommit"):
        inbox.first_times(connection, "points", [received("m-1")])
    assert add_points(engine, "m-1")


def test_overlapping_batches_in_any_order_do_not_deadlock_and_apply_each_message_once(engine: Engine) -> None:
    """Four consumers with the same messages in different orders, as after a rebalance: the sum of effects is exact."""
    rounds, size = 15, 40
    told: list[str] = []
    failures: list[BaseException] = []
    barrier = threading.Barrier(4)

    def work(seed: int) -> None:
        try:
            for number in range(rounds):
                batch = [received(f"m-{number}-{each}") for each in range(size)]
                random.Random(seed * 1_000 + number).shuffle(batch)
                barrier.wait(60)
                with engine.begin() as connection:
                    new = inbox.first_times(connection, "points", batch[: size * 3 // 4])
                    connection.execute(
                        text("UPDATE account SET balance = balance + :points WHERE id = 1"), {"points": len(new)}
                    )
                told.extend(ids(new))
        except BaseException as exc:
            failures.append(exc)
            barrier.abort()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert failures == []
    assert len(told) == len(set(told))
    assert balance(engine) == 1000 + len(told)
    assert len(told) > rounds * size * 3 // 4


def test_purge(engine: Engine) -> None:
    add_points(engine, "m-1")
    with engine.begin() as connection:
        connection.execute(inbox.table.update().values(processed_at_ms=1))
    add_points(engine, "m-2")
    with engine.begin() as connection:
        with pytest.raises(InvalidRequest):
            inbox.purge(connection, 0)
        assert inbox.purge(connection, 3_600_000) == 1
    assert not add_points(engine, "m-2")
