"""The payload of an entry is read back as it was written, and other bytes are refused."""

import re
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raft.errors import FeatureNotEnabled
from raft.proposals import require_enabled
from store.commands.cluster import PutSettings
from store.commands.entry import Command, Proposal, decode_entry, encode_entry
from store.commands.groups import (
    CloneOffsets,
    CommitOffsets,
    DeleteGroup,
    GiveBack,
    GivenBack,
    JoinGroup,
    LeaveGroup,
    PauseGroup,
    PutGroup,
    QueueOffset,
    ReplayDeadLetters,
    ResetOffsets,
    TopicFilter,
)
from store.commands.messages import BatchHeader, CancelScheduled, FireTimers, Produce
from store.commands.pops import AckPopped, ChangeInvisible, ExpirePopped, Pop, PopHandle, PopPick
from store.commands.retention import CountBytes, ExpireMessages, ReleaseMessages, SweepIndex
from store.commands.topics import DeleteTopic, PurgeTopic, PutTopic
from store.commands.transactions import Decide, Discard, Prepare, RecordChecks, ResumeTransaction, SetCheckUrl
from store.commands.users import DeleteUser, PutUser, Rule, Token
from store.features import FEATURES
from store.limits import PRINCIPAL_CHARACTERS_MAX

EVERY_COMMAND: list[Command] = [
    PutTopic("orders", 4, 1000, "any"),
    DeleteTopic("orders"),
    Produce((BatchHeader("orders", 1, 2, "b1", ("id-1", None), 7, 3, "zstd", 9, keys=(b"8 bytes.", b"")),)),
    Prepare("tx", "pg", "c1", None, (BatchHeader("orders", 0, 1, "b2", None, 7, 2),)),
    Decide("tx", "commit", "operator", "c1", "pg", True, "why", "ann"),
    RecordChecks(("tx", "ty"), "c1", "webhook", 30_000),
    Discard(("tx",)),
    SetCheckUrl("pg", None),
    JoinGroup("g", "m", "c", ("orders",), 30_000, (TopicFilter("orders", "sql", "a > 1"),)),
    LeaveGroup("g", "m", "expired"),
    CommitOffsets("g", None, None, (QueueOffset("orders", 0, 5),)),
    ResetOffsets("g", (QueueOffset("orders", 0, 0),)),
    FireTimers(10),
    CancelScheduled("orders", "m1"),
    ResumeTransaction("tx", "ann", "why", 30_000),
    PutSettings(True, 1 << 40),
    CloneOffsets("g", "h", "orders"),
    GiveBack("g", "m", 3, (GivenBack("orders", 0, 5, "why", 1_000),)),
    PutGroup("g", 5, (100, 200)),
    ReplayDeadLetters("g", (1, 2)),
    ExpireMessages((("orders", 0),), 256),
    SweepIndex(200),
    Pop("g", "orders", "c", 32, 60_000, True, TopicFilter("orders", "tags", "A || B"), (PopPick(0, 1, 9, (2, 3)),)),
    AckPopped("g", (PopHandle(7, 0, 5),)),
    ChangeInvisible("g", PopHandle(7, 0, 5), None, "why"),
    ExpirePopped(100),
    DeleteGroup("g", True, "ann", "why"),
    ReleaseMessages(("%RETRY%g",), 256),
    PutUser("shop", ("shop.example",), (Token("t1", b"\x01" * 32, 5, 0),), (Rule("allow", ("send",), "topic:*"),), 7),
    DeleteUser("shop", replaces=41),
    PurgeTopic("orders", 1),
    CountBytes((("orders", 0),), 9),
    PauseGroup("g", True, "ann", "why"),
]


def test_the_document_of_the_log_names_every_command_with_its_tag() -> None:
    text = (Path(__file__).parents[3] / "docs" / "log-format.md").read_text()
    rows = re.findall(r"^\| (\d+) \| `([A-Z]\w+)` \|", text, re.MULTILINE)
    assert {int(tag): name for tag, name in rows} == {
        kind.__struct_config__.tag: kind.__name__ for kind in get_args(Command)
    }
    assert len(rows) == len(get_args(Command))


def test_every_command_reads_back_as_written() -> None:
    blocks: list[tuple[bytes, ...]] = [()] * len(EVERY_COMMAND)
    blocks[2], blocks[3] = (b"abc",), (b"de",)
    payload = encode_entry(123, [Proposal(c, b) for c, b in zip(EVERY_COMMAND, blocks, strict=True)])
    entry = decode_entry(payload)
    assert entry.timestamp_ms == 123
    assert list(entry.commands) == EVERY_COMMAND
    (first,) = entry.block_offsets[2]
    (second,) = entry.block_offsets[3]
    assert payload[first : first + 3] == b"abc"
    assert payload[second:] == b"de"


def test_doubt_about_the_time_is_a_third_part_of_the_header() -> None:
    """Entries without doubt are written as they ever were."""
    sure, in_doubt = (encode_entry(7, [Proposal(PutTopic("orders"))], in_doubt=doubt) for doubt in (False, True))
    assert sure == encode_entry(7, [Proposal(PutTopic("orders"))])
    assert msgspec.msgpack.decode(sure[4:]) == [7, [[1, "orders", None, None, None, None]]]
    assert msgspec.msgpack.decode(in_doubt[4:]) == [7, [[1, "orders", None, None, None, None]], True]
    assert [decode_entry(payload).in_doubt for payload in (sure, in_doubt)] == [False, True]


