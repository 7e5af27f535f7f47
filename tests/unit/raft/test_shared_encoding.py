"""An append that goes to several followers is encoded once; nothing large is kept for that."""

import pytest

from raft.messages import encode, make_append
from raft.peers.outgoing import SHARED_BYTES_MAX, SharedEncoding
from store.features import LEVEL_MAX
from store.log.record import KIND_ENTRY, Entry


def test_the_same_message_is_encoded_once() -> None:
    encoding = SharedEncoding()
    append = make_append(1, 6, 1, 6, [Entry(b"payload", 7, 1, KIND_ENTRY, 0)])
    parts = encoding(append, LEVEL_MAX)
    assert parts == encode(append, LEVEL_MAX)
    assert encoding(append, LEVEL_MAX) is parts


@pytest.mark.parametrize("size_bytes", [7, SHARED_BYTES_MAX])
def test_another_message_gets_parts_of_its_own(size_bytes: int) -> None:
    encoding = SharedEncoding()
    for index in (7, 8):
        append = make_append(1, index - 1, 1, 6, [Entry(bytes(size_bytes), index, 1, KIND_ENTRY, 0)])
        assert encoding(append, LEVEL_MAX) == encode(append, LEVEL_MAX)


def test_large_parts_are_not_kept() -> None:
    encoding = SharedEncoding()
    append = make_append(1, 6, 1, 6, [Entry(bytes(SHARED_BYTES_MAX), 7, 1, KIND_ENTRY, 0)])
    assert encoding(append, LEVEL_MAX) is not encoding(append, LEVEL_MAX)
    assert encoding._parts == []
