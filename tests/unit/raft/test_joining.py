"""A node that joins, or joins again on another disk, may do only so much before it knows what the others know."""

import random
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from pysyncobj import syncobj as library

from raft.config import PeerAddress, RaftConfig
from raft.errors import ProtocolError
from raft.handlers import SafeRaft
from raft.journal import Journal
from raft.library import LEADER
from raft.membership import Configuration, Member, encode_configuration
from raft.messages import AppendReply, PreVoteReply, make_append
from store.log.commit_log import CommitLog
from store.log.hard_state import HardState
from store.log.record import KIND_CONFIG, KIND_NOOP, Entry
from store.log.watermarks import Watermarks
from tests.founded import founded
from tests.simdisk import SimDisk
from tests.unit.raft.test_second_vote import RecordingTransport


class Started:
    """A node on an empty disk, without the others."""

    def __init__(self, node_id: int, *, joins: bool, retain_behind_bytes: int = 1 << 20) -> None:
        disk = SimDisk(random.Random(1))
        disk.make_directory("/d")
        self.log = CommitLog.open(disk, "/d/log", segment_bytes=1 << 16, cache_bytes=1 << 16)
        self.hard_state = HardState(disk, "/d/hard_state")
        self.transport = RecordingTransport()
        config = RaftConfig(
            cluster_id="c",
            node_id=node_id,
            listen=PeerAddress("h", node_id),
            peers={},
            joins=joins,
            incarnation="one",
            retain_behind_bytes=retain_behind_bytes,
        )
        journal = Journal(self.log, self.hard_state, 0, Watermarks.open(disk, "/d"))
        self.node = SafeRaft(
            config, journal, self.transport, lambda entries, _: [[] for _ in entries], 0, founded(config)
        )

    def connect(self, peer: int) -> None:
        self.transport._onNodeConnected(self.node.state.library._node(peer))

    def disconnect(self, peer: int) -> None:
        self.transport._onNodeDisconnected(self.node.state.library._node(peer))

    def hear(self, peer: int, message: object) -> None:
        self.transport._onMessageReceived(self.node.state.library._node(peer), message)
        self.settle()

    def settle(self) -> None:
        for _ in range(3):
            self.node.step()
            self.log.sync()
            self.node.on_synced()
        self.node.step()

    def last_reply(self) -> AppendReply:
        return [message for _, message in self.transport.sent if isinstance(message, AppendReply)][-1]


