"""Upgrades an index of format 2 in place: format 3 counts the references to the log by kind of holder, and fewer of
them.

Format 2 had one count per range, which included halves that were decided long ago and rows of the half topic. The log
may lack its front by then, so the index cannot be rebuilt from the log. The changes are a function of the tables alone:
replicas that upgrade after different entries end up alike, and equal to a replica that replayed the log from its
beginning. The upgrade looks once at each row of the system's and the groups' topics, at each timer, and at each
transaction.
"""

from collections.abc import Iterator

import msgspec

from store.index import keys
from store.index.index import FORMAT, UPGRADED_FORMATS, Index
from store.messages.block_location import BlockLocation
from store.messages.log_references import Holder, range_value
from store.messages.timers import decode_timer
from store.messages.topics import holder_of, topic_id_of
from store.transactions.table import DISCARDED, PREPARED, TransactionRecord

_decode_row = msgspec.msgpack.Decoder(tuple[BlockLocation, int, int, int, str | None, list[int], object]).decode
_decode_transaction = msgspec.msgpack.Decoder(TransactionRecord).decode


def upgrade(index: Index, range_bytes: int) -> bool:
    """Stage the changes that bring the index to the format of this version; the caller commits. Returns False, with
    nothing staged, for a current index.
    """
    if index.get(keys.META_FORMAT) not in UPGRADED_FORMATS:
        return False
    first_indexes: dict[int, int] = {}
    counts: dict[int, list[int]] = {}
    for key, value in index.scan(keys.LOG_REFERENCES, keys.after(keys.LOG_REFERENCES)):
        number = keys.read_u64(key[1:])
        first_indexes[number] = keys.read_u64(value[8:])
        counts[number] = [keys.read_u64(value[:8]), *[0] * (len(Holder) - 1)]
    for block, holder in _counted_otherwise(index):
        if block.inline is None:
            of_range = counts[block.position // range_bytes]
            of_range[Holder.MESSAGE] -= 1
            if holder is not None:
                of_range[holder] += 1
    for number, of_range in counts.items():
        if any(of_range):
            index.put(keys.log_references(number), range_value(first_indexes[number], of_range))
        else:
            index.delete(keys.log_references(number))
    _list_timers_of_deleted_topics(index)
    index.put(keys.META_FORMAT, FORMAT)
    return True


def _counted_otherwise(index: Index) -> Iterator[tuple[BlockLocation, Holder | None]]:
    """Yield every block that format 2 counted and that is no row of a client's topic, with its holder; None stands for
    a block that is no longer counted.
    """
    for key, value in index.scan(keys.TOPIC, keys.after(keys.TOPIC)):
        holder = holder_of(key[1:].decode())
        if holder is not Holder.MESSAGE:
            rows = keys.rows(topic_id_of(value))
            for _, row in index.scan(rows, keys.after(rows)):
                yield _decode_row(row)[0], holder
    for _, value in index.scan(keys.TIMER, keys.after(keys.TIMER)):
        yield decode_timer(value).block, Holder.SCHEDULED
    for _, value in index.scan(keys.TRANSACTION, keys.after(keys.TRANSACTION)):
        record = _decode_transaction(value)
        for batch in record.batches:
            yield batch.block, Holder.TRANSACTION if record.state in (PREPARED, DISCARDED) else None


def _list_timers_of_deleted_topics(index: Index) -> None:
    """List the topics' remaining timers: format 2 did not keep that list, and waited for the timers to be due."""
    topics = {topic_id_of(value) for _, value in index.scan(keys.TOPIC, keys.after(keys.TOPIC))}
    for key, value in index.scan(keys.TIMER, keys.after(keys.TIMER)):
        topic_id = decode_timer(value).topic_id
        if topic_id not in topics:
            index.put(keys.topic_timer(topic_id, *keys.timer_parts(key)), b"")
            index.put(keys.dropped_timers(topic_id), b"")