def test_principals_are_a_fourth_part_of_the_header_and_stand_there_once() -> None:
    proposals = [Proposal(DeleteTopic("a"), principal="ann"), Proposal(DeleteTopic("b"))]
    proposals += [Proposal(DeleteTopic("c"), principal="oidc:bob"), Proposal(DeleteTopic("d"), principal="ann")]
    payload = encode_entry(7, proposals)
    assert msgspec.msgpack.decode(payload[4:])[2:] == [False, [["ann", [0, 3]], ["oidc:bob", [2]]]]
    assert decode_entry(payload).principals == {0: "ann", 3: "ann", 2: "oidc:bob"}
    without = [each._replace(principal="") for each in proposals]
    assert encode_entry(7, proposals, level=1) == encode_entry(7, without, level=1), "nodes of level 1 know of none"
    assert encode_entry(7, without) == encode_entry(7, without, level=1), "and without any nothing is written"


def test_the_name_of_a_principal_is_limited() -> None:
    longest = "x" * PRINCIPAL_CHARACTERS_MAX
    assert decode_entry(encode_entry(7, [Proposal(DeleteTopic("a"), principal=longest)])).principals == {0: longest}
    with pytest.raises(ValueError, match="256 characters"):
        encode_entry(7, [Proposal(DeleteTopic("a"), principal=longest + "x")])
    header = msgspec.msgpack.encode([7, [[2, "a"]], False, [[longest + "x", [0]]]])
    with pytest.raises(ValueError, match="length <= 255"):
        decode_entry(len(header).to_bytes(4, "little") + header)


@pytest.mark.parametrize(
    "header", [[7], [7, [], False, 1], [7, [], 1], {"timestamp_ms": 7}, [7, [], False, [["ann", [0]]]]]
)
def test_a_header_of_another_form_is_refused(header: object) -> None:
    encoded = msgspec.msgpack.encode(header)
    with pytest.raises(ValueError):  # noqa: PT011 - the message differs with the damage
        decode_entry(len(encoded).to_bytes(4, "little") + encoded)


def test_tags_are_fixed_for_ever() -> None:
    tags = [msgspec.msgpack.decode(msgspec.msgpack.encode(command))[0] for command in EVERY_COMMAND]
    assert tags == [*range(1, 13), 14, 15, 16, 17, 20, 13, 18, 19, *range(21, 34)]


def test_no_command_is_left_out_here() -> None:
    assert {type(command) for command in EVERY_COMMAND} == set(get_args(Command))


def test_missing_trailing_fields_read_as_defaults() -> None:
    header = msgspec.msgpack.encode([1, [[1, "orders"], [5, "tx", "commit"], [9, "g", "m", "c", ["orders"], 5]]])
    entry = decode_entry(len(header).to_bytes(4, "little") + header)
    assert entry.commands == (PutTopic("orders"), Decide("tx", "commit"), JoinGroup("g", "m", "c", ("orders",), 5, ()))


def test_a_batch_header_of_an_older_entry_is_of_a_block_that_is_not_compressed() -> None:
    header = msgspec.msgpack.encode([1, [[3, [["orders", 0, 1, "b1", None, 7, 2]]]]])
    (command,) = decode_entry(len(header).to_bytes(4, "little") + header + b"xy").commands
    assert command == Produce((BatchHeader("orders", 0, 1, "b1", None, 7, 2, "none", None),))


@given(st.lists(st.lists(st.binary(max_size=50), max_size=4), max_size=4))
def test_block_offsets_point_at_the_blocks(requests: list[list[bytes]]) -> None:
    proposals = [
        Proposal(Produce(tuple(BatchHeader("t", 0, 1, "b", None, 0, len(block)) for block in blocks)), tuple(blocks))
        for blocks in requests
    ]
    payload = encode_entry(0, proposals)
    found = [
        [payload[offset : offset + len(block)] for offset, block in zip(offsets, blocks, strict=True)]
        for offsets, blocks in zip(decode_entry(payload).block_offsets, requests, strict=True)
    ]
    assert found == requests


def test_blocks_must_agree_with_their_headers() -> None:
    command = Produce((BatchHeader("t", 0, 1, "b", None, 0, 3),))
    with pytest.raises(ValueError, match="1 batches but 0 blocks"):
        encode_entry(0, [Proposal(command)])
    with pytest.raises(ValueError, match="header says 3 bytes, block has 2"):
        encode_entry(0, [Proposal(command, (b"ab",))])


@pytest.mark.parametrize(
    "change", [lambda p: p[:2], lambda p: p[:-1], lambda p: p + b"x", lambda p: p[:4] + b"\xc1" + p[5:]]
)
def test_a_payload_that_is_no_entry_is_refused(change) -> None:  # type: ignore[no-untyped-def]
    payload = encode_entry(0, [Proposal(Produce((BatchHeader("t", 0, 1, "b", None, 0, 3),)), (b"abc",))])
    with pytest.raises(ValueError):  # noqa: PT011 - the message differs with the damage
        decode_entry(change(payload))


@pytest.mark.parametrize(
    "command",
    [
        PurgeTopic("orders"),
        CountBytes((("orders", 0),), 9),
        ExpireMessages((), 9, by_bytes_before=7),
        PutTopic("orders", retention_bytes=1),
        PutTopic("orders", retention_bytes=-1),
        PutSettings(log_retention_bytes=1),
        PauseGroup("g", False),
    ],
)
def test_limits_in_bytes_purges_and_pauses_are_never_in_a_log_of_the_first_level(command: Command) -> None:
    """A node of 0.2.0 could not read them, and would count and remove other rows than the others."""
    assert FEATURES.needed(command) == 2
    with pytest.raises(FeatureNotEnabled):
        require_enabled(command, 1)
    require_enabled(command, 2)
    if isinstance(command, PurgeTopic | CountBytes | PauseGroup):
        with pytest.raises(ValueError, match="belongs to feature level 2, not 1"):
            encode_entry(0, [Proposal(command)], level=1)
