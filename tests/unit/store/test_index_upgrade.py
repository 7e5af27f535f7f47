"""An index of format 2 is upgraded in place, to the same state whenever that happens."""

from collections import Counter
from pathlib import Path
from random import Random

import msgspec
import pytest

from store.commands.retention import ReleaseMessages
from store.commands.topics import DeleteTopic, PutTopic
from store.commands.transactions import Decide
from store.index import keys
from store.index.index import Index
from store.limits import TRANSACTION_RETENTION_MS
from store.messages.block_location import BlockLocation
from store.messages.log_references import range_of
from store.messages.timers import decode_timer
from store.messages.topics import topic_id_of
from store.transactions.table import TransactionRecord
from tests.unit.store.references import assert_references_hold
from tests.unit.store.replica import Replica, apply_all, dump, header, prepare, produce
from tests.unit.store.test_expiry import KEPT_MS, random_commands

RANGE_BYTES = 512
_decode_row = msgspec.msgpack.Decoder(tuple[BlockLocation, int, int, int, str | None, list[int], object]).decode
_decode_transaction = msgspec.msgpack.Decoder(TransactionRecord).decode


def downgrade(directory: Path) -> None:
    """Write the index as format 2 did: one count per range for all holders, and no list of deleted topics' timers."""
    index = Index.open(str(directory))
    blocks = [_decode_row(value)[0] for _, value in index.scan(keys.ROW, keys.after(keys.ROW))]
    timers = [(key, decode_timer(value)) for key, value in index.scan(keys.TIMER, keys.after(keys.TIMER))]
    blocks += [timer.block for _, timer in timers]
    prepared: dict[int, int] = {}
    for _, value in index.scan(keys.TRANSACTION, keys.after(keys.TRANSACTION)):
        record = _decode_transaction(value)
        for batch in record.batches:
            blocks.append(batch.block)
            prepared.setdefault(batch.block.position // RANGE_BYTES, record.prepared_index)
    known = {
        keys.read_u64(key[1:]): range_of(value)[0]
        for key, value in index.scan(keys.LOG_REFERENCES, keys.after(keys.LOG_REFERENCES))
    }
    index.delete_range(keys.LOG_REFERENCES, keys.after(keys.LOG_REFERENCES))
    for number, count in Counter(block.position // RANGE_BYTES for block in blocks if block.inline is None).items():
        first_index = min(known.get(number, 1 << 62), prepared.get(number, 1 << 62))
        index.put(keys.log_references(number), keys.u64(count) + keys.u64(first_index))
    topics = {topic_id_of(value) for _, value in index.scan(keys.TOPIC, keys.after(keys.TOPIC))}
    for key, timer in timers:
        if timer.topic_id not in topics:
            index.delete(keys.topic_timer(timer.topic_id, *keys.timer_parts(key)))
    for key, _ in list(index.scan(keys.DROPPED_TOPICS, keys.DECIDED)):
        index.put(key, b"")
    index.delete_range(keys.DROPPED_TIMERS, keys.after(keys.DROPPED_TIMERS))
    index.put(keys.META_FORMAT, b"2")
    index.commit()
    index.close()


def releasable(replica: Replica, at_ms: int) -> list[str]:
    return [found for found in replica.machine.releasable(at_ms) if found is not None]


def without_ranges(index: Index) -> dict[bytes, bytes]:
    """Return the index without the places where ranges begin, and without the first known outcome: an older version has
    others of both.
    """
    passed_by = (keys.LOG_REFERENCES, keys.OUTCOME, keys.META_APPLIED)
    return {key: value for key, value in dump(index).items() if not key.startswith(passed_by)}


@pytest.mark.parametrize("seed", range(8))
def test_replicas_that_upgrade_at_different_entries_hold_the_same(
    seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    random = Random(seed)
    directory = tmp_path_factory.mktemp("upgrade")
    replica = Replica(directory / "new", log_range_bytes=RANGE_BYTES)
    replica.one(PutTopic("orders", 2, KEPT_MS))
    for _ in range(300):
        replica.now_ms += random.choice((0, 1, 100, 3_000, TRANSACTION_RETENTION_MS // 20))
        replica.do(*random_commands(random), *random_commands(random))
    entries = replica.log.entries
    for number in range(3):
        other = Replica(directory / f"old{number}", log_range_bytes=RANGE_BYTES)
        end = random.randrange(1, len(entries))
        apply_all(other.machine, entries[1:end])
        other.close()
        downgrade(other.directory)
        other._open()
        assert other.machine.history.now.rows_from == other.machine.applied_index
        assert_references_hold(other.index, RANGE_BYTES)
        apply_all(other.machine, entries[end:])
        assert_references_hold(other.index, RANGE_BYTES)
        assert not other.machine.history.now.differs(replica.machine.history.now)
        assert without_ranges(other.index) == without_ranges(replica.index)
        assert other.machine.log_floor <= replica.machine.log_floor
        assert releasable(other, replica.now_ms) == releasable(replica, replica.now_ms)
        other.close()
    replica.close()


def test_what_an_older_version_held_is_released(tmp_path: Path) -> None:
    replica = Replica(tmp_path / "index", log_range_bytes=RANGE_BYTES)
    replica.do(PutTopic("orders", 1), PutTopic("gone", 1))
    replica.do(prepare("t", header(batch_id="h")), Decide("t", "rollback"))
    replica.one(produce(msgspec.structs.replace(header("gone", batch_id="d"), delay_ms=1 << 30)))
    replica.one(DeleteTopic("gone"))
    replica.close()
    downgrade(tmp_path / "index")
    replica._open()
    assert replica.machine.log_floor <= replica.machine.applied_index
    assert releasable(replica, 1_000) == []
    assert replica.machine.has_dropped_timers
    replica.one(ReleaseMessages((), 10))
    assert releasable(replica, 1_000) == ["RMQ_SYS_TRANS_HALF_TOPIC"]
    replica.one(ReleaseMessages(("RMQ_SYS_TRANS_HALF_TOPIC",), 10))
    assert replica.machine.log_floor == replica.machine.applied_index + 1
    replica.reopen()
    assert replica.machine.log_floor == replica.machine.applied_index + 1
    replica.close()
