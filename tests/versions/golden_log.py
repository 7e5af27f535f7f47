"""A small log with commands of every kind, and the state hash after each of its entries.

    python -m tests.versions.golden_log           # replay the logs of all levels, and compare
    python -m tests.versions.golden_log --write   # make those of levels that no release has

The replay of an old log is part of its level. A change of apply, or of a constant that it uses, that gives one of
these entries another result makes two builds of one cluster differ, and a restart differ from the state before it.
"""

import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

import msgspec
from crc32c import crc32c

from raft.membership import Configuration, Member, encode_configuration
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
from store.commands.messages import CancelScheduled, FireTimers
from store.commands.pops import AckPopped, ChangeInvisible, ExpirePopped, Pop, PopHandle, PopPick
from store.commands.retention import CountBytes, ExpireMessages, ReleaseMessages, SweepIndex
from store.commands.topics import DeleteTopic, PurgeTopic, PutTopic
from store.commands.transactions import Decide, Discard, RecordChecks, ResumeTransaction, SetCheckUrl
from store.commands.users import DeleteUser, PutUser, Rule, Token
from store.errors import Refused
from store.features import FEATURES
from store.index.index import Index
from store.limits import TRANSACTION_RETENTION_MS
from store.log.record import HEADER_BYTES, KIND_CONFIG, KIND_ENTRY, KIND_NOOP, Entry, encode_header, parse_header
from store.state.machine import StateMachine
from tests.unit.store.replica import header, prepare, produce
from tests.versions.releases import frozen_level
from tests.versions.schema import GOLDEN

ENTRIES: Final = 400
SEED: Final = 28
SYSTEM: Final = ("RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC")
TOPICS: Final = ("orders", "points", "%RETRY%g", "%DLQ%g", "%RETRY%p", "%DLQ%p")
PRINCIPALS: Final = ("ann", "oidc:bob@example.com", "")
LOG_RANGE_BYTES: Final = 2_048
DEDUPE_MIN_ENTRIES: Final = 20
"""Small limits, so that a small log reaches them. The production values are in the description (schema.py)."""


class Replayed(NamedTuple):
    """The result of applying one entry: a word per command (its name, with the code if it was refused), and the state
    hash.
    """

    outcomes: tuple[str, ...]
    state_hash: str


def log_file(level: int) -> Path:
    return GOLDEN / f"log-{level}.records"


def hashes_file(level: int) -> Path:
    return GOLDEN / f"log-{level}.json"


def replay(entries: list[Entry], directory: Path) -> Iterator[Replayed]:
    """Apply the entries one after the other to a new index in `directory`, and yield each result."""
    index = Index.open(str(directory))
    machine = StateMachine(index, dedupe_min_entries=DEDUPE_MIN_ENTRIES, log_range_bytes=LOG_RANGE_BYTES)
    try:
        for entry in entries:
            (results,) = machine.apply([entry])
            yield Replayed(tuple(_word(entry, results)), machine.state_hash)
    finally:
        index.close()


def read_log(file: Path) -> list[Entry]:
    """Return the records of a golden log, which has the format of a commit log's records one after the other."""
    data, entries, start = file.read_bytes(), [], 0
    while start < len(data):
        found = parse_header(data, start)
        assert found is not None, f"no record at byte {start} of {file}"
        payload = data[start + HEADER_BYTES : start + HEADER_BYTES + found.payload_length]
        assert crc32c(payload) == found.payload_crc
        entries.append(Entry(payload, found.index, found.term, found.kind, found.position))
        start += HEADER_BYTES + found.payload_length
    return entries


def read_hashes(level: int) -> list[Replayed]:
    return [Replayed(tuple(words), state_hash) for words, state_hash in json.loads(hashes_file(level).read_text())]


