"""Frames of a correct peer come through unchanged; everything else is a ProtocolError."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raft.errors import ProtocolError
from raft.messages import (
    CHUNK_BYTES_MAX,
    FRAME,
    Append,
    AppendReply,
    Arrived,
    Compare,
    Compared,
    Hello,
    Message,
    PreVote,
    ReplicaState,
    RequestVote,
    SnapshotAck,
    SnapshotBegin,
    SnapshotChunk,
    SnapshotEnd,
    SnapshotReject,
    StateAt,
    TimeoutNow,
    Vitals,
    VoteReply,
    decode,
    encode,
    make_append,
)
from store.log.record import Entry

MESSAGES: list[Message] = [
    Hello("shop", 1, 2, 1, "a"),
    PreVote(3, 10, 2, False),
    RequestVote(4, 10, 2, True),
    VoteReply(4, True),
    AppendReply(4, False, 0, 12, 7),
    AppendReply(4, True, 9, heartbeat=True),
    Arrived(4, 1 << 40),
    TimeoutNow(4),
    SnapshotBegin(4, 1, 4096, 40, 3, 55, "ab" * 8, "1", 1000),
    SnapshotChunk(4, 1, 1, b"pairs"),
    SnapshotEnd(4, 1, 2, 1, bytes(16)),
    SnapshotAck(4, 1, 2),
    SnapshotReject(4, 1, "no room"),
    Vitals(1_700_000_000_000, 12_345),
    Vitals(1_700_000_000_000, 12_345, 678, 90),
    Vitals(1, 2, None, 0, ReplicaState(1, StateAt(9, b"12345678", 0, 7, (0, 0, 5)), True, ((2, 8), (3, 9)), 4)),
    Compare((1, 2, 3)),
    Compared(1, (StateAt(9, b"12345678", 0, 7), StateAt(3, b"", -1, 0, (0, 0, 5)))),
]


def through(frame: bytes) -> Message | Append:
    body_length, header_length, crc = FRAME.unpack_from(frame)
    assert len(frame) == FRAME.size + body_length
    return decode(memoryview(frame)[FRAME.size :], header_length, crc)


@pytest.mark.parametrize("message", MESSAGES)
def test_message_comes_through(message: Message) -> None:
    assert through(b"".join(encode(message))) == message


@given(st.lists(st.binary(max_size=300), max_size=6))
def test_append_comes_through_with_its_entries(payloads: list[bytes]) -> None:
    entries = [Entry(payload, 8 + i, 2, 1, 0) for i, payload in enumerate(payloads)]
    received = through(b"".join(encode(make_append(3, 7, 2, 6, entries))))
    assert isinstance(received, Append)
    assert [entry[:4] for entry in received.entries] == [entry[:4] for entry in entries]
    assert received.message.prev_index == 7


@pytest.mark.parametrize(
    "message",
    [
        SnapshotChunk(4, 1, 0, b"pairs"),  # 0 is the beginning's
        SnapshotChunk(4, 1, 1, bytes(CHUNK_BYTES_MAX + 1)),
        SnapshotBegin(-1, 1, 4096, 40, 3, 55, "ab" * 8, "1", 1000),
        SnapshotEnd(4, 1, 2, 1, bytes(65)),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_part_of_a_snapshot_that_no_peer_sends_is_refused(message: Message) -> None:
    with pytest.raises(ProtocolError):
        through(b"".join(encode(message)))


@given(st.data())
def test_a_flipped_bit_is_noticed(data: st.DataObject) -> None:
    entries = [Entry(b"a" * 50, 8, 2, 1, 0), Entry(b"b" * 9, 9, 3, 1, 0)]
    frame = bytearray(b"".join(encode(make_append(3, 7, 2, 6, entries))))
    at = data.draw(st.integers(FRAME.size, len(frame) - 1))
    frame[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(ProtocolError):
        through(bytes(frame))


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_refused_by_name(body: bytes) -> None:
    from crc32c import crc32c

    with pytest.raises(ProtocolError):
        decode(memoryview(body), len(body), crc32c(body))


def test_entries_must_follow_their_predecessor() -> None:
    frame = b"".join(encode(make_append(3, 7, 2, 6, [Entry(b"x", 9, 2, 1, 0)])))
    with pytest.raises(ProtocolError, match="out of place"):
        through(frame)


def test_bytes_left_over_are_refused() -> None:
    frame = b"".join(encode(make_append(3, 7, 2, 6, [Entry(b"x", 8, 2, 1, 0)]))) + b"y"
    _, header_length, crc = FRAME.unpack_from(frame)
    with pytest.raises(ProtocolError, match="left over"):
        decode(memoryview(frame)[FRAME.size :], header_length, crc)
