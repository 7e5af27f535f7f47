"""A node that comes back applies a long backlog: what an entry costs must not grow with it."""

from pathlib import Path

from store.command import ExpireMessages, PutTopic, SweepIndex
from store.index import Index
from store.record import Entry
from store.state_machine import StateMachine
from tests.unit.store.counted_key import CountedKey
from tests.unit.store.replica import EntryLog, header, produce

RETENTION_MS = 3_000
QUEUES = 4


class CountingIndex(Index):
    """Counts the comparisons of what is staged."""

    def put(self, key: bytes, value: bytes) -> None:
        super().put(CountedKey(key), value)

    def delete(self, key: bytes) -> None:
        super().delete(CountedKey(key))


def backlog(length: int) -> list[Entry]:
    """Of a topic of a short retention: every tenth entry sweeps, every tenth expires."""
    log, now_ms = EntryLog(), 1_000
    log.append(now_ms, [PutTopic("orders", QUEUES, RETENTION_MS)])
    queues = tuple(("orders", queue) for queue in range(QUEUES))
    for number in range(length):
        now_ms += 20
        if number % 10 == 3:
            log.append(now_ms, [SweepIndex(50)])
        elif number % 10 == 7:
            log.append(now_ms, [ExpireMessages(queues, 256)])
        else:
            ids = f"m{number}-a", f"m{number}-b"
            batch = header(queue=number % QUEUES, batch_id=f"b{number}", count=2, message_ids=ids)
            log.append(now_ms, [produce(batch)])
    return log.entries


def comparisons_per_entry(directory: Path, length: int) -> float:
    """When all of it is applied by one call."""
    index = CountingIndex.open(str(directory))
    machine = StateMachine(index)
    entries = backlog(length)
    CountedKey.comparisons = 0
    machine.apply(entries)
    index.close()
    return CountedKey.comparisons / length


def test_an_entry_costs_the_same_however_long_the_backlog_is(tmp_path: Path) -> None:
    short, long = comparisons_per_entry(tmp_path / "short", 400), comparisons_per_entry(tmp_path / "long", 1_600)
    assert long < 2 * short
