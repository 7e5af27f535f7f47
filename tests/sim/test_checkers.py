"""Every checker accuses exactly the defect that it is made for."""

import struct
from contextlib import nullcontext
from pathlib import Path
from random import Random

import pytest
from crc32c import crc32c

from raft.membership import Configuration, encode_configuration
from raft.messages import AppendReply, PreVote, PreVoteReply, RequestVote, VoteReply, make_append
from store.commands.entry import Proposal, encode_entry
from store.commands.groups import LeaveGroup
from store.commands.messages import BatchHeader, Produce
from store.commands.retention import Expired, ExpireMessages
from store.commands.topics import PutTopic
from store.commands.transactions import Prepare
from store.errors import Refused
from store.features import FEATURES, FIRST_LEVEL
from store.log.commit_log import CommitLog
from store.log.hard_state import HardState
from store.log.record import KIND_CONFIG, KIND_ENTRY, KIND_NOOP, Entry
from tests.unit.store.replica import Replica

from .checkers import Violation
from .checkers.acknowledged_kept import check_acknowledged_kept
from .checkers.acknowledgements import Acknowledgements, check_counted
from .checkers.check_quorum import CheckQuorum
from .checkers.committed_kept import CommittedKept
from .checkers.delivered_once import check_delivered_once
from .checkers.durable_log import DurableLog
from .checkers.election_safety import ElectionSafety
from .checkers.founding_level import FoundingLevel
from .checkers.history import History
from .checkers.leader_stickiness import LeaderStickiness
from .checkers.log_matching import LogMatching
from .checkers.majority_durable import check_entry_holds, check_entry_holds_content, check_on_majority, check_receipt
from .checkers.promises import check_promise
from .checkers.state_hash import StateHash
from .checkers.state_machine_safety import StateMachineSafety
from .checkers.stored_rows import WritesByCommand
from .checkers.transactions import check_one_outcome
from .checkers.true_time import SLACK_MS, TrueTime
from .disk import TimedDisk
from .world import World

LOG, HARD_STATE = "/data/log", "/data/hard_state"


class Machine:
    """A node's disk with a real commit log and hard state on it."""

    def __init__(self) -> None:
        self.disk = TimedDisk(World(0), Random(0))
        self.durable = DurableLog(self.disk, LOG, HARD_STATE)
        self.log = CommitLog.open(self.disk, LOG, segment_bytes=4096, cache_bytes=0)
        self.hard_state = HardState(self.disk, HARD_STATE)

    def append(self, count: int, term: int = 1) -> None:
        for _ in range(count):
            self.log.append(self.log.last_index + 1, term, KIND_ENTRY, b"x" * 100)


def test_election_safety() -> None:
    checker = ElectionSafety()
    checker.on_leader(1, 5)
    checker.on_leader(1, 5)
    checker.on_leader(2, 6)
    with pytest.raises(Violation, match="election_safety"):
        checker.on_leader(3, 6)


def test_votes() -> None:
    checker = ElectionSafety()
    checker.on_vote(1, 1, 5)
    checker.on_vote(2, 1, 5)
    checker.on_vote(2, 1, 5)
    checker.on_vote(2, 3, 6)
    checker.check_votes(1, 5, electorate=(1, 2, 3))
    with pytest.raises(Violation, match="elected_by_few"):
        checker.check_votes(1, 5, electorate=(1, 2, 3, 4, 5))
    with pytest.raises(Violation, match="second_vote"):
        checker.on_vote(2, 3, 5)


def test_log_matching() -> None:
    checker = LogMatching()
    checker.on_append(1, 7, 2, 1, b"a")
    checker.on_append(2, 7, 2, 1, b"a")
    checker.on_append(2, 7, 3, 1, b"b")
    with pytest.raises(Violation, match="log_matching"):
        checker.on_append(3, 7, 2, 1, b"b")
    with pytest.raises(Violation, match="log_matching"):
        checker.on_append(3, 7, 2, 2, b"a")


