"""Fuzzes a peer's connection: whole, valid frames are delivered, anything else ends the connection."""

import asyncio
import itertools
import logging
import struct
from collections.abc import Iterator, Sequence

import msgspec
import pytest
from crc32c import crc32c
from hypothesis import example, given
from hypothesis import strategies as st

from raft.errors import ProtocolError
from raft.messages import (
    FRAME,
    MAX_FRAME_BYTES,
    Append,
    AppendReply,
    Arrived,
    Build,
    Challenge,
    Hello,
    Message,
    PreVote,
    Proof,
    RequestVote,
    TimeoutNow,
    VoteReply,
    Welcome,
    decode,
    encode,
    make_append,
)
from raft.peers.frames import FrameProtocol
from store.log.record import KIND_ENTRY, KIND_NOOP, Entry
from tests.fuzz.budget import fuzz
from tests.fuzz.mutation import damaged, integers_at_edges, msgpack_like, plain_values

FRAMES_MAX = 6
# A stranger's Hello whose cluster id is not text, and a message that is nested until Python gives up.
NOT_TEXT = b"\x96\x01\xa4sh\xffp\x01\x02\x01\xa1a"
NESTED = b"\x93\x09\x01" + b"\x91" * 5000 + b"\x01"


@pytest.fixture(autouse=True, scope="module")
def quiet() -> Iterator[None]:
    """Disable the log, since thousands of refusals are not worth a line each."""
    log = logging.getLogger("raft.peers.frames")
    log.disabled = True
    yield
    log.disabled = False


def entries_of(sizes: Sequence[int]) -> list[Entry]:
    return [Entry(bytes([n + 1]) * size, 8 + n, 2, 1, -1) for n, size in enumerate(sizes)]


SAMPLES: list[Message | Append] = [
    Hello("shop", 1, 2, 3, "abc", "h:1", 5, "uid", 0, bytes(16), Build("1.0", 1, 2)),
    Challenge(bytes(16)),
    Proof(bytes(32)),
    Welcome(2, "", "abc", False, bytes(32), Build("1.0", 1, 2)),
    PreVote(3, 10, 2, False),
    RequestVote(4, 10, 2, True),
    VoteReply(4, True),
    AppendReply(4, False, 0, 12, 7),
    AppendReply(4, True, 9, heartbeat=True),
    Arrived(4, 1 << 40),
    TimeoutNow(4),
    make_append(3, 7, 2, 6, entries_of([0, 10, 300])),
]


def frame_of(message: Message | Append) -> bytes:
    return b"".join(encode(message))


def forged_frame(header: bytes, payload: bytes) -> bytes:
    """Return a frame of any header and payload, with the right lengths and checksum."""
    return FRAME.pack(len(header) + len(payload), len(header), crc32c(header)) + header + payload


def frames() -> st.SearchStrategy[bytes]:
    return st.sampled_from(SAMPLES).map(frame_of)


def headers() -> st.SearchStrategy[bytes]:
    """Return a strategy of msgpack arrays that look like messages, with any values in their fields."""
    fields = st.lists(integers_at_edges() | plain_values(), max_size=6)
    alike = st.tuples(st.integers(0, 12), fields).map(lambda drawn: msgspec.msgpack.encode([drawn[0], *drawn[1]]))
    return alike | st.sampled_from(SAMPLES).flatmap(lambda sample: msgpack_like(_header_of(sample)))


def _header_of(message: Message | Append) -> bytes:
    frame = frame_of(message)
    _, header_length, _ = FRAME.unpack_from(frame)
    return frame[FRAME.size : FRAME.size + header_length]


def hostile_frames() -> st.SearchStrategy[bytes]:
    sizes = st.tuples(*[integers_at_edges().map(lambda number: number % (1 << 32))] * 3)
    return st.one_of(
        frames().flatmap(damaged),
        st.builds(forged_frame, headers(), st.binary(max_size=60)),
        sizes.map(lambda drawn: struct.pack("<III", *drawn)),
        st.binary(max_size=80),
    )