@pytest.fixture
def advance(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Return a function that moves the clock on by a number of seconds."""
    now_s = 1_000.0
    monkeypatch.setattr(library, "monotonicTime", lambda: now_s)

    def by(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    return by


def member(node_id: int, *, voter: bool = True) -> Member:
    return Member(node_id, "h", node_id, f"http://h:{node_id}", voter)


def filled(leader_term: int, commit_index: int, configuration: Configuration) -> object:
    """Return the first entries of a log, the last of them a configuration."""
    entries = [
        Entry(b"", 2, leader_term, KIND_NOOP, -1),
        Entry(encode_configuration(configuration), 3, leader_term, KIND_CONFIG, -1),
    ]
    return make_append(leader_term, 1, 0, commit_index, entries)


def test_it_does_not_lead_by_a_configuration_of_the_past(advance: Callable[[float], None]) -> None:
    """Node 1 founded a cluster that has three voters now, and lost its disk. On the way its log says that it is the
    only voter.
    """
    one = Started(1, joins=True)
    one.connect(2)
    one.hear(2, filled(5, 100, Configuration((member(1), member(2, voter=False)), "first disk")))
    assert one.node.state.commit_index == 3
    for _ in range(5):
        advance(10)
        one.settle()
    assert one.node.state.role != LEADER
    assert (one.node.state.term, one.hard_state.voter) == (5, False)


def test_a_lone_founder_leads(advance: Callable[[float], None]) -> None:
    one = Started(1, joins=False)
    advance(10)
    one.settle()
    assert (one.node.state.role, one.hard_state.voter) == (LEADER, True)


def test_its_copy_does_not_count_before_it_knows_a_committed_configuration(advance: Callable[[float], None]) -> None:
    """Nodes 1 to 3 founded the cluster. Node 1 is about to remove node 3, which leads a later term by the vote of node
    2's lost disk: who joins with the new one must not be told by node 1 alone.
    """
    removing = Configuration((member(1), member(2)))
    two = Started(2, joins=True)
    two.connect(1)
    two.hear(1, filled(4, 2, removing))
    assert not two.last_reply().counts
    two.hear(1, make_append(4, 3, 4, 3, []))
    two.hear(1, PreVoteReply(4, 4, False))
    two.hear(1, make_append(4, 3, 4, 3, []))
    assert two.last_reply().counts


def test_a_receipt_does_not_name_a_copy_that_does_not_count(advance: Callable[[float], None]) -> None:
    """The copy is that of a voter whose disk is new."""
    one = Started(1, joins=False)
    advance(10)
    one.settle()
    for following in (member(2, voter=False), member(2)):
        one.connect(2)
        one.node.proposing.propose_configuration(
            Configuration((*one.node.state.configuration.members[:1], following), "one"), lambda *_: None
        )
        one.hear(2, AppendReply(one.node.state.term, True, one.log.last_index, counts=True, votes=True))
    index = one.node.proposing.propose(b"entry", lambda *_: None)
    one.hear(2, AppendReply(one.node.state.term, True, index, counts=False, votes=False))
    assert one.node.replication.durable_on(index) == (1,)
    one.hear(2, AppendReply(one.node.state.term, True, index, counts=True, votes=True))
    assert one.node.replication.durable_on(index) == (1, 2)


def test_a_learner_that_fell_silent_has_not_caught_up(advance: Callable[[float], None]) -> None:
    """A voter that fell silent would be needed at once, for good."""
    one = Started(1, joins=False)
    advance(10)
    one.settle()
    learner = member(2, voter=False)
    one.node.proposing.propose_configuration(one.node.state.configuration.with_learner(learner), lambda *_: None)
    one.settle()
    one.connect(2)
    for _ in range(5):
        advance(1)
        one.hear(2, AppendReply(one.node.state.term, True, one.log.last_index, counts=True, votes=True))
    assert one.node.replication.is_caught_up(2)
    advance(10)
    one.settle()
    assert one.node.state.role == LEADER
    assert not one.node.replication.is_caught_up(2)
    one.hear(2, AppendReply(one.node.state.term, True, one.log.last_index, counts=True, votes=True))
    assert one.node.replication.is_caught_up(2)
    one.disconnect(2)
    assert not one.node.replication.is_caught_up(2)


def test_the_last_entry_that_it_knows_to_be_committed_stays(advance: Callable[[float], None]) -> None:
    """Seed 1510097: the state of a snapshot was ahead of that, and retention removed the entry. The node ended when it
    looked at its term, to tell whether it may vote again.
    """
    two = Started(2, joins=True, retain_behind_bytes=0)
    two.connect(1)
    two.hear(1, filled(4, 2, Configuration((member(1), member(2)))))
    assert (two.node.state.commit_index, two.log.synced_index) == (2, 3)
    assert two.node.replication.needed_from() == 3
    two.hear(1, make_append(4, 3, 4, 3, []))
    assert two.node.replication.needed_from() == 4


def test_a_vote_that_was_given_before_the_disk_was_put_back_stays() -> None:
    """The node had stood in the leader's term and lost. Its disk knew, and the node ended when it was to vote again."""
    two = Started(2, joins=True)
    two.node.state.library.set_term(1, 2)
    two.node.new_disk._become_voter(1)
    assert (two.hard_state.voted_for, two.hard_state.voter) == (2, True)
    three = Started(3, joins=True)
    three.node.state.library.set_term(1, None)
    three.node.new_disk._become_voter(1)
    assert (three.hard_state.voted_for, three.hard_state.voter) == (1, True)


def test_an_impossible_message_is_no_word_of_its_sender() -> None:
    """The new disk would count before it knows in which terms the sender stands."""
    two = Started(2, joins=True)
    two.connect(1)
    two.connect(3)
    two.hear(3, make_append(1, 0, 0, 0, ()))
    with pytest.raises(ProtocolError, match="is not a Raft message"):
        two.node.on_message(1, SimpleNamespace(term=1))
    heard = two.node.new_disk._rejoin.has_heard_all
    assert heard(frozenset({3}))
    assert not heard(frozenset({1}))
