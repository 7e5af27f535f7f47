"""A state machine over a real index, fed with entries made as the leader makes them."""

from collections.abc import Sequence
from pathlib import Path

from raft.membership import Configuration, Member, encode_configuration
from store.commands.entry import Command, Proposal, Result, encode_entry
from store.commands.messages import BatchHeader, BatchPlaced, Produce, Produced
from store.commands.transactions import Prepare
from store.errors import Refused
from store.features import LEVEL_MAX
from store.index.index import Index
from store.log.record import KIND_CONFIG, KIND_ENTRY, KIND_NOOP, Entry
from store.state.machine import StateMachine

HEADER_BYTES = 52


class EntryLog:
    """Entries with the positions that the commit log would give them."""

    def __init__(self) -> None:
        self.level = LEVEL_MAX
        """The feature level at which entries are encoded."""
        self.entries: list[Entry] = [Entry(b"", 1, 0, KIND_NOOP, 0)]

    def append(self, timestamp_ms: int, proposals: Sequence[Proposal | Command], *, in_doubt: bool = False) -> Entry:
        wrapped = [item if isinstance(item, Proposal) else Proposal(item) for item in proposals]
        return self._add(encode_entry(timestamp_ms, wrapped, in_doubt=in_doubt, level=self.level), KIND_ENTRY)

    def append_level(self, level: int) -> Entry:
        configuration = Configuration((Member(1, "10.0.0.1", 7091, "http://10.0.0.1:7081", True),), "disk")
        return self._add(encode_configuration(configuration.with_feature_level(level)), KIND_CONFIG)

    def append_noop(self) -> Entry:
        return self._add(b"", KIND_NOOP)

    def _add(self, payload: bytes, kind: int) -> Entry:
        last = self.entries[-1]
        entry = Entry(payload, last.index + 1, 1, kind, last.position + HEADER_BYTES + len(last.payload))
        self.entries.append(entry)
        return entry


class Replica:
    """One node's index and state machine. The test moves its clock."""

    def __init__(self, directory: Path, **options: int) -> None:
        self.directory = directory
        self.log = EntryLog()
        self.now_ms = 1_000
        self.in_doubt = False
        """True if the following entries are stamped in doubt of the clock."""
        self._options = {"dedupe_min_entries": 0, **options}
        self._open()
        self.machine.apply(self.log.entries)

    def _open(self) -> None:
        self.index = Index.open(str(self.directory))
        self.machine = StateMachine(self.index, **self._options)

    def reopen(self) -> None:
        self.index.close()
        self._open()

    def close(self) -> None:
        self.index.close()

    def do(self, *proposals: Proposal | Command) -> list[Result | Refused]:
        """Apply one entry with these commands."""
        (results,) = self.machine.apply([self.log.append(self.now_ms, proposals, in_doubt=self.in_doubt)])
        return results

    def raise_level(self, level: int = 2) -> None:
        """Apply an entry that puts a feature level in force."""
        self.machine.apply([self.log.append_level(level)])

    def one(self, proposal: Proposal | Command) -> Result | Refused:
        (result,) = self.do(proposal)
        return result

    def refusal(self, proposal: Proposal | Command) -> Refused:
        """Return the refusal of a command that must be refused. Checks that it has changed nothing."""
        before = self.dump(effects_only=True)
        result = self.one(proposal)
        assert isinstance(result, Refused), f"not refused: {result}"
        assert self.dump(effects_only=True) == before
        return result

    def dump(self, *, effects_only: bool = False) -> dict[bytes, bytes]:
        return dump(self.index, effects_only=effects_only)


def apply_all(machine: StateMachine, entries: Sequence[Entry]) -> None:
    """Apply the entries in as few index writes as the state machine makes of them."""
    while entries:
        entries = entries[len(machine.apply(entries)) :]


def bring_to_disk(machine: StateMachine) -> int:
    """Flush all that is written; return the index of the last entry that the machine then knows to be on disk."""
    index = machine._index
    index.flush()  # begin_flush waits neither for it nor for compactions
    if not machine.begin_flush():
        index._database.compact_range(None, None)
        assert machine.begin_flush()
    index.flush()
    return machine.flushed_index


def dump(index: Index, *, effects_only: bool = False) -> dict[bytes, bytes]:
    """Return the whole index; with `effects_only` without the record that every apply writes."""
    return {key: value for key, value in index.scan(b"", b"\xff") if not (effects_only and key[:1] == b"m")}


def block_of(count: int, content: int = 0, block_bytes: int = 20) -> bytes:
    """Return a block. The store does not look into blocks, so any bytes will do."""
    return bytes((count + content) % 256 for _ in range(block_bytes))


def header(
    topic: str = "orders",
    queue: int = 0,
    batch_id: str = "b1",
    count: int = 1,
    message_ids: Sequence[str | None] | None = None,
    content: int = 0,
) -> BatchHeader:
    ids = tuple(message_ids) if message_ids is not None else None
    return BatchHeader(topic, queue, count, batch_id, ids, content, len(block_of(count, content)))


def produce(*headers: BatchHeader) -> Proposal:
    return Proposal(Produce(headers), tuple(block_of(item.count, item.crc32c) for item in headers))


def placed(replica: Replica, *headers: BatchHeader) -> tuple[BatchPlaced, ...]:
    """Have the replica apply a send of these batches, which it must take; return their places."""
    result = replica.one(produce(*headers))
    assert isinstance(result, Produced), result
    return result.results


def prepare(
    transaction_id: str,
    *headers: BatchHeader,
    producer_group: str = "pg",
    client_id: str = "c1",
    check_after_ms: int | None = None,
) -> Proposal:
    command = Prepare(transaction_id, producer_group, client_id, check_after_ms, headers)
    return Proposal(command, tuple(block_of(item.count, item.crc32c) for item in headers))