def test_committed_entries_are_kept() -> None:
    checker = CommittedKept()
    checker.on_commit(1, 4, 2, 3)
    with pytest.raises(Violation, match="committed_kept"):
        checker.on_commit(2, 4, 3, 3)
    checker.on_leader(2, 3, lambda index: None)  # of the term in which it was committed, elected late
    checker.on_leader(2, 4, lambda index: 2)
    with pytest.raises(Violation, match="leader_completeness"):
        checker.on_leader(3, 5, lambda index: None)
    checker.on_truncate(1, commit_index=4, first_removed=5)
    with pytest.raises(Violation, match="committed_truncated"):
        checker.on_truncate(1, commit_index=4, first_removed=4)


def test_what_a_leader_commits_and_a_new_disk_needs() -> None:
    checker = CommittedKept()
    checker.on_leader_commit(1, 3, 7, 3)
    with pytest.raises(Violation, match="commit_rule"):
        checker.on_leader_commit(1, 3, 7, 2)
    checker.on_commit(1, 4, 2, 3)
    assert checker.knows(4, 2)
    assert not checker.knows(4, 1)
    assert not checker.knows(5, 2)
    checker.check_rejoined(2, {4}, {4: 2}.get)
    with pytest.raises(Violation, match="rejoined_too_early"):
        checker.check_rejoined(2, {4}, {4: 1}.get)


def test_state_machine_safety_and_hash() -> None:
    machine, hashes = StateMachineSafety(), StateHash()
    machine.on_apply(1, 3, 1, b"a")
    machine.on_apply(2, 3, 1, b"a")
    with pytest.raises(Violation, match="state_machine_safety"):
        machine.on_apply(3, 3, 1, b"b")
    hashes.on_applied(1, 3, "ab")
    hashes.on_applied(2, 3, "ab")
    with pytest.raises(Violation, match="state_hash"):
        hashes.on_applied(2, 3, "cd")


def test_acknowledged_entries_are_kept_once() -> None:
    check_acknowledged_kept([b"a"], [b"a", b"b"])
    with pytest.raises(Violation, match="acknowledged_lost"):
        check_acknowledged_kept([b"a", b"c"], [b"a"])
    with pytest.raises(Violation, match="acknowledged_doubled"):
        check_acknowledged_kept([b"a"], [b"a", b"a"])


def test_delivered_once() -> None:
    here = {"b1": [("orders", 0, 5)]}
    check_delivered_once(here, {"b1": ("orders", (0, 5)), "b2": ("orders", None)})
    for places, sent, invariant in (
        (here, {}, "phantom"),
        ({"b1": [("orders", 0, 5), ("orders", 1, 0)]}, {"b1": ("orders", None)}, "delivered_once"),
        ({}, {"b1": ("orders", (0, 5))}, "acknowledged_lost"),
        (here, {"b1": ("orders", (0, 6))}, "acknowledged_lost"),
    ):
        with pytest.raises(Violation, match=invariant):
            check_delivered_once(places, sent)


def test_one_outcome() -> None:
    check_one_outcome("t1", {"committed"})
    with pytest.raises(Violation, match="first_decision_wins"):
        check_one_outcome("t1", {"committed", "rolled_back"})


def test_durable_log_sees_only_what_was_synced() -> None:
    machine = Machine()
    machine.append(3)
    assert (machine.log.last_index, machine.durable.last_index) == (4, 1)
    machine.log.sync()
    assert machine.durable.last_index == 4
    machine.append(80)  # over several segments: what is sealed is synced, the last one is not
    assert 4 < machine.durable.last_index < machine.log.last_index
    machine.log.sync()
    assert machine.durable.last_index == machine.log.last_index
    machine.log.truncate_from(30)
    machine.append(1, term=2)
    assert machine.durable.last_index == 29
    machine.log.sync()
    assert [machine.durable.term_at(index) for index in (29, 30, 31)] == [1, 2, None]
    machine.hard_state.set(7, 2)
    assert machine.durable.hard_state == (7, 2)


def test_durable_log_agrees_with_recovery() -> None:
    for seed in range(30):
        machine, random = Machine(), Random(seed)
        machine.disk._random = random
        for _ in range(random.randint(1, 8)):
            machine.append(random.randint(1, 30))
            if random.random() < 0.5:
                machine.log.sync()
        synced = machine.log.synced_index
        machine.disk.lose_power()
        survived = machine.durable.last_index
        assert survived >= synced
        reopened = CommitLog.open(machine.disk, LOG, segment_bytes=4096, cache_bytes=0)
        assert reopened.last_index == machine.durable.last_index == survived


