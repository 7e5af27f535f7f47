"""A node that comes back applies a long backlog: the cost of an entry must not grow with its length."""

from functools import partial
from pathlib import Path

from store.commands.retention import ExpireMessages, SweepIndex
from store.commands.topics import PutTopic
from store.index.index import Index
from store.log.record import Entry
from store.state.machine import StateMachine
from tests.unit.store.counted_key import CountedKey
from tests.unit.store.replica import EntryLog, apply_all, dump, header, produce

RETENTION_MS = 3_000
QUEUES = 4


class CountingIndex(Index):
    """An index that counts the comparisons of its staged keys."""

    def put(self, key: bytes, value: bytes) -> None:
        super().put(CountedKey(key), value)

    def delete(self, key: bytes) -> None:
        super().delete(CountedKey(key))


def backlog(length: int) -> list[Entry]:
    """Return the entries of a topic with a short retention: every tenth sweeps, every tenth expires."""
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
    """Return the key comparisons per entry when entries are applied without a pause."""
    index = CountingIndex.open(str(directory))
    machine = StateMachine(index)
    entries = backlog(length)
    CountedKey.comparisons = 0
    apply_all(machine, entries)
    index.close()
    return CountedKey.comparisons / length


def test_an_entry_costs_the_same_however_long_the_backlog_is(tmp_path: Path) -> None:
    short, long = comparisons_per_entry(tmp_path / "short", 400), comparisons_per_entry(tmp_path / "long", 1_600)
    assert long < 2 * short


def applied_in_turns(directory: Path, entries: list[Entry], per_turn: int) -> tuple[str, dict[bytes, bytes], list[int]]:
    """Apply the entries in turns and return the state hash, the index, and the lengths of the turns."""
    index = Index.open(str(directory))
    machine = StateMachine(index)
    turns: list[int] = []
    while (at := sum(turns)) < len(entries):
        asked = iter([True] * (per_turn - 1) + [False])
        turns.append(len(machine.apply(entries[at:], partial(next, asked))))
    contents = dump(index)
    index.close()
    return machine.state_hash, contents, turns


def test_in_how_many_turns_entries_are_applied_is_nowhere_in_the_state(tmp_path: Path) -> None:
    entries = backlog(100)
    expected = applied_in_turns(tmp_path / "all", entries, len(entries))
    assert expected[2] == [len(entries)]
    for per_turn in (1, 7, 64):
        state_hash, contents, turns = applied_in_turns(tmp_path / str(per_turn), entries, per_turn)
        assert set(turns[:-1]) == {per_turn}, "it asks after each entry, and stops when told to"
        assert (state_hash, contents) == expected[:2]
