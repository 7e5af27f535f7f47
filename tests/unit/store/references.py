"""What of the log a state points at, found by looking at everything in its index."""

from collections import Counter

import msgspec

from store import keys
from store.block_location import BlockLocation
from store.index import Index
from store.timers import decode_timer
from store.transaction_table import TransactionRecord

_decode_row = msgspec.msgpack.Decoder(tuple[BlockLocation, int, int, int, str | None, list[int], object]).decode
_decode_transaction = msgspec.msgpack.Decoder(TransactionRecord).decode


def pointed_at(index: Index) -> list[int]:
    """The log positions of all blocks that rows, timers and transactions point at."""
    blocks = [_decode_row(value)[0] for _, value in index.scan(keys.ROW, keys.after(keys.ROW))]
    blocks += [decode_timer(value).block for _, value in index.scan(keys.TIMER, keys.after(keys.TIMER))]
    for _, value in index.scan(keys.TRANSACTION, keys.after(keys.TRANSACTION)):
        blocks += [batch.block for batch in _decode_transaction(value).batches]
    return [block.position for block in blocks if block.inline is None]


def counted(index: Index) -> dict[int, int]:
    """What the index says of each range of positions."""
    found = index.scan(keys.LOG_REFERENCES, keys.after(keys.LOG_REFERENCES))
    return {keys.read_u64(key[1:]): keys.read_u64(value[:8]) for key, value in found}


def floor(index: Index, applied_index: int) -> int:
    """The first entry that the index says is pointed at."""
    found = index.scan(keys.LOG_REFERENCES, keys.after(keys.LOG_REFERENCES))
    ranges = {keys.read_u64(key[1:]): keys.read_u64(value[8:]) for key, value in found}
    return ranges[min(ranges)] if ranges else applied_index + 1


def assert_references_hold(index: Index, range_bytes: int) -> None:
    assert counted(index) == Counter(position // range_bytes for position in pointed_at(index))
