"""Retention by bytes: what is counted, which messages go, and in which order."""

from itertools import islice
from pathlib import Path
from random import Random

import msgspec
import pytest

from store.commands.cluster import PutSettings
from store.commands.entry import Proposal
from store.commands.messages import BatchHeader, Produce
from store.commands.retention import BytesCounted, CountBytes, Expired, ExpireMessages
from store.commands.topics import DeleteTopic, PurgeTopic, PutTopic, TopicPurged
from store.errors import Refused
from store.index import keys, retention_keys
from store.limits import EXPIRED_ROWS_MAX
from store.messages.log_references import LOG_RANGE_BYTES
from tests.unit.store.references import assert_references_hold
from tests.unit.store.replica import Replica

QUEUES = 3


def send(replica: Replica, queue: int, size_bytes: int, topic: str = "orders") -> None:
    """Store one message, in a block of its own, a millisecond after the last one."""
    replica.now_ms += 1
    name = f"b{replica.machine.applied_index}"
    header = BatchHeader(topic, queue, 1, name, None, 0, size_bytes)
    replica.one(Proposal(Produce((header,)), (bytes(size_bytes),)))


def expire(replica: Replica, limit: int = 100) -> int:
    """Do what the leader does until nothing is left to do, `limit` rows at a time; return how many rows went."""
    rows = 0
    while topics := [each for each in replica.machine.exceeding_topics(limit) if each is not None]:
        queues = tuple((name, queue) for name, numbers in topics for queue in numbers)
        result = replica.one(ExpireMessages(queues, limit, replica.machine.applied_index + 1))
        assert isinstance(result, Expired)
        assert 0 < result.rows <= limit
        rows += result.rows
    return rows


def kept(replica: Replica, topic: str = "orders") -> list[tuple[int, int, int]]:
    """Return time, queue and bytes of the rows of a topic, the oldest first."""
    rows = [
        (row.stored_at_ms, queue, row.block_length)
        for queue in range(len(replica.machine.queue_ranges(topic)))
        for row in replica.machine.rows(topic, queue, 0, 10_000, 1 << 30)
    ]
    return sorted(rows)


def assert_counted(replica: Replica, topic: str = "orders") -> None:
    sizes = [sum(size for _, queue, size in kept(replica, topic) if queue == number) for number in range(QUEUES)]
    assert replica.machine.kept_bytes(topic) == (sum(sizes), sizes)


def total(replica: Replica) -> int:
    found = replica.machine.kept_bytes("orders").total
    assert found is not None
    return found


@pytest.fixture
def limited(replica: Replica) -> Replica:
    """Return a replica with a topic of three queues that keeps 1,000 bytes for ever."""
    replica.raise_level()
    replica.one(PutTopic("orders", QUEUES, -1, retention_bytes=1_000))
    return replica


@pytest.mark.parametrize("limit", [1, 4, 100])
def test_the_oldest_go_whichever_queue_they_are_in_and_the_limit_is_left(limited: Replica, limit: int) -> None:
    draw = Random(limit)
    for _ in range(60):
        send(limited, draw.randrange(QUEUES), draw.randint(1, 120))
        if draw.random() < 0.2:
            before = kept(limited)
            gone = expire(limited, limit)
            assert kept(limited) == before[gone:]
            assert_counted(limited)
            assert total(limited) >= min(1_000, sum(size for _, _, size in before))
            if gone:  # one more would have been one too many
                assert total(limited) - kept(limited)[0][2] < 1_000
    assert len(kept(limited)) < 60
    limited.reopen()
    assert_counted(limited)
    assert_references_hold(limited.index, LOG_RANGE_BYTES)


def test_a_topic_keeps_its_newest_message_however_large(limited: Replica) -> None:
    send(limited, 0, 10)
    send(limited, 1, 5_000)
    assert expire(limited) == 1
    assert [size for _, _, size in kept(limited)] == [5_000]
    send(limited, 2, 1)
    assert expire(limited) == 0
    send(limited, 2, 999)
    assert expire(limited) == 1