def _word(entry: Entry, results: Sequence[object]) -> Iterator[str]:
    if entry.kind == KIND_ENTRY:
        for command, result in zip(decode_entry(entry.payload).commands, results, strict=True):
            refused = f" {result.code}" if isinstance(result, Refused) else ""
            yield type(command).__name__ + refused
    else:
        yield {KIND_NOOP: "no-op", KIND_CONFIG: "configuration"}[entry.kind]


# --- making one ----------------------------------------------------------------------------------------------------


def write(level: int) -> None:
    """Write the log of a level and its hashes."""
    entries = list(_entries(level))
    records = []
    for entry in entries:
        length, crc = len(entry.payload), crc32c(entry.payload)
        records.append(encode_header(entry.kind, length, crc, entry.index, entry.term, entry.position, 0))
        records.append(entry.payload)
    log_file(level).write_bytes(b"".join(records))
    with tempfile.TemporaryDirectory() as directory:
        lines = [json.dumps(each) for each in replay(entries, Path(directory) / "index")]
    hashes_file(level).write_text("[\n" + ",\n".join(lines) + "\n]\n")


def _entries(level: int) -> Iterator[Entry]:
    draw = Random(SEED)
    now_ms, position, term = 1_700_000_000_000, 0, 0
    for index in range(1, ENTRIES + 1):
        kind, payload = KIND_ENTRY, b""
        if index == 1 or (index > 20 and draw.random() < 0.02):
            kind, term = KIND_NOOP, term + (index > 1)
        elif index in (30, 60):
            kind, payload = KIND_CONFIG, _configuration(level if index == 60 else 1)
        else:
            now_ms += draw.choice((0, 1, 100, 3_000, 61_000, TRANSACTION_RETENTION_MS // 40))
            told = STORY[index - 2] if index - 2 < len(STORY) else None
            drawn = [draw.choice(_commands(index, draw)) for _ in range(draw.randint(1, 3))]
            drawn += _of_level_2(index) if level >= 2 and index > 60 else ()
            proposals = [each if isinstance(each, Proposal) else Proposal(each) for each in told or drawn]
            if index % 3:  # below level 2 no principal is written
                proposals = [each._replace(principal=PRINCIPALS[index % 5 % 3]) for each in proposals]
            doubtful = told is None and draw.random() < 0.03
            payload = encode_entry(now_ms, proposals, in_doubt=doubtful, level=level if index > 60 else 1)
        yield Entry(payload, index, max(term, 1) if index > 1 else 0, kind, position)
        position += HEADER_BYTES + len(payload)


def _configuration(level: int) -> bytes:
    nodes = tuple(Member(node, "10.0.0.1", 7090 + node, f"http://10.0.0.1:708{node}", True) for node in (1, 2, 3))
    configuration = Configuration(nodes, "disk")
    return encode_configuration(configuration if level == 1 else configuration.with_feature_level(level))


STORY: Final[tuple[tuple[Proposal | Command, ...], ...]] = (
    (PutTopic("orders", 2, 10_000_000), PutTopic("points", 1), PutGroup("g", 3, (0, 1_000)), PutGroup("s", 1, (0,))),
    (
        produce(header("orders", 0, "s1", 6), header("orders", 1, "s2", 2)),
        PutTopic("third"),
        produce(header("points", 0, "s3", 2)),
    ),
    (
        CommitOffsets("s", None, None, (QueueOffset("orders", 0, 1),)),
        CloneOffsets("u", "s"),
        SetCheckUrl("pg", "http://a"),
    ),
    (
        GiveBack("s", None, None, (GivenBack("orders", 0, 2, "late"),)),
        ResetOffsets("s", (QueueOffset("orders", 0, 0),)),
    ),
    (FireTimers(10),),
    (GiveBack("s", None, None, (GivenBack("%RETRY%s", 0, 0, "late again"),)),),
    (ReplayDeadLetters("s", (0,)), PutSettings(False)),
    (Pop("v", "orders", "c", 4, 60_000),),
    (ChangeInvisible("v", PopHandle(9, 0, 0), 5_000), AckPopped("v", (PopHandle(9, 0, 1),)), ExpirePopped(4)),
    (prepare("s4", header("orders", 0, "s5")), Discard(("s4",)), ResumeTransaction("s4", "ann", "why", 0)),
    (RecordChecks(("s4",), "c", "webhook", 30_000), Decide("s4", "commit", "check", "c", "pg")),
    (
        produce(msgspec.structs.replace(header("points", 0, "s6"), delay_ms=3_000_000)),
        CancelScheduled("points", "s6-0"),
    ),
    (JoinGroup("w", "m", "c", ("orders",), 30_000), LeaveGroup("w", "m", "leave"), DeleteGroup("w")),
    (ReleaseMessages(SYSTEM, 10), SweepIndex(10), ExpireMessages((("orders", 0),), 10), DeleteTopic("points")),
)
"""Commands of every kind that are carried out and not refused; the entries after them are drawn."""


def _commands(number: int, draw: Random) -> tuple[Proposal | Command, ...]:
    """Draw the next commands; ids repeat and collide, so that many are refused or duplicates."""
    some, few, pair = draw.randrange(40), draw.randrange(5), draw.randrange(2)
    transaction, serial = f"t{some % 9}", f"{number}.{draw.randrange(1 << 20)}"
    place = draw.choice((("orders", pair), ("points", 0), ("%RETRY%g", 0), (SYSTEM[0], 0)))
    every = tuple((name, queue) for name in (*TOPICS, *SYSTEM) for queue in range(2))
    later = msgspec.structs.replace(
        header("points", 0, f"d{number - few}"), deliver_at_ms=1_700_000_000_000 + some * 10_000
    )
    waits = msgspec.structs.replace(header("orders", pair, f"w{serial}"), delay_ms=1_000 * some)
    named = header("orders", pair, f"n{some}", 2, (f"id-{some}", None))
    keyed = msgspec.structs.replace(header("points", 0, f"k{serial}"), keys=(b"8 bytes.",))
    only = (TopicFilter("orders", "sql", "a > 1"),)
    produces = (
        produce(header("orders", pair, f"b{serial}", 3), header("points", 0, f"c{serial}")),
        produce(header("orders", pair, f"b{some}", 1 + few)),
        produce(named),
        produce(keyed),
        produce(later),
        produce(waits),
    )
    transactions = (
        prepare(transaction, header(batch_id=f"h{serial}"), header("points", 0, f"i{serial}")),
        prepare(transaction, waits, check_after_ms=1_000),
        Decide(transaction, draw.choice(("commit", "rollback", "unknown")), "check", "c", "pg"),
        Decide(transaction, "commit", "operator", force=True, operator="ann", reason="why"),
        RecordChecks((transaction, f"t{few}"), "c", "poll", 30_000),
        Discard((transaction,)),
        ResumeTransaction(transaction, "ann", "why", 0),
        SetCheckUrl("pg", draw.choice((None, "http://shop/check"))),
        PutSettings(draw.random() < 0.1),
    )
    groups = (
        JoinGroup("g", f"m{few}", "c", ("orders", "points"), 30_000),
        JoinGroup("f", "m", "c", ("orders",), 30_000, only),
        LeaveGroup(draw.choice(("g", "f")), f"m{few}" if pair else "m", draw.choice(("leave", "expired"))),
        CommitOffsets("g", None, None, (QueueOffset(*place, some),)),
        CommitOffsets("h", None, None, (QueueOffset("orders", pair, few),)),
        ResetOffsets("h", (QueueOffset("orders", pair, 0),)),
        CloneOffsets("h", "g", draw.choice((None, "orders"))),
        GiveBack("h", None, None, (GivenBack("orders", pair, few, "late", draw.choice((None, 0))),)),
        GiveBack("g", None, None, (GivenBack(*place, few, delay_ms=draw.choice((0, 1_000))),)),
        PutGroup("h", 2, (1_000,)),
        ReplayDeadLetters("g", (few,)),
    )
    pops = (
        Pop("p", "orders", "c", 4, 60_000),
        Pop("q", "orders", "c", 4, 2_000, True, only[0], (PopPick(pair, 0, 3, (1,)),)),
        AckPopped("p", tuple(PopHandle(number - back, lease, few) for back in range(1, 30) for lease in range(2))),
        ChangeInvisible("p", PopHandle(number - 1 - few, 0, some % 3), draw.choice((0, None, 5_000)), "busy"),
        ExpirePopped(4),
        DeleteGroup(draw.choice(("p", "q", "h")), with_dead_letters=True, operator="ann", reason="done"),
    )
    services = (
        PutTopic("points", 1 + pair, draw.choice((1_000, 10_000, -1))),
        DeleteTopic("points") if few == 0 else PutTopic("points", 2, 100_000),
        CancelScheduled("points", f"d{number - few}-0"),
        FireTimers(1 + few),
        ExpireMessages(every, 1 + some),
        SweepIndex(1 + some),
        ReleaseMessages((*TOPICS, *SYSTEM), 1 + some),
    )
    return draw.choice((produces, produces, transactions, groups, pops, services))


def _of_level_2(number: int) -> tuple[Command, ...]:
    """Return the commands that level 2 added, for an entry: three entries create, replace and delete a user. Limits in
    bytes come and go, and groups are paused and resumed.
    """
    user, step = f"user-{number // 3}", number % 3
    if step == 2:
        return (DeleteUser(user, (0, number - 1, number - 2)[number % 5 % 3]),) if number % 2 else ()
    token = Token(f"t{number}", number.to_bytes(32), 1_700_000_000_000, 0)
    rule = Rule("allow", ("send", "read"), "topic:orders*", ("10.0.0.0/8",))
    every = tuple((name, queue) for name in ("orders", "points", "%RETRY%g") for queue in range(2))
    sizes: tuple[Command, ...] = (
        PutTopic("orders", retention_bytes=(-1, 200, 400)[number % 5 % 3]),
        CountBytes(every, 1 + number % 7),
        PutSettings(log_retention_bytes=(-1, 20_000, 0)[number % 7 % 3]),
        ExpireMessages(every, 1 + number % 11, by_bytes_before=(number % 4 > 0) * (1 << 20)),
        *((PurgeTopic("points", number % 3 or None),) if number % 10 == 0 else ()),
        *((PauseGroup("gp"[number % 2], number % 8 < 4, "ann", "why"),) if number % 4 < 2 else ()),
    )
    return PutUser(user, (f"name-{number % 40}",), (token,), (rule,), step and number - 1), *sizes


def main() -> int:
    """Compare all logs; return 1 when one replays to another result than recorded."""
    differs = 0
    for level in range(1, FEATURES.maximum + 1):
        if "--write" in sys.argv[1:] and level > frozen_level():
            write(level)
            print(f"wrote {log_file(level)}")
        difference = first_difference(level)
        if difference:
            print(difference, file=sys.stderr)
            differs = 1
    return differs


def first_difference(level: int) -> str:
    """Return in words the first entry of a golden log with another result than recorded; '' if all are equal."""
    expected = read_hashes(level)
    with tempfile.TemporaryDirectory() as directory:
        for number, found in enumerate(replay(read_log(log_file(level)), Path(directory) / "index"), start=1):
            if found != expected[number - 1]:
                return (
                    f"entry {number} of the golden log of level {level} was {expected[number - 1]} and is {found} now: "
                    "logs of the field would replay to another state, and nodes of two versions differ. Let apply do "
                    "what is new from a later feature level on (At.feature_level; docs/upgrading.md)"
                )
    return ""


if __name__ == "__main__":
    sys.exit(main())