def test_durable_log_ends_at_a_damaged_record() -> None:
    machine = Machine()
    machine.append(5)
    machine.log.sync()
    position = machine.log.position_of(4)
    machine.disk.damage(f"{LOG}/{0:020}.log", position + 60, b"?")
    machine.disk.names_changed = True
    assert machine.durable.last_index == 3


def test_promises() -> None:
    machine = Machine()
    machine.append(4)
    machine.log.sync()
    machine.append(2)
    machine.hard_state.set(3, 2)
    for kept in (
        PreVote(3, 7, 1, False),
        VoteReply(3, True),
        VoteReply(2, True),
        VoteReply(3, False),
        AppendReply(3, True, 5),
        AppendReply(3, False, 0, 9, 7),
    ):
        check_promise(1, 2, kept, machine.durable)
    for broken in (
        VoteReply(4, False),
        RequestVote(3, 5, 1, False),
        AppendReply(3, True, 6),
        PreVote(4, 5, 1, False),
    ):
        with pytest.raises(Violation, match="nothing_unsynced_promised"):
            check_promise(1, 2, broken, machine.durable)
    with pytest.raises(Violation, match="nothing_unsynced_promised"):
        check_promise(1, 3, VoteReply(3, True), machine.durable)
    with pytest.raises(Violation, match="nothing_unsynced_promised"):
        check_promise(1, 2, AppendReply(2, True, 5), machine.durable)  # it has voted for another since
    check_promise(2, 1, AppendReply(2, True, 5), machine.durable)  # it stands itself: its log stays


def test_acknowledgements() -> None:
    machine = Machine()  # with a genesis entry of term 0
    machine.append(2, term=1)
    machine.append(1, term=4)
    machine.log.sync()
    checker = Acknowledgements()
    checker.on_leader(3, 3, {1: 0, 2: 1, 3: 2}.get)
    checker.on_leader(4, 3, {1: 0, 2: 1, 3: 1}.get)
    for true in (AppendReply(3, True, 2), AppendReply(4, True, 4), AppendReply(3, False, 0), AppendReply(9, True, 3)):
        checker.on_reply(1, true, machine.durable)
    for false in (AppendReply(3, True, 3), AppendReply(3, True, 4), AppendReply(4, True, 5)):
        with pytest.raises(Violation, match="acknowledgement"):
            checker.on_reply(1, false, machine.durable)
    check_counted(2, 1, 4, 4, machine.durable, knows_disk=True)
    with pytest.raises(Violation, match="acknowledgement"):
        check_counted(2, 1, 4, 3, machine.durable, knows_disk=True)
    machine.durable.wiped(TimedDisk(World(0), Random(0)))
    check_counted(2, 1, 4, 4, machine.durable, knows_disk=False)
    with pytest.raises(Violation, match="acknowledgement"):
        check_counted(2, 1, 4, 4, machine.durable, knows_disk=True)


def test_check_quorum() -> None:
    checker = CheckQuorum(election_timeout_us=20_000)
    for now_us in range(0, 80_001, 10_000):
        checker.on_lead(1, 3, peers=frozenset((2, 3)), answered_by=None, now_us=now_us)
    checker.on_lead(1, 3, peers=frozenset((2, 3)), answered_by=2, now_us=90_000)
    checker.on_lead(1, 3, peers=frozenset((2, 3)), answered_by=None, now_us=300_000)  # frozen in between
    checker.on_lead(1, 3, peers=frozenset((2, 3)), answered_by=None, now_us=380_000)
    with pytest.raises(Violation, match="check_quorum"):
        checker.on_lead(1, 3, peers=frozenset((2, 3)), answered_by=None, now_us=390_000)