def test_the_limit_can_change_and_bad_ones_are_refused(limited: Replica) -> None:
    for number in range(20):
        send(limited, number % QUEUES, 100)
    limited.one(PutTopic("orders", retention_bytes=-1))
    assert expire(limited) == 0
    limited.one(PutTopic("orders", retention_bytes=300))
    assert expire(limited) == 17
    for bad in (0, -2):
        assert limited.refusal(PutTopic("orders", retention_bytes=bad)).code == "invalid_request"
    info = limited.machine.topic("orders")
    assert info is not None
    assert info.retention_bytes == 300
    limited.reopen()
    assert limited.machine.topic("orders") == info


def test_a_list_of_queues_that_is_old_removes_nothing_that_may_stay(limited: Replica) -> None:
    for number in range(12):
        send(limited, number % QUEUES, 100)
    old = tuple(("orders", queue) for queue in range(QUEUES))
    assert limited.one(ExpireMessages(old, 100)) == Expired((), 0, 0)  # it looks for what is too old alone
    assert expire(limited) == 2
    result = limited.one(ExpireMessages((*old, *old, ("gone", 0)), 100, limited.machine.applied_index + 1))
    assert isinstance(result, Expired)
    assert (result.queues, result.rows) == ((), 0)


def test_no_message_goes_before_an_older_one_that_came_after_the_look(limited: Replica) -> None:
    """Seed 8910369: queue 1 was empty at the look, and its message stayed when a younger one of queue 0 went."""
    for _ in range(12):
        send(limited, 0, 100)
    before = limited.machine.applied_index + 1
    for queue in (1, 0, 0):
        send(limited, queue, 1_000)
    result = limited.one(ExpireMessages((("orders", 0),), 100, before))
    assert isinstance(result, Expired)
    assert [(each.queue, each.start) for each in result.queues] == [(0, 12)]
    assert expire(limited) == 2
    assert [queue for _, queue, _ in kept(limited)] == [0]


def test_a_list_of_queues_may_be_of_a_topic_that_was_made_anew_with_fewer(limited: Replica) -> None:
    """Found in review: the command was applied with an error, by every node, and again after each restart."""
    old = tuple(("orders", queue) for queue in range(QUEUES))
    limited.one(DeleteTopic("orders"))
    limited.one(PutTopic("orders", 1, -1, retention_bytes=100))
    for _ in range(3):
        send(limited, 0, 100)
    result = limited.one(ExpireMessages((*old, ("orders", -1)), 100, limited.machine.applied_index + 1))
    assert isinstance(result, Expired)
    assert [(each.queue, each.start, each.messages) for each in result.queues] == [(0, 2, 2)]


# Messages of before feature level 2


@pytest.fixture
def old(replica: Replica) -> Replica:
    """Return a replica with 30 messages of 100 bytes that were stored at level 1, and 10 of level 2."""
    replica.one(PutTopic("orders", QUEUES, -1))
    for number in range(30):
        send(replica, number % 2, 100)
    for key, value in replica.index.scan(keys.QUEUE_END, keys.after(keys.QUEUE_END)):
        assert len(value) == 8, key
    replica.raise_level()
    for number in range(10):
        send(replica, number % QUEUES, 100)
    return replica


@pytest.mark.parametrize("level", [1, 2])
def test_bytes_are_counted_from_the_second_level_on(replica: Replica, level: int) -> None:
    replica.raise_level(level)
    replica.one(PutTopic("orders", 1, -1))
    send(replica, 0, 100)
    assert replica.machine.kept_bytes("orders").total == (100 if level == 2 else None)
    lengths = {len(value) for _, value in replica.index.scan(keys.QUEUE_END, keys.after(keys.QUEUE_END))}
    assert lengths == {24 if level == 2 else 8}


def count(replica: Replica, limit: int) -> list[int]:
    rows: list[int] = []
    while queues := [each for each in replica.machine.uncounted_queues() if each is not None]:
        assert replica.machine.still_uncounted(queues) == queues
        result = replica.one(CountBytes(tuple(queues), limit))
        assert isinstance(result, BytesCounted)
        rows.append(result.rows)
    return rows


