"""The log positions that a state points at, found by looking at everything in its index."""

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from store.index import keys
from store.index.index import Index
from store.messages.block_location import BlockLocation
from store.messages.log_references import Holder, range_of
from store.messages.timers import decode_timer
from store.messages.topics import holder_of, topic_id_of
from store.transactions.table import DISCARDED, PREPARED, TransactionRecord

_decode_row = msgspec.msgpack.Decoder(tuple[BlockLocation, int, int, int, str | None, list[int], object]).decode
_decode_transaction = msgspec.msgpack.Decoder(TransactionRecord).decode


class Pointer(NamedTuple):
    """A reference from the state to a block in the record at `position`."""

    position: int
    holder: Holder


def pointers(index: Index) -> list[Pointer]:
    """Return references of all rows, timers and undecided halves whose block is in the log."""
    return [Pointer(block.position, holder) for block, holder in _blocks(index) if block.inline is None]


def _blocks(index: Index) -> Iterator[tuple[BlockLocation, Holder]]:
    topics = {
        topic_id_of(value): holder_of(key[1:].decode()) for key, value in index.scan(keys.TOPIC, keys.after(keys.TOPIC))
    }
    for key, value in index.scan(keys.DROPPED_TOPICS, keys.after(keys.DROPPED_TOPICS)):
        topics[keys.read_u32(key[2:6])] = Holder(value[0] if value else 0)
    for key, value in index.scan(keys.ROW, keys.after(keys.ROW)):
        yield _decode_row(value)[0], topics[keys.read_u32(key[1:5])]
    for _, value in index.scan(keys.TIMER, keys.after(keys.TIMER)):
        yield decode_timer(value).block, Holder.SCHEDULED
    for _, value in index.scan(keys.TRANSACTION, keys.after(keys.TRANSACTION)):
        record = _decode_transaction(value)
        if record.state in (PREPARED, DISCARDED):
            for batch in record.batches:
                yield batch.block, Holder.TRANSACTION


def counted(index: Index) -> dict[tuple[int, Holder], int]:
    """Return the index's own counts, by range of positions and holder."""
    found: dict[tuple[int, Holder], int] = {}
    for key, value in index.scan(keys.LOG_REFERENCES, keys.after(keys.LOG_REFERENCES)):
        for holder, count in zip(Holder, range_of(value)[1], strict=True):
            if count:
                found[keys.read_u64(key[1:]), holder] = count
    return found


def floor(index: Index, applied_index: int) -> int:
    """Return the first entry that something points at, according to the index."""
    found = index.scan(keys.LOG_REFERENCES, keys.after(keys.LOG_REFERENCES))
    ranges = {keys.read_u64(key[1:]): range_of(value)[0] for key, value in found}
    return ranges[min(ranges)] if ranges else applied_index + 1


def assert_references_hold(index: Index, range_bytes: int) -> None:
    assert counted(index) == Counter((each.position // range_bytes, each.holder) for each in pointers(index))