def test_leader_stickiness() -> None:
    checker = LeaderStickiness(election_timeout_us=100)
    checker.on_append(1, make_append(5, 0, 0, 0, ()), now_us=1_000)
    checker.on_append(1, make_append(4, 0, 0, 0, ()), now_us=1_090)  # deposed long ago
    checker.on_pre_vote_reply(1, PreVoteReply(5, 5, False), now_us=1_050)
    checker.on_pre_vote_reply(1, PreVoteReply(5, 5, True), now_us=1_100)
    checker.on_pre_vote_reply(1, PreVoteReply(6, 6, True), now_us=1_050)
    with pytest.raises(Violation, match="leader_stickiness"):
        checker.on_pre_vote_reply(1, PreVoteReply(5, 5, True), now_us=1_099)
    checker.on_start(1)
    checker.on_pre_vote_reply(1, PreVoteReply(5, 5, True), now_us=1_050)


def stamped(timestamp_ms: int, *, in_doubt: bool = False) -> bytes:
    return encode_entry(timestamp_ms, [Proposal(LeaveGroup("g", "m"))], in_doubt=in_doubt)


def test_stamps_are_held_against_the_true_time() -> None:
    checker = TrueTime(lambda: 0, max_skew_ms=1_000, counts_for_us=10)
    for right in (stamped(50_000), stamped(48_500), stamped(50_000 + SLACK_MS), stamped(1, in_doubt=True)):
        checker.on_stamped(1, 7, right, true_ms=50_000)
    for wrong in (stamped(48_000), stamped(50_100), stamped(50_100, in_doubt=True)):
        with pytest.raises(Violation, match="true_time"):
            checker.on_stamped(1, 7, wrong, true_ms=50_000)
    checker.on_leap(200.0)
    checker.on_stamped(1, 7, stamped(50_200), true_ms=50_000)


def test_clocks_count_as_wrong_for_as_long_as_what_they_said_may_count() -> None:
    now_us = 0
    checker = TrueTime(lambda: now_us, max_skew_ms=1_000, counts_for_us=10)
    checker.is_minority = lambda nodes: len(nodes) < 2
    checker.set_wrong(1)
    assert checker.wrong() == {1}
    checker.set_right(1)
    now_us = 9
    assert checker.wrong() == {1}
    now_us = 10
    assert checker.wrong() == set()
    checker.set_wrong(1)
    checker.set_wrong(2)
    checker.on_stamped(1, 7, stamped(10**9), true_ms=50_000)
    checker.set_right(1)
    now_us = 100
    checker.on_stamped(1, 8, stamped(10**9), true_ms=50_000)  # the replicated clock never falls again


@pytest.mark.parametrize(
    ("level", "term", "is_new", "is_refused"),
    [
        (FEATURES.maximum, 4, True, False),
        (FIRST_LEVEL, 4, True, True),
        (FIRST_LEVEL, 5, True, False),  # a later leader, which may not have heard all nodes yet
        (FIRST_LEVEL, 4, False, False),  # operators raise the level
    ],
)
def test_the_first_leader_raises_the_level_before_the_first_command(
    level: int, term: int, is_new: bool, is_refused: bool
) -> None:
    checker = FoundingLevel()
    checker.is_new = is_new
    checker.on_applied(Entry(b"", 2, 4, KIND_NOOP, -1))
    raised = Configuration().with_feature_level(level)
    checker.on_applied(Entry(encode_configuration(raised), 3, 4, KIND_CONFIG, -1))
    with pytest.raises(Violation, match="founding_level") if is_refused else nullcontext():
        checker.on_applied(Entry(b"command", 4, term, KIND_ENTRY, -1))
    checker.on_applied(Entry(b"later", 5, 4, KIND_ENTRY, -1))


def test_nothing_irreversible_follows_from_an_entry_in_doubt(tmp_path: Path) -> None:
    replica = Replica(tmp_path / "index")
    command = ExpireMessages((), 10)
    entry = replica.log.append(1, [command], in_doubt=True)
    writes = WritesByCommand(replica.machine, replica.index)
    (refused,) = replica.machine.apply([entry])
    History().on_applied(replica.machine, entry, refused, writes)
    with pytest.raises(Violation, match="doubt"):
        History().on_applied(replica.machine, entry, [Expired((), 0, 0)], writes)
    replica.close()