@pytest.mark.parametrize("restarts", [False, True])
def test_what_was_stored_before_is_counted_in_portions(old: Replica, restarts: bool) -> None:
    assert old.machine.kept_bytes("orders") == (None, [None, None, 300])
    if restarts:
        old.reopen()
    assert count(old, 7) == [7, 7, 7, 7, 2]
    assert_counted(old)
    old.reopen()
    assert_counted(old)
    assert old.one(CountBytes((("orders", 0), ("orders", 9), ("gone", 0)), 7)) == BytesCounted(0)
    for bad in (0, EXPIRED_ROWS_MAX + 1):
        assert old.refusal(CountBytes((), bad)).code == "invalid_request"


def test_what_is_not_counted_yet_goes_before_what_is(old: Replica) -> None:
    old.one(PutTopic("orders", retention_bytes=1_500))
    assert expire(old) == 0  # 1,000 bytes are known
    for _ in range(5):
        send(old, 0, 100)
    before = kept(old)
    gone = 0
    for _ in range(3):
        send(old, 1, 100)
        gone += expire(old)
        count(old, 4)
        gone += expire(old)
    assert gone == 33  # 48 messages were sent
    assert kept(old)[:12] == before[gone : gone + 12]
    assert_counted(old)


# By the bytes of the log


@pytest.fixture
def short(tmp_path: Path) -> Replica:
    """Return a replica whose log is kept to 20,000 bytes, with times for ranges of 64 bytes of it."""
    replica = Replica(tmp_path / "short", log_range_bytes=64)
    replica.raise_level()
    replica.do(PutTopic("orders", QUEUES, -1), PutTopic("points", 1), PutSettings(log_retention_bytes=20_000))
    return replica


def expire_all(replica: Replica) -> int:
    rows = 0
    while queues := [each for each in replica.machine.expired_queues(replica.now_ms) if each is not None]:
        result = replica.one(ExpireMessages(tuple(queues), 100))
        assert isinstance(result, Expired)
        if not result.rows:
            break
        rows += result.rows
    return rows


@pytest.mark.parametrize("restarts", [False, True])
def test_messages_go_when_the_log_has_grown_by_its_limit_since(short: Replica, restarts: bool) -> None:
    places: dict[int, int] = {}
    for number in range(200):
        topic, queue = ("orders", number % QUEUES) if number % 5 else ("points", 0)
        send(short, queue, 300, topic)
        places[short.now_ms] = short.log.entries[-1].position
        if number % 20 == 19:
            if restarts:
                short.reopen()
            short.one(PutSettings())  # the place of an entry says how long the log is
            expire_all(short)
            end = short.log.entries[-1].position
            stored = {ms for topic in ("orders", "points") for ms, _, _ in kept(short, topic)}
            assert {ms for ms, position in places.items() if position >= end - 20_000} <= stored
            assert all(places[ms] >= end - 20_000 - 1_000 for ms in stored)
    assert len(places) > sum(len(kept(short, topic)) for topic in ("orders", "points")) > 20
    assert_references_hold(short.index, 64)


def test_nothing_within_the_limit_goes_however_late_it_is(short: Replica) -> None:
    for number in range(30):
        send(short, number % QUEUES, 300)
    short.now_ms += 1 << 40
    assert expire_all(short) == 0
    short.one(PutSettings(log_retention_bytes=-1))
    for number in range(200):
        send(short, number % QUEUES, 300)
    assert expire_all(short) == 0
    assert short.machine.settings.log_retention_bytes == -1
    refused = short.one(PutSettings(log_retention_bytes=0))
    assert isinstance(refused, Refused)
    assert refused.code == "invalid_request"


def test_times_of_the_log_are_forgotten_with_the_log(short: Replica) -> None:
    for number in range(300):
        send(short, number % QUEUES, 300)
        if number % 10 == 0:
            expire_all(short)
    expire_all(short)
    kept_times = sum(1 for _ in short.index.scan(retention_keys.LOG_TIMES, keys.after(retention_keys.LOG_TIMES)))
    assert 40 < kept_times < 80  # one per entry, of the last 20,000 bytes


