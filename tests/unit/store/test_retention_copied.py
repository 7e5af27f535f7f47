"""A copy of the state, by a snapshot or a restart, goes on as the original: with limits in bytes, purged queues whose
rows are still there, rows that are not counted yet, and the times of the log.
"""

from pathlib import Path
from random import Random

import pytest

from store.commands.cluster import PutSettings
from store.commands.entry import Command, Proposal
from store.commands.messages import BatchHeader, Produce
from store.commands.retention import CountBytes, ExpireMessages
from store.commands.topics import DeleteTopic, PurgeTopic, PutTopic
from store.index import keys, retention_keys
from store.index.index import Index
from store.log.base import LogBase
from store.snapshots.snapshot import SnapshotReader, SnapshotWriter
from store.state.machine import StateMachine
from tests.unit.store.references import assert_references_hold
from tests.unit.store.replica import Replica, dump

RANGE_BYTES = 64
TOPICS = ("orders", "points")
PLACES = tuple((topic, queue) for topic in TOPICS for queue in range(3))


def copy(original: Replica, path: Path) -> tuple[Index, StateMachine]:
    """Return an index, and a state machine over it, that a snapshot of the original has filled."""
    index = Index.open(str(path))
    reader, writer = SnapshotReader(original.index, LogBase(0, 0, 0)), SnapshotWriter(index)
    for portion in iter(reader.next_portion, b""):
        writer.add(portion)
    writer.check(reader.pairs_read, reader.checksum, reader.index, reader.state_hash)
    return index, StateMachine(index, dedupe_min_entries=0, log_range_bytes=RANGE_BYTES)


def drawn(draw: Random, number: int) -> Proposal | Command:
    size = draw.choice((1, 60, 400))
    header = BatchHeader(draw.choice(TOPICS), draw.randrange(3), 1, f"b{number}", None, 0, size)
    expire = ExpireMessages(PLACES, draw.choice((1, 3, 50)), by_bytes_before=number if draw.random() < 0.6 else 0)
    rare: list[Proposal | Command] = [
        PurgeTopic(draw.choice(TOPICS), draw.choice((None, 0, 2))),
        CountBytes(PLACES, draw.choice((1, 4))),
        PutTopic("orders", 3, 5_000, retention_bytes=draw.choice((-1, 500, 1_500))),
        PutSettings(log_retention_bytes=draw.choice((-1, 2_000, 8_000))),
        DeleteTopic("points"),
        PutTopic("points", 3, -1, retention_bytes=300),
    ]
    return draw.choice([Proposal(Produce((header,)), (bytes(size),))] * 12 + [expire] * 4 + rare)


def facts(machine: StateMachine, now_ms: int) -> object:
    """Return the numbers by which a leader decides what to remove next."""
    there = [topic for topic in TOPICS if machine.topic(topic) is not None]
    return (
        machine.state_hash,
        [(machine.kept_bytes(topic), machine.queue_ranges(topic)) for topic in there],
        [each for each in machine.expired_queues(now_ms) if each is not None],
        [each for each in machine.exceeding_topics(100) if each is not None],
        [each for each in machine.uncounted_queues() if each is not None],
        machine.has_expired_others(now_ms),
        machine.log_floor,
    )


@pytest.mark.parametrize("seed", range(6))
def test_a_copy_goes_on_as_the_original(tmp_path: Path, seed: int) -> None:
    draw = Random(seed)
    original = Replica(tmp_path / "original", log_range_bytes=RANGE_BYTES)
    original.do(PutTopic("orders", 3, -1), PutTopic("points", 3, -1))
    for number in range(40):  # at level 1: these are counted later, and in portions
        header = BatchHeader(TOPICS[number % 2], number % 3, 1, f"old{number}", None, 0, 50)
        original.one(Proposal(Produce((header,)), (bytes(50),)))
    original.raise_level()
    original.do(PutTopic("orders", retention_bytes=1_000), PutSettings(log_retention_bytes=8_000))
    met: set[bytes] = set()
    for number in range(150):
        original.now_ms += draw.randrange(30)
        original.do(*(drawn(draw, 10 * number + at) for at in range(draw.choice((1, 1, 4)))))
        if number % 30 != 12:
            continue
        header = BatchHeader("orders", number % 3, 1, f"purged{number}", None, 0, 50)
        original.do(Proposal(Produce((header,)), (bytes(50),)), PurgeTopic("orders", number % 3))
        original.reopen()
        met.update(key[:2] for key, _ in original.index.scan(keys.RETENTION, keys.after(keys.RETENTION)))
        index, machine = copy(original, tmp_path / f"copy {number}")
        assert dump(index) == original.dump()
        for later in range(25):
            original.now_ms += draw.randrange(30)
            original.do(*(drawn(draw, 10_000 + 100 * number + later) for _ in range(draw.choice((1, 3)))))
            machine.apply([original.log.entries[-1]])
            if later:  # the place of an entry says how long the log is, and a process learns it from an entry
                assert facts(machine, original.now_ms) == facts(original.machine, original.now_ms)
        assert dump(index) == original.dump()
        assert_references_hold(index, RANGE_BYTES)
        index.close()
    assert {retention_keys.LOG_TIMES, retention_keys.PURGED_QUEUES} <= met
    original.close()
