"""Messages of the present term that no member can send: each costs its sender the connection, and changes nothing."""

import pytest
from pysyncobj import syncobj as library

from raft.config import PeerAddress, RaftConfig
from raft.distrust import CONTRADICTIONS_MAX
from raft.errors import ProtocolError, SafetyViolation
from raft.handlers import SafeRaft
from raft.journal import Journal
from raft.library import CANDIDATE, FOLLOWER
from raft.messages import (
    FRAME,
    Append,
    AppendReply,
    Message,
    PreVote,
    PreVoteReply,
    Recall,
    RequestVote,
    VoteReply,
    decode,
    encode,
    make_append,
)
from store.log.commit_log import CommitLog
from store.log.differs import Difference
from store.log.hard_state import HardState
from store.log.record import KIND_ENTRY, KIND_NOOP, Entry
from store.log.watermarks import Watermarks
from tests.founded import founded
from tests.unit.raft.test_second_vote import RecordingTransport
from tests.unit.store.logs import sim_disk

TERM = 5


class Voter:
    """Node 1 of three, with one entry of term 1, on a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at_s = 1000.0
        monkeypatch.setattr(library, "monotonicTime", lambda: self.at_s)
        disk = sim_disk()
        disk.make_directory("/d")
        self.log = CommitLog.open(disk, "/d/log", segment_bytes=1 << 16, cache_bytes=1 << 16)
        self.log.append(2, 1, KIND_ENTRY, b"x")
        self.log.sync()
        self.hard_state = HardState(disk, "/d/hard_state")
        self.hard_state.set(1, None)
        self.hard_state.become_voter()
        peers = {peer: PeerAddress("127.0.0.1", peer) for peer in (2, 3)}
        config = RaftConfig(cluster_id="c", node_id=1, listen=PeerAddress("127.0.0.1", 1), peers=peers)
        self.transport = RecordingTransport()
        journal = Journal(self.log, self.hard_state, 0, Watermarks.open(disk, "/d"))
        self.node = SafeRaft(
            config, journal, self.transport, lambda entries, _: [[] for _ in entries], 0, founded(config)
        )
        for peer in self.node.state.library._nodes.values():
            self.transport._onNodeConnected(peer)

    def hear(self, peer: int, message: Message | Append) -> None:
        """Hear the message as it comes from the network."""
        frame = b"".join(encode(message))
        _, header_length, header_crc = FRAME.unpack_from(frame)
        self.node.on_message(peer, decode(memoryview(frame)[FRAME.size :], header_length, header_crc))
        self.log.sync()
        self.node.on_synced()

    def answers(self, kind: type) -> list[object]:
        return [message for _, message in self.transport.sent if isinstance(message, kind)]

    def ask_for_pre_votes(self) -> None:
        """Wait until the election is due, and ask."""
        for _ in range(3):
            self.at_s += 1.0
            self.node.step()
        assert self.answers(PreVote)


@pytest.fixture
def voter(monkeypatch: pytest.MonkeyPatch) -> Voter:
    return Voter(monkeypatch)


def test_nothing_is_committed_in_a_later_term_than_the_leaders(voter: Voter) -> None:
    """Else the watermarks would say so for ever, and this node would never stand or vote again."""
    with pytest.raises(ProtocolError, match="term 6"):
        voter.hear(2, make_append(TERM, 2, 1, 2, [], commit_term=TERM + 1))
    assert voter.node.state.knowledge.committed == (0, 0)


def test_an_entry_before_a_heartbeat_is_of_no_later_term(voter: Voter) -> None:
    with pytest.raises(ProtocolError, match="term 6"):
        voter.hear(2, make_append(TERM, 2, TERM + 1, 2, []))


@pytest.mark.parametrize(("spoken", "acked"), [(TERM + 1, 0), (0, TERM + 1)])
def test_nobody_recalls_a_later_term_than_its_own(voter: Voter, spoken: int, acked: int) -> None:
    """Else this node would take its disk for one that was put back, and give its vote up."""
    with pytest.raises(ProtocolError, match="term 6"):
        voter.hear(2, Recall(TERM, voter.node.state.config.incarnation, spoken, acked, 5))
    assert voter.node.own_copy.votes
    assert voter.hard_state.voter


def test_a_term_has_one_leader(voter: Voter) -> None:
    """An append of a second leader would cut what was acknowledged to the first."""
    voter.hear(
        2, make_append(TERM, 2, 1, 0, [Entry(b"", 3, TERM, KIND_NOOP, -1), Entry(b"a", 4, TERM, KIND_ENTRY, -1)])
    )
    assert voter.answers(AppendReply)[-1].match_index == 4  # type: ignore[attr-defined]
    with pytest.raises(ProtocolError, match="node 3 claims to lead term 5, which node 2 leads"):
        voter.hear(3, make_append(TERM, 2, 1, 0, [Entry(b"b", 3, TERM - 1, KIND_ENTRY, -1)]))
    assert voter.log.last_index == 4
    assert voter.node.state.leader_id == 2


def test_a_term_has_one_leader_also_after_it_fell_silent(voter: Voter) -> None:
    voter.hear(2, make_append(TERM, 2, 1, 0, [Entry(b"", 3, TERM, KIND_NOOP, -1)]))
    voter.ask_for_pre_votes()
    assert voter.node.state.leader_id is None
    with pytest.raises(ProtocolError, match="which node 2 leads"):
        voter.hear(3, make_append(TERM, 2, 1, 0, [Entry(b"b", 3, TERM - 1, KIND_ENTRY, -1)]))
    voter.hear(3, make_append(TERM + 1, 2, 1, 0, [Entry(b"", 3, TERM + 1, KIND_NOOP, -1)]))
    assert voter.log.last_term == TERM + 1


def test_the_first_record_is_committed_from_the_start(voter: Voter) -> None:
    """Every log of the cluster begins with the same record, before anything else is known to be committed."""
    assert voter.node.state.commit_index == 0
    other = make_append(TERM, 0, 0, 0, [Entry(b"", 1, TERM, KIND_NOOP, -1)])
    for _ in range(CONTRADICTIONS_MAX - 1):
        with pytest.raises(ProtocolError, match="another entry at 1"):
            voter.hear(2, other)
    assert voter.log.last_index == 2
    with pytest.raises(SafetyViolation):
        voter.hear(2, other)


def stand(voter: Voter) -> None:
    """Get the word of a majority, without the step that follows."""
    voter.ask_for_pre_votes()
    voter.node.on_message(2, PreVoteReply(voter.node.state.term, voter.node.state.term, True))


def test_who_has_the_word_of_a_majority_stands(voter: Voter) -> None:
    stand(voter)
    voter.node.step()
    assert voter.node.state.role == CANDIDATE
    assert voter.answers(RequestVote)


def test_who_learns_that_its_replica_differs_does_not_stand(voter: Voter) -> None:
    """The others have said that they would elect it, and then it was contradicted."""
    stand(voter)
    voter.node.replicas.difference = Difference(2, 1, records=True)
    voter.node.step()
    voter.node.on_message(2, VoteReply(voter.node.state.term, True))
    voter.node.step()
    assert voter.node.state.role == FOLLOWER
    assert not voter.answers(RequestVote)
    assert not voter.hard_state.voter


def test_who_learns_that_it_lacks_a_committed_entry_does_not_stand(voter: Voter) -> None:
    stand(voter)
    voter.node.state.knowledge.told_committed(1, 7)
    voter.node.step()
    assert voter.node.state.role == FOLLOWER
    assert not voter.answers(RequestVote)