# Purge


def purge(replica: Replica, queue: int | None = None) -> dict[int, int]:
    result = replica.one(PurgeTopic("orders", queue))
    assert isinstance(result, TopicPurged)
    return {each.queue: each.messages for each in result.queues}


@pytest.mark.parametrize("limit", [1, 7, 100])
def test_a_purge_empties_at_once_and_the_rows_go_in_portions(limited: Replica, limit: int) -> None:
    for number in range(10):
        send(limited, number % 2, 50)
    assert purge(limited) == {0: 5, 1: 5}
    assert purge(limited) == {}
    assert kept(limited) == []
    assert total(limited) == 0
    send(limited, 0, 60)
    assert [row.base_offset for row in limited.machine.rows("orders", 0, 0, 9, 999)] == [5]
    limited.reopen()
    assert_counted(limited)
    assert purge(limited, 0) == {0: 1}  # again, before the rows of the first are gone
    send(limited, 0, 70)
    rows = 0
    while limited.machine.has_expired_others(limited.now_ms):
        result = limited.one(ExpireMessages((), limit))
        assert isinstance(result, Expired)
        assert result.rows <= limit
        rows += result.rows
    assert rows == 11
    assert len(list(islice(limited.index.scan(keys.ROW, keys.after(keys.ROW)), 9))) == 1
    assert_references_hold(limited.index, LOG_RANGE_BYTES)
    assert_counted(limited)


def test_a_purged_queue_and_a_topic_that_is_deleted_meanwhile(limited: Replica) -> None:
    for number in range(10):
        send(limited, number % 2, 50)
    assert purge(limited, 1) == {1: 5}
    assert [queue for _, queue, _ in kept(limited)] == [0] * 5
    limited.one(DeleteTopic("orders"))
    while limited.machine.has_expired_others(limited.now_ms):
        limited.one(ExpireMessages((), 3))
    assert not list(limited.index.scan(keys.ROW, keys.after(keys.ROW)))
    assert not list(limited.index.scan(retention_keys.PURGED_QUEUES, keys.after(retention_keys.PURGED_QUEUES)))
    assert_references_hold(limited.index, LOG_RANGE_BYTES)


def test_a_purge_of_what_is_not_there_or_not_the_clients_is_refused(limited: Replica) -> None:
    assert limited.refusal(PurgeTopic("gone")).code == "topic_not_found"
    assert limited.refusal(PurgeTopic("orders", QUEUES)).code == "queue_not_found"
    assert limited.refusal(PurgeTopic("RMQ_SYS_TRANS_HALF_TOPIC")).code == "system_topic"


def test_an_entry_writes_the_end_of_a_queue_once(limited: Replica) -> None:
    def block(name: str) -> Proposal:
        return Proposal(Produce((BatchHeader("orders", 1, 1, name, None, 0, 40),)), (bytes(40),))

    limited.do(*(block(f"batch{number}") for number in range(20)))
    end = keys.queue_end(topic_id(limited), 1)
    assert [row[0] for row in limited.index.touched].count(end) == 1
    limited.reopen()
    assert_counted(limited)
    assert total(limited) == 20 * 40


def test_a_topic_that_is_deleted_by_the_entry_that_wrote_to_it_leaves_no_end(limited: Replica) -> None:
    header = BatchHeader("orders", 1, 1, "b", None, 0, 40)
    deleted = topic_id(limited)
    limited.do(Proposal(Produce((header,)), (bytes(40),)), DeleteTopic("orders"), PutTopic("orders", QUEUES))
    assert topic_id(limited) != deleted
    assert not list(limited.index.scan(keys.queue_ends(deleted), keys.after(keys.queue_ends(deleted))))
    limited.reopen()
    assert total(limited) == 0


def topic_id(replica: Replica) -> int:
    value = replica.index.get(keys.topic("orders"))
    assert value is not None
    number: int = msgspec.msgpack.decode(value)[0]
    return number
