"""A node whose disk was replaced has forgotten its votes: it must not give a second one in a term it has voted in."""

import random

import pytest
from pysyncobj import syncobj as library
from pysyncobj.transport import Transport

from raft.config import PeerAddress, RaftConfig
from raft.handlers import SafeRaft
from raft.journal import Journal
from raft.membership import Member, encode_configuration
from raft.messages import AppendReply, PreVote, PreVoteReply, RequestVote, VoteReply, make_append
from store.log.commit_log import CommitLog
from store.log.hard_state import HardState
from store.log.record import KIND_CONFIG, KIND_ENTRY, KIND_NOOP, Entry
from store.log.watermarks import Watermarks
from tests.founded import founded
from tests.simdisk import SimDisk
from tests.single_lane import SingleLane

LEADER_TERM = 5
ENTRIES = [Entry(b"old", 2, 4, KIND_ENTRY, -1), Entry(b"", 3, LEADER_TERM, KIND_NOOP, -1)]


class RecordingTransport(SingleLane, Transport):  # type: ignore[misc]  # the library is untyped
    def __init__(self) -> None:
        super().__init__(None, None, None)
        self.sent: list[tuple[int, object]] = []

    def send(self, peer: int, message: object) -> bool:
        self.sent.append((peer, message))
        return True

    def destroy(self) -> None:
        """Do nothing, because there is nothing to release."""


class Wiped:
    """Node 1 of five, on an empty disk; node 2 leads term 5 and has brought it up to date."""

    def __init__(self) -> None:
        disk = SimDisk(random.Random(1))
        disk.make_directory("/d")
        self.log = CommitLog.open(disk, "/d/log", segment_bytes=1 << 16, cache_bytes=1 << 16)
        self.hard_state = HardState(disk, "/d/hard_state")
        self.transport = RecordingTransport()
        peers = {peer: PeerAddress("127.0.0.1", peer) for peer in (2, 3, 4, 5)}
        config = RaftConfig(cluster_id="c", node_id=1, listen=PeerAddress("127.0.0.1", 1), peers=peers)
        journal = Journal(self.log, self.hard_state, 0, Watermarks.open(disk, "/d"))
        self.node = SafeRaft(
            config, journal, self.transport, lambda entries, _: [[] for _ in entries], 0, founded(config)
        )
        for peer in self.node.state.library._nodes.values():
            self.transport._onNodeConnected(peer)
        self.hear(2, make_append(LEADER_TERM, 1, self.log.term_at(1), 3, ENTRIES))
        self.log.sync()
        self.node.on_synced()
        self.node.step()

    def hear(self, peer: int, message: object) -> None:
        self.transport._onMessageReceived(self.node.state.library._node(peer), message)
        self.node.step()

    def answer(self, kind: type) -> object:
        return [message for _, message in self.transport.sent if isinstance(message, kind)][-1]

    def asked(self) -> list[int]:
        return [peer for peer, message in self.transport.sent if isinstance(message, PreVote)]


@pytest.fixture
def wiped(monkeypatch: pytest.MonkeyPatch) -> Wiped:
    monkeypatch.setattr(library, "monotonicTime", lambda: 1_000.0)
    return Wiped()


def test_it_asks_every_other_node_for_its_term_first(wiped: Wiped) -> None:
    assert wiped.asked() == [3, 4, 5]
    for peer in (3, 4):
        wiped.hear(peer, PreVoteReply(LEADER_TERM, LEADER_TERM, False))
        assert not wiped.hard_state.voter
    wiped.hear(5, PreVoteReply(LEADER_TERM, LEADER_TERM, False))
    assert wiped.hard_state.voter


def test_no_second_vote_in_a_term_above_the_leaders(wiped: Wiped) -> None:
    """The node may have voted for node 3 in term 6 before it lost its disk; node 4 asks for that vote again."""
    for peer in (4, 5):
        wiped.hear(peer, PreVoteReply(LEADER_TERM, LEADER_TERM, False))
    wiped.hear(3, PreVoteReply(LEADER_TERM + 1, LEADER_TERM, False))
    assert (wiped.node.state.term, wiped.hard_state.voter) == (LEADER_TERM + 1, False)
    wiped.hear(4, RequestVote(LEADER_TERM + 1, 3, LEADER_TERM, False))
    assert wiped.answer(VoteReply) == VoteReply(LEADER_TERM + 1, False)


def test_no_second_vote_in_the_term_it_caught_up_in(wiped: Wiped) -> None:
    """The node may be one of those that elected node 2; three others could elect a second leader with its vote."""
    for peer in (3, 4, 5):
        wiped.hear(peer, PreVoteReply(LEADER_TERM, LEADER_TERM, False))
    assert (wiped.hard_state.voter, wiped.hard_state.voted_for) == (True, 2)
    wiped.hear(3, RequestVote(LEADER_TERM, 3, LEADER_TERM, False))
    assert wiped.answer(VoteReply) == VoteReply(LEADER_TERM, False)


def test_its_copies_count_once_every_node_that_may_lead_has_spoken(wiped: Wiped) -> None:
    """A learner may be a voter in another log, and one whose removal is not committed may still lead."""
    founders = wiped.node.state.configuration
    learner = Member(6, "127.0.0.1", 6, "http://6", voter=False)
    changed = [encode_configuration(each) for each in (founders.with_learner(learner), founders.without(5))]
    records = [Entry(record, 4 + at, LEADER_TERM, KIND_CONFIG, -1) for at, record in enumerate(changed)]

    def counts() -> bool:
        wiped.hear(2, make_append(LEADER_TERM, 5, LEADER_TERM, 3, []))
        reply = wiped.answer(AppendReply)
        assert isinstance(reply, AppendReply)
        return reply.success and reply.counts

    wiped.hear(2, make_append(LEADER_TERM, 3, LEADER_TERM, 3, records))
    wiped.log.sync()
    wiped.node.on_synced()
    for peer in (3, 4, 5):
        assert not counts()
        wiped.hear(peer, PreVoteReply(LEADER_TERM, LEADER_TERM, False))
    assert not counts(), "node 6 has not spoken"
    wiped.hear(6, PreVoteReply(LEADER_TERM, LEADER_TERM, False))
    assert counts()
