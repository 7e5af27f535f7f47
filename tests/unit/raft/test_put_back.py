"""A disk was put back to an earlier state: other nodes tell its node, which begins anew."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from pysyncobj import syncobj as library

from raft.config import PeerAddress, RaftConfig
from raft.errors import ProtocolError
from raft.handlers import SafeRaft
from raft.journal import Journal
from raft.knowledge import MARKS_MAX, Knowledge
from raft.library import LEADER
from raft.messages import PreVote, PreVoteReply, Recall, RequestVote, VoteReply, make_append
from store.log.commit_log import CommitLog
from store.log.hard_state import HardState
from store.log.record import KIND_ENTRY
from store.log.watermarks import Watermarks
from tests.founded import founded
from tests.unit.raft.members import Member, cluster, leader_of, propose_until_accepted, put_topic, same_state
from tests.unit.raft.members import message as message_of
from tests.unit.raft.test_second_vote import RecordingTransport
from tests.unit.raft.test_transport import until
from tests.unit.store.logs import sim_disk


async def copy_of(member: Member) -> Path:
    """Stop the node, copy its directory, and let the node go on."""
    await member.stop()
    copy = member.directory.with_suffix(".copy")
    shutil.copytree(member.directory, copy)
    await member.start()
    return copy


async def put_back(member: Member, copy: Path) -> None:
    await member.stop()
    shutil.rmtree(member.directory)
    shutil.move(copy, member.directory)
    await member.start()


async def test_a_node_that_forgot_begins_anew_and_votes_when_it_has_caught_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster(3, tmp_path) as members:
        await put_topic(await leader_of(members))
        await until(lambda: same_state(members))
        member = next(each for each in members if each.node.role != "leader")
        copy = await copy_of(member)
        for number in range(20):
            await propose_until_accepted(members, lambda number=number: message_of(f"b{number}"))  # type: ignore[misc]
        await until(lambda: same_state(members))
        before = member.config.incarnation
        await put_back(member, copy)
        await until(lambda: member.config.incarnation == before + "+")
        assert member.reopening is not None
        await member.reopening
        await until(lambda: same_state(members) and not member.node.lacks_vote)
        assert member.machine.max_offset("orders", 0) == 20
        assert caplog.text.count("lacks data that it acknowledged") == 1
        assert not member.fatal


async def test_entries_that_are_not_durable_yet_are_no_memory(tmp_path: Path) -> None:
    """Seed 8200538 of the simulation: a leader had begun to fill a disk that was put back; it was not synced."""
    async with cluster(3, tmp_path) as members:
        leader = await leader_of(members)
        await put_topic(leader)
        await until(lambda: same_state(members))
        member = next(each for each in members if each is not leader)
        before = member.config.incarnation
        member.disk.hold()
        for number in range(3):
            await propose_until_accepted(members, lambda number=number: message_of(f"b{number}"))  # type: ignore[misc]
        await until(lambda: member.log.last_index == leader.log.last_index)
        assert member.log.synced_index < member.log.last_index
        term = leader.node._raft.state.term
        recall = Recall(term, before, term, member.log.last_term, member.log.last_index, superseded=False)
        member.node._raft.on_message(leader.config.node_id, recall)
        assert not member.node._raft.own_copy.votes
        member.disk.release()
        await until(lambda: member.config.incarnation == before + "+")
        assert member.reopening is not None
        await member.reopening


async def test_what_was_acknowledged_over_an_earlier_connection_does_not_count(tmp_path: Path) -> None:
    """The peer may have come back with an older disk under the same name."""
    async with cluster(3, tmp_path, election_timeout_ms=4_000) as members:
        leader = await leader_of(members)
        await put_topic(leader)
        await until(lambda: same_state(members))
        other = next(member for member in members if member is not leader)
        await until(lambda: leader.node.peers[other.config.node_id].match_index == leader.log.last_index)
        seen: list[int] = []
        handlers = leader.node._raft
        send = handlers.sender.send

        def watch(peer: int, message: Any) -> None:
            if peer == other.config.node_id and isinstance(message, Recall):
                seen.append(handlers.replication.acked(peer))
            send(peer, message)

        handlers.sender.send = watch  # type: ignore[method-assign]
        await other.stop()
        await other.start()
        await until(lambda: bool(seen))
        assert seen[0] == 0
        await until(lambda: same_state(members))
        await until(lambda: leader.node.peers[other.config.node_id].match_index == leader.log.last_index)


async def test_an_impossible_message_says_nothing_of_the_disk_of_its_sender(tmp_path: Path) -> None:
    """Seed 700063 of the simulation: an append, forged as a follower's, to the leader of that term. The follower did
    not know the term yet, was reminded of it, and gave its vote up.
    """
    async with cluster(3, tmp_path) as members:
        leader = await leader_of(members)
        await put_topic(leader)
        away = next(member for member in members if member is not leader)
        await away.stop()
        handlers, node_id = leader.node._raft, away.config.node_id
        before = handlers.state.knowledge.recall(node_id, 1)
        forged_term = handlers.state.term + 1
        handlers.state.library.set_term(forged_term, leader.config.node_id)
        assert handlers.state.role == LEADER
        with pytest.raises(ProtocolError, match="claims to lead"):
            handlers.on_message(node_id, make_append(forged_term, 0, 0, 0, ()))
        assert handlers.state.knowledge.recall(node_id, 1) == before


async def test_a_term_that_this_node_led_has_no_other_leader(tmp_path: Path) -> None:
    """Seed 8200364 of the simulation: a leader that had stood stepped down, and followed a forger in its own term."""
    async with cluster(3, tmp_path) as members:
        leader = await leader_of(members)
        state = leader.node._raft.state
        forger = next(member for member in members if member is not leader).config.node_id
        state.library.step_down()
        with pytest.raises(ProtocolError, match="claims to lead"):
            leader.node._raft.on_message(forger, make_append(state.term, 0, 0, 0, ()))
        assert state.leader_id != forger


# What is known


def knowledge() -> Knowledge:
    return Knowledge(Watermarks.open(sim_disk(), "/data"))


def test_who_lacks_a_committed_entry_is_incomplete() -> None:
    known = knowledge()
    assert known.is_complete(0, 1)
    known.told_committed(5, 40)
    known.told_committed(4, 90)
    assert not known.is_complete(5, 39)
    assert not known.is_complete(4, 100)
    assert known.is_complete(5, 40)
    assert known.is_complete(6, 12)


def test_it_survives_a_kill() -> None:
    disk = sim_disk()
    known = Knowledge(Watermarks.open(disk, "/data"))
    known.told_committed(5, 40)
    known.met(2, "a")
    known.heard(2, 5)
    known.acknowledged(2, 5, 38)
    known.write(committed_index=36)
    disk.kill_process()
    watermarks = Watermarks.open(disk, "/data")
    again = Knowledge(watermarks)
    assert (again.committed, watermarks.committed_index) == ((5, 40), 36)
    assert again.recall(2, 6) == Recall(6, "a", 5, 5, 38)


def test_a_disk_that_was_given_up_before_is_known_again() -> None:
    """Found in review: an old copy is put back, the node begins anew, and the same copy is put back once more."""
    disk = sim_disk()
    known = Knowledge(Watermarks.open(disk, "/data"))
    for incarnation in ("copied", "second", "third"):
        known.met(2, incarnation)
        assert known.recall(2, 6) is None
    known.met(2, "copied")
    told = Recall(6, "copied", 0, 0, 0, superseded=True)
    assert known.recall(2, 6) == told
    assert "given up" in known.forgotten(told, 9, 9, 99), "whatever its term and log are"
    known.met(2, "fourth")
    assert known.recall(2, 6) is None
    known.write(committed_index=1)
    again = Knowledge(Watermarks.open(disk, "/data"))
    again.met(2, "third")
    assert again.recall(2, 6) == Recall(6, "third", 0, 0, 0, superseded=True)


def test_marks_of_as_many_nodes_as_are_remembered_have_room_in_the_file() -> None:
    known = knowledge()
    for life in range(6):
        for peer in range(MARKS_MAX):
            known.met(peer, f"{life:032d}")
            known.heard(peer, 1 << 62)
            known.acknowledged(peer, 1 << 62, 1 << 62)
    for peer in range(MARKS_MAX):
        known.met(peer, "x" * 64)
        known.heard(peer, 1 << 62)
        known.acknowledged(peer, 1 << 62, 1 << 62)
    known.write(committed_index=1)


def test_a_peer_is_reminded_of_its_present_disk_only() -> None:
    known = knowledge()
    assert known.recall(2, 1) is None
    known.met(2, "a")
    assert known.recall(2, 1) is None, "it has not spoken yet"
    known.heard(2, 5)
    known.acknowledged(2, 5, 30)
    known.acknowledged(2, 4, 90)
    assert known.recall(2, 6) == Recall(6, "a", 5, 5, 30)
    known.met(2, "a")
    assert known.recall(2, 6) == Recall(6, "a", 5, 5, 30)
    known.met(2, "b")
    assert known.recall(2, 6) is None


def test_nodes_that_were_removed_are_forgotten_when_others_need_the_room() -> None:
    known = knowledge()
    for peer in range(500):
        known.met(peer, "x" * 64)
        known.heard(peer, 1 << 60)
        known.acknowledged(peer, 1 << 60, 1 << 60)
    assert known.recall(499 - MARKS_MAX, 1 << 60) is None
    assert known.recall(500 - MARKS_MAX, 1 << 60) is not None
    assert known.recall(500 - MARKS_MAX, 1) is None, "this node cannot have heard that in its term"
    known.write(committed_index=1)


@pytest.mark.parametrize(
    ("own_term", "last", "forgot"),
    [
        (5, (5, 30), ""),
        (6, (6, 12), ""),
        (5, (5, 29), "it acknowledged entry 30 in term 5, and its log ends at entry 29 of term 5"),
        (7, (4, 99), "it acknowledged entry 30 in term 5, and its log ends at entry 99 of term 4"),
        (4, (5, 30), "it spoke in term 5 and knows of term 4"),
    ],
)
def test_a_node_has_forgotten_what_its_disk_does_not_hold(own_term: int, last: tuple[int, int], forgot: str) -> None:
    told = Recall(9, "a", 5, 5, 30)
    assert knowledge().forgotten(told, own_term, *last) == forgot


def test_what_a_later_leader_cut_was_not_forgotten() -> None:
    known, told = knowledge(), Recall(9, "a", 5, 5, 30)
    known.note_cut(5)
    assert known.forgotten(told, 6, 4, 20), "cut before it was acknowledged"
    known.note_cut(6)
    assert not known.forgotten(told, 6, 4, 20)


# Who decides


class Lagging:
    """Node 1 of three: its log ends at entry 3 of term 5, and it was told that entry 9 of term 5 is committed."""

    def __init__(self) -> None:
        disk = sim_disk()
        log = CommitLog.open(disk, "/data/log", segment_bytes=1 << 16, cache_bytes=1 << 16)
        for index in (2, 3):
            log.append(index, 5, KIND_ENTRY, b"x")
        log.sync()
        hard_state = HardState(disk, "/data/hard_state")
        hard_state.set(5, None)
        hard_state.become_voter()
        peers = {peer: PeerAddress("127.0.0.1", peer) for peer in (2, 3)}
        config = RaftConfig(cluster_id="c", node_id=1, listen=PeerAddress("127.0.0.1", 1), peers=peers)
        self.transport = RecordingTransport()
        self.node = SafeRaft(
            config,
            Journal(log, hard_state, 0, Watermarks.open(disk, "/data")),
            self.transport,
            lambda entries, _: [[] for _ in entries],
            0,
            founded(config),
        )
        for peer in self.node.state.library._nodes.values():
            self.transport._onNodeConnected(peer)
        self.hear(2, make_append(5, 8, 5, 9, (), commit_term=5))

    def hear(self, peer: int, message: object) -> object:
        """Deliver a message and return the last message that the node sends in the same step."""
        self.transport._onMessageReceived(self.node.state.library._node(peer), message)
        return self.transport.sent[-1][1]


@pytest.mark.parametrize(("last_index", "granted"), [(3, False), (8, False), (9, True)])
def test_only_who_has_what_is_committed_gets_a_vote(
    monkeypatch: pytest.MonkeyPatch, last_index: int, granted: bool
) -> None:
    time = {"s": 100.0}
    monkeypatch.setattr(library, "monotonicTime", lambda: time["s"])
    lagging = Lagging()
    time["s"] += 60
    lagging.node.stalls._awake_at = time["s"]
    answer = lagging.hear(3, PreVote(5, last_index, 5, False))
    assert isinstance(answer, PreVoteReply)
    assert answer.granted == granted
    answer = lagging.hear(3, RequestVote(6, last_index, 5, False))
    assert isinstance(answer, VoteReply)
    assert answer.granted == granted


def test_who_lacks_what_is_committed_does_not_stand(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    time = {"s": 100.0}
    monkeypatch.setattr(library, "monotonicTime", lambda: time["s"])
    lagging = Lagging()
    lagging.transport.sent.clear()
    for _ in range(400):
        time["s"] += 0.1
        lagging.node.step()
    assert not any(isinstance(sent, PreVote | RequestVote) for _, sent in lagging.transport.sent)
    assert lagging.node.election.waits_for == (5, 9)
    said = [record.getMessage() for record in caplog.records if "waiting for a node that has it" in record.getMessage()]
    assert len(said) <= 3, "at first, when the others fall silent, and rarely after that"
    assert all("entry 9 of term 5 is committed, and the log here ends at entry" in line for line in said)
    monkeypatch.setattr(Knowledge, "is_complete", lambda *_: True)
    for _ in range(400):
        time["s"] += 0.1
        lagging.node.step()
    assert any(isinstance(sent, PreVote) for _, sent in lagging.transport.sent), "without the guard it would"