class Wire(asyncio.Transport):
    """The other end of the connection under test."""

    def __init__(self) -> None:
        super().__init__()
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True


async def receive(stream: bytes, cuts: Sequence[int]) -> tuple[list[Message | Append], bool]:
    """Feed `stream` in pieces; return the delivered messages, and whether the connection was ended."""
    received: list[Message | Append] = []
    protocol = FrameProtocol(lambda _, message: received.append(message))
    wire = Wire()
    protocol.connection_made(wire)
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    for begin, end in itertools.pairwise(edges):
        if not wire.aborted and end > begin:
            protocol.data_received(stream[begin:end])
    protocol.connection_lost(None)
    return received, wire.aborted


@fuzz(300)
@given(st.lists(frames(), max_size=FRAMES_MAX), st.lists(st.integers(0, 5000), max_size=12))
def test_valid_frames_come_out_however_they_are_cut(sent: list[bytes], cuts: list[int]) -> None:
    received, ended = asyncio.run(receive(b"".join(sent), cuts))
    assert [frame_of(message) for message in received] == sent
    assert not ended


@fuzz(700)
@given(
    st.lists(frames(), max_size=2),
    st.lists(hostile_frames(), min_size=1, max_size=3),
    st.lists(st.integers(0, 5000), max_size=8),
)
@example([frame_of(SAMPLES[0])], [bytes(12) + b"noise"], [])
@example([], [forged_frame(NOT_TEXT, b"")], [])
@example([frame_of(SAMPLES[0])], [forged_frame(NESTED, b"")], [])
def test_anything_else_ends_the_connection_and_nothing_behind_it_counts(
    valid: list[bytes], hostile: list[bytes], cuts: list[int]
) -> None:
    stream = b"".join(valid + hostile)
    received, ended = asyncio.run(receive(stream, cuts))
    assert [frame_of(message) for message in received[: len(valid)]] == valid[: len(received)]
    at_once, ended_at_once = asyncio.run(receive(stream, ()))
    assert (len(received), ended) == (len(at_once), ended_at_once)


@fuzz(500)
@given(headers(), st.binary(max_size=100), st.booleans())
@example(NOT_TEXT, b"", True)
@example(NESTED, b"", True)
@example(msgspec.msgpack.encode([7, 3, 7, 2, 6, [[8, 2, 99, 0, 0]]]), b"", True)
@example(msgspec.msgpack.encode([7, 3, 7, 2, 6, [[8, 1, 1, 0, 0]]]), b"", True)
@example(msgspec.msgpack.encode([8, (1 << 64) - 1, True, 1]), b"", True)
def test_a_header_with_a_right_checksum_is_a_message_or_refused(header: bytes, payload: bytes, right: bool) -> None:
    body = memoryview(header + payload)
    try:
        message = decode(body, len(header), crc32c(header) ^ (not right))
    except ProtocolError:
        return
    assert right
    if isinstance(message, Append):
        assert all(entry.kind in (KIND_ENTRY, KIND_NOOP) for entry in message.entries)
        terms = [message.message.prev_term, *(entry.term for entry in message.entries), message.message.term]
        assert terms == sorted(terms) or not message.entries
        assert [entry.index for entry in message.entries] == list(
            range(message.message.prev_index + 1, message.message.prev_index + 1 + len(message.entries))
        )
        assert sum(len(entry.payload) for entry in message.entries) == len(payload)
    else:
        assert payload == b""


@fuzz(100)
@given(st.integers(MAX_FRAME_BYTES + 1, (1 << 32) - 1), st.integers(0, (1 << 32) - 1))
def test_a_frame_that_is_announced_too_large_is_not_waited_for(body_length: int, header_length: int) -> None:
    _, ended = asyncio.run(receive(FRAME.pack(body_length, header_length, 0), ()))
    assert ended
