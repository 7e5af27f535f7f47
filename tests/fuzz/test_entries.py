"""Fuzzes the payload of a log entry: it is read as it was written, or refused with a ValueError."""

import struct

import msgspec
from crc32c import crc32c
from hypothesis import example, given
from hypothesis import strategies as st

from store.commands.entry import Proposal, batches_of, decode_entry, encode_entry
from store.commands.groups import CommitOffsets, JoinGroup, QueueOffset
from store.commands.messages import BatchHeader, Produce
from store.commands.topics import PutTopic
from store.commands.transactions import Decide, Prepare
from tests.fuzz.budget import fuzz
from tests.fuzz.mutation import damaged, integers_at_edges, msgpack_like, plain_values

BLOCK = msgspec.msgpack.encode([[b"body"], [b"other", "tag"]])
BATCH = BatchHeader("orders", 1, 2, "batch-1", None, crc32c(BLOCK), len(BLOCK))
PROPOSALS = [
    Proposal(PutTopic("orders", 4)),
    Proposal(Produce((BATCH, BATCH)), (BLOCK, BLOCK)),
    Proposal(Prepare("t-1", "group", "client", None, (BATCH,)), (BLOCK,)),
    Proposal(Decide("t-1", "commit")),
    Proposal(JoinGroup("group", "member", "client", ("orders",), 30_000)),
    Proposal(CommitOffsets("group", "member", 1, (QueueOffset("orders", 0, 5),))),
]
ENTRY = encode_entry(1_700_000_000_000, PROPOSALS)


def forged(header: bytes, blocks: bytes, length_off_by: int) -> bytes:
    return struct.pack("<I", (len(header) + length_off_by) % (1 << 32)) + header + blocks


def headers() -> st.SearchStrategy[bytes]:
    (length,) = struct.unpack_from("<I", ENTRY)
    alike = st.tuples(st.integers(0, 14), st.lists(integers_at_edges() | plain_values(), max_size=6)).map(
        lambda drawn: [drawn[0], *drawn[1]]
    )
    return msgpack_like(ENTRY[4 : 4 + length]) | st.tuples(integers_at_edges(), st.lists(alike, max_size=4)).map(
        msgspec.msgpack.encode
    )


@fuzz(900)
@given(
    damaged(ENTRY)
    | st.binary(max_size=80)
    | st.builds(forged, headers(), st.binary(max_size=60), st.sampled_from((0, 0, 0, 1, -1, 1 << 31)))
)
@example(forged(b"\x92\x01\x91\x93\x02\xa1x" + b"\x91" * 5000 + b"\x01", b"", 0))
def test_an_entry_is_read_whole_or_refused(payload: bytes) -> None:
    try:
        entry = decode_entry(payload)
    except ValueError:
        return
    position = entry.header_bytes
    for command, offsets in zip(entry.commands, entry.block_offsets, strict=True):
        for batch, offset in zip(batches_of(command), offsets, strict=True):
            assert offset == position
            assert batch.length >= 0
            position += batch.length
    assert position == len(payload)


def test_the_sample_is_an_entry() -> None:
    assert decode_entry(ENTRY).commands == tuple(proposal.command for proposal in PROPOSALS)