def test_a_refused_command_has_written_nothing(tmp_path: Path) -> None:
    """An entry writes more at its end, here the bytes that the send before has added: that is of no command."""
    replica = Replica(tmp_path / "index")
    history, writes = History(), WritesByCommand(replica.machine, replica.index)
    sent = [
        Proposal(Produce((BatchHeader(topic, 0, 1, "b", None, 0, 9),)), (bytes(9),)) for topic in ("orders", "nowhere")
    ]
    for number, proposals in enumerate(([Proposal(PutTopic("orders", 1, -1))], sent)):
        entry = replica.log.append(replica.now_ms, proposals)
        (results,) = replica.machine.apply([entry])
        history.on_applied(replica.machine, entry, results, writes)
        assert isinstance(results[-1], Refused) == (number == 1)
    entry = replica.log.append(replica.now_ms, [PutTopic("more", 1, -1)])
    replica.machine.apply([entry])
    with pytest.raises(Violation, match="refused_changed"):
        history.on_applied(replica.machine, entry, [Refused("overloaded", "")], writes)
    replica.close()


def test_an_answer_is_about_the_command_of_its_client() -> None:
    mine, other = LeaveGroup("g", "m-1"), LeaveGroup("g", "m-2")
    check_entry_holds(mine, 7, encode_entry(0, [Proposal(other), Proposal(mine)]))
    with pytest.raises(Violation, match="receipt"):
        check_entry_holds(mine, 7, encode_entry(0, [Proposal(other)]))


def test_a_duplicate_is_in_the_entry_of_its_receipt() -> None:
    def produced(queue: int, batch_id: str, checksum: int = 1) -> Proposal:
        return Proposal(Produce((BatchHeader("t", queue, 1, batch_id, None, checksum, 1),)), (b"x",))

    def prepared(checksum: int) -> Proposal:
        return Proposal(Prepare("tx", "g", "", None, (BatchHeader("t", 0, 1, "b", None, checksum, 1),)), (b"x",))

    payload = encode_entry(0, [produced(0, "a"), produced(0, "b"), prepared(1)])
    for again in (produced(1, "a"), prepared(1)):
        assert isinstance(again.command, Produce | Prepare)
        check_entry_holds_content(again.command, 7, payload)
    for other in (produced(0, "c"), produced(0, "a", checksum=2), prepared(2)):
        assert isinstance(other.command, Produce | Prepare)
        with pytest.raises(Violation, match="receipt"):
            check_entry_holds_content(other.command, 7, payload)


def test_majority_is_read_from_the_disks() -> None:
    machines = [Machine() for _ in range(3)]
    disks = {number: machine.durable for number, machine in enumerate(machines, start=1)}
    for machine in machines:
        machine.append(1)
    machines[0].log.sync()
    with pytest.raises(Violation, match="majority_durable"):
        check_on_majority(2, 1, disks, "test")
    machines[1].log.sync()
    check_on_majority(2, 1, disks, "test")
    check_receipt(2, 1, (1, 2), disks)
    for receipt in ((1,), (1, 3)):
        with pytest.raises(Violation, match="receipt"):
            check_receipt(2, 1, receipt, disks)


def test_a_wiped_disk_counts_for_what_it_held_until_it_has_caught_up() -> None:
    machine = Machine()
    machine.append(2)
    machine.log.sync()
    machine.durable.wiped(TimedDisk(World(0), Random(0)))
    assert machine.durable.last_index == 0
    assert machine.durable.counts_for(3, 1)
    assert not machine.durable.counts_for(3, 2)
    assert not machine.durable.voter


def test_the_decoder_follows_the_documented_layout() -> None:
    """The header of docs/log-format.md, field by field: 52 bytes, CRC over the first 48."""
    machine = Machine()
    machine.append(1, term=9)
    machine.log.sync()
    content = machine.disk.durable_bytes(f"{LOG}/{0:020}.log")
    assert content is not None
    position = machine.log.position_of(2)
    header = bytes(content[position : position + 52])
    assert header[:8] == b"KMQR\x01\x01\x00\x00"
    assert struct.unpack_from("<IIQQQ", header, 8) == (100, crc32c(b"x" * 100), 2, 9, position)
    assert struct.unpack_from("<I", header, 48) == (crc32c(header[:48]),)
