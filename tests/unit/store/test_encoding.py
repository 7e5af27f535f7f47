"""The encoding of a block goes with it, from the command to every row that points at it."""

import msgspec
import pytest

from store.commands.entry import Proposal
from store.commands.messages import BatchHeader, Produce, Produced
from store.commands.topics import PutTopic
from store.commands.transactions import Decide, Discard, Prepare
from store.commands.views import Row
from store.index import keys
from store.messages.topics import DISCARDED_TOPIC, HALF_TOPIC
from tests.unit.store.replica import Replica, prepare, produce

FRAME = bytes(20)
ZSTD = BatchHeader("orders", 0, 2, "b1", None, 7, len(FRAME), "zstd", 9_000)


@pytest.fixture(autouse=True)
def topics(replica: Replica) -> None:
    replica.do(PutTopic("orders", 2))


def rows(replica: Replica, topic: str = "orders", max_bytes: int = 1 << 20) -> list[Row]:
    return replica.machine.rows(topic, 0, 0, 10, max_bytes)


def shown(row: Row) -> tuple[int, str, int | None, int]:
    return row.block_length, row.encoding, row.uncompressed_bytes, row.unpacked_bytes


def test_a_row_says_how_its_block_is_compressed_also_after_a_restart(replica: Replica) -> None:
    replica.do(Proposal(Produce((ZSTD,)), (FRAME,)))
    replica.do(produce(BatchHeader("orders", 0, 1, "b2", None, 0, 20)))
    expected = [(20, "zstd", 9_000, 9_000), (20, "none", None, 20)]
    assert [shown(row) for row in rows(replica)] == expected
    replica.reopen()
    assert [shown(row) for row in rows(replica)] == expected


def test_a_half_keeps_it_until_and_beyond_its_decision(replica: Replica) -> None:
    for transaction_id in ("committed", "discarded"):
        batch = msgspec.structs.replace(ZSTD, batch_id=transaction_id)
        replica.do(Proposal(Prepare(transaction_id, "pg", "c1", None, (batch,)), (FRAME,)))
    view = replica.machine.transaction("committed")
    assert view is not None
    assert (view.batches[0].encoding, view.batches[0].uncompressed_bytes) == ("zstd", 9_000)
    replica.do(Decide("committed", "commit"), Discard(("discarded",)))
    for topic, count in (("orders", 1), (HALF_TOPIC, 2), (DISCARDED_TOPIC, 1)):
        assert [shown(row) for row in rows(replica, topic)] == [(20, "zstd", 9_000, 9_000)] * count


def test_reads_are_bounded_by_what_blocks_unpack_to(replica: Replica) -> None:
    for number in range(3):
        replica.do(Proposal(Produce((msgspec.structs.replace(ZSTD, batch_id=f"b{number}"),)), (FRAME,)))
    assert [len(rows(replica, max_bytes=size)) for size in (1, 17_999, 18_000, 27_000)] == [1, 1, 2, 3]


def test_a_batch_sent_again_is_known_by_what_was_sent(replica: Replica) -> None:
    first = replica.one(Proposal(Produce((ZSTD,)), (FRAME,)))
    again = replica.one(Proposal(Produce((ZSTD,)), (FRAME,)))
    assert isinstance(first, Produced)
    assert isinstance(again, Produced)
    assert [first.results[0].duplicate, again.results[0].duplicate] == [False, True]
    plain = BatchHeader("orders", 0, 2, "b1", None, 8, 9_000)
    assert replica.refusal(Proposal(Produce((plain,)), (bytes(9_000),))).code == "idempotency_conflict"


def test_values_without_an_encoding_are_of_blocks_that_are_not_compressed(replica: Replica) -> None:
    """The index of an older node holds such values."""
    replica.do(
        produce(BatchHeader("orders", 0, 1, "b1", None, 0, 20)),
        prepare("tx", BatchHeader("orders", 0, 1, "h", None, 0, 20)),
    )
    row_key, transaction_key = keys.row(replica.machine._topics.require("orders").id, 0, 0), keys.transaction("tx")
    row, transaction = (msgspec.msgpack.decode(replica.index.get(key) or b"") for key in (row_key, transaction_key))
    assert row[0][5:] == transaction[5][0][3][5:] == ["none", None, None]
    del row[0][5:], transaction[5][0][3][5:]
    replica.index.put(row_key, msgspec.msgpack.encode(row))
    replica.index.put(transaction_key, msgspec.msgpack.encode(transaction))
    replica.index.commit()
    assert [shown(found) for found in rows(replica)] == [(20, "none", None, 20)]
    view = replica.machine.transaction("tx")
    assert view is not None
    assert (view.batches[0].encoding, view.batches[0].uncompressed_bytes) == ("none", None)
