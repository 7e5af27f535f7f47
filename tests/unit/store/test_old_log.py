"""A log written before ReleaseMessages was known replays to the same state hash as it did then."""

from pathlib import Path
from random import Random

import msgspec

from store.commands.entry import Command
from store.commands.entry import Proposal as Proposed
from store.commands.groups import CommitOffsets, DeleteGroup, GiveBack, GivenBack, QueueOffset, ReplayDeadLetters
from store.commands.messages import CancelScheduled, FireTimers
from store.commands.pops import AckPopped, ExpirePopped, Pop, PopHandle
from store.commands.retention import ExpireMessages, SweepIndex
from store.commands.topics import DeleteTopic, PutTopic
from store.commands.transactions import Decide, Discard, ResumeTransaction
from store.limits import TRANSACTION_RETENTION_MS
from tests.unit.store.replica import Replica, header, prepare, produce

STATE_HASH_THEN = "2ea2a60fb3fd3cd9"
"""State hash of a replica of the version that wrote indexes of format 2, after the same entries."""

TOPICS = ("orders", "points", "%RETRY%g", "%DLQ%g", "%RETRY%p", "%DLQ%p")
SYSTEM = ("RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC")


def old_command(number: int, draw: Random) -> Proposed | Command:
    some, few = draw.randrange(40), draw.randrange(5)
    place = draw.choice((("orders", draw.randrange(2)), ("points", 0), ("%RETRY%g", 0), (SYSTEM[0], 0)))
    delayed = msgspec.structs.replace(header("points", 0, f"d{number}"), deliver_at_ms=draw.randrange(1 << 40))
    every = tuple((name, queue) for name in (*TOPICS, *SYSTEM) for queue in range(2))
    choices: tuple[Proposed | Command, ...] = (
        PutTopic("points", 1, draw.choice((1_000, 10_000, -1))),
        DeleteTopic("points"),
        produce(header("orders", draw.randrange(2), f"b{number}", 3)),
        produce(delayed),
        CancelScheduled("points", f"d{number - few}-0"),
        prepare(f"t{some % 9}", header(batch_id=f"h{number}")),
        Decide(f"t{some % 9}", "commit" if few % 2 else "rollback"),
        Discard((f"t{some % 9}",)),
        ResumeTransaction(f"t{some % 9}", "ann", "why", 0),
        Decide(f"t{some % 9}", "rollback", "operator", force=True, operator="ann", reason="why"),
        FireTimers(1 + few),
        GiveBack("g", None, None, (GivenBack(*place, some, delay_ms=draw.choice((0, 1_000))),)),
        CommitOffsets("g", None, None, (QueueOffset(*place, some),)),
        ReplayDeadLetters("g", (few,)),
        Pop("p", "orders", "c", 4, 2_000),
        AckPopped("p", (PopHandle(max(1, number - few), 0, some),)),
        ExpirePopped(4),
        DeleteGroup("p", with_dead_letters=True),
        ExpireMessages(every, 1 + some),
        SweepIndex(1 + some),
    )
    return draw.choice(choices)


def test_an_old_log_replays_to_the_state_that_it_had_then(tmp_path: Path) -> None:
    draw = Random(20)
    replica = Replica(tmp_path / "index", log_range_bytes=512)
    replica.log.level = 1
    replica.one(PutTopic("orders", 2, 10_000))
    for number in range(600):
        replica.now_ms += draw.choice((0, 1, 100, 3_000, TRANSACTION_RETENTION_MS // 40))
        replica.do(old_command(number, draw), old_command(number, draw))
    assert replica.machine.state_hash == STATE_HASH_THEN
    replica.close()
