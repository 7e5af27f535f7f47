"""Nodes that are behind the kept log are filled by a snapshot: whole nodes in one loop, real sockets, real disks."""

import logging
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import msgspec
import pytest

import raft.snapshots.sender
import raft.snapshots.snapshots
import store.snapshots.snapshot
from raft.config import RaftConfig
from raft.events import NodeEvents
from raft.messages import Append, Message, SnapshotBegin, SnapshotChunk, SnapshotReject
from raft.node import RaftNode
from raft.storage import Storage
from store.index.index import Index
from store.log.commit_log import CommitLog
from store.log.differs import Difference
from store.log.hard_state import HardState
from store.log.watermarks import Watermarks
from store.snapshots.install import IndexDirectories, SnapshotStore, finish_install
from store.state.machine import StateMachine
from tests.unit.raft.members import (
    Member,
    leader_of,
    make_members,
    message,
    propose_until_accepted,
    put_topic,
    same_state,
)
from tests.unit.raft.test_transport import until

SEGMENT_BYTES = 1 << 12
BODY = b"x" * 500


class SnapshotMember(Member):
    """A node with small segments, which starts again when it has taken a snapshot."""

    installed = 0

    async def start(self, *, disk_held: bool = False) -> None:
        self.directory.mkdir(exist_ok=True)
        places = IndexDirectories(str(self.directory))
        if finish_install(self.disk, str(self.directory), places) is not None:
            self.installed += 1
        self.index = Index.open(str(self.directory / "index"))
        self.machine = StateMachine(self.index)
        self.log = CommitLog.open(
            self.disk,
            str(self.directory / "log"),
            segment_bytes=SEGMENT_BYTES,
            cache_bytes=0,
            applied_index=self.machine.applied_index,
        )
        self.hard_state = HardState(self.disk, str(self.directory / "hard_state"))
        self.watermarks = Watermarks.open(self.disk, str(self.directory))
        self.node = RaftNode(
            self.config,
            Storage(
                self.log,
                self.hard_state,
                self.machine,
                self.watermarks,
                SnapshotStore(self.disk, str(self.directory), self.index, places),
            ),
            NodeEvents(self.fatal.append, on_installed=self.reopen),
        )
        await self.node.start()
        self.running = True

    async def replace_disk(self) -> None:
        await self.stop()
        shutil.rmtree(self.directory)
        incarnation = f"{self.config.incarnation}+"
        self.config = msgspec.structs.replace(self.config, incarnation=incarnation)

    def cut(self) -> None:
        """Remove from the log all that retention could."""
        self.index.flush()
        self.log.drop_before(min(self.machine.applied_index, self.node._raft.replication.needed_from()))


def members_of(tmp_path: Path, retain_behind_bytes: int) -> list[SnapshotMember]:
    def config(member: Member) -> RaftConfig:
        return msgspec.structs.replace(
            member.config, retain_behind_bytes=retain_behind_bytes, incarnation=f"disk {member.config.node_id}"
        )

    return [SnapshotMember(config(member), member.directory) for member in make_members(3, tmp_path)]


@asynccontextmanager
async def cluster(tmp_path: Path, retain_behind_bytes: int = 1) -> AsyncIterator[list[SnapshotMember]]:
    members = members_of(tmp_path, retain_behind_bytes)
    try:
        for member in members:
            await member.start()
        yield members
    finally:
        for member in members:
            await member.stop()


async def fill(members: list[SnapshotMember], first: int, count: int) -> None:
    for number in range(first, first + count):
        await propose_until_accepted(list(members), lambda number=number: message(f"b{number}", BODY))  # type: ignore[misc]


async def leader_with_topic(members: list[SnapshotMember]) -> SnapshotMember:
    leader = await leader_of(list(members))
    await put_topic(leader)
    assert isinstance(leader, SnapshotMember)
    return leader


def cut_all(members: list[SnapshotMember]) -> None:
    """Cut the log of every running member, so that the next leader's log does not go back to the beginning either."""
    for member in members:
        if member.running:
            member.cut()


async def one_behind(members: list[SnapshotMember]) -> tuple[SnapshotMember, SnapshotMember]:
    """Return the leader, and a stopped node that lacks what no log has any more."""
    leader = await leader_with_topic(members)
    away = other_than(members, leader)
    await away.stop()
    await fill(members, 0, 60)
    cut_all(members)
    return leader, away


def pins_of(members: list[SnapshotMember]) -> list[int | None]:
    """Return the first index that each node keeps for peers that are sent a snapshot."""
    return [member.node._raft.snapshots.pinned_from() for member in members]


def other_than(members: list[SnapshotMember], leader: SnapshotMember) -> SnapshotMember:
    return next(member for member in members if member is not leader)


async def test_a_node_that_was_away_for_long_is_sent_the_state(tmp_path: Path) -> None:
    async with cluster(tmp_path) as members:
        leader, away = await one_behind(members)
        assert leader.log.base.index > 20
        await away.start()
        await until(lambda: away.installed == 1 and same_state(list(members)))
        assert away.log.first_index > 1, "its log begins where the leader's did then"
        assert away.machine.max_offset("orders", 0) == 60
        await fill(members, 60, 5)
        await until(lambda: same_state(list(members)))
        assert [member.fatal for member in members] == [[], [], []]


async def test_a_node_that_differs_keeps_its_copy_for_whoever_looks_for_the_cause(tmp_path: Path) -> None:
    async with cluster(tmp_path) as members:
        _, away = await one_behind(members)
        await away.start()
        away.node.replicas.difference = Difference(2, 1, records=True)
        await until(lambda: any(each.node.snapshot_counts.aborted for each in members if each is not away))
        assert away.installed == 0
        assert away.log.first_index == 1
        assert [member.fatal for member in members] == [[], [], []]


async def test_a_node_that_refuses_the_state_holds_no_log_up_and_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "raft.snapshots")

    def said(text: str) -> int:
        return sum(text in record.getMessage() for record in caplog.records)

    async with cluster(tmp_path) as members:
        _, away = await one_behind(members)
        sending = f"sending node {away.config.node_id} "
        await away.start()
        away.node.replicas.difference = Difference(2, 1, records=True)
        await until(lambda: sum(each.node.snapshot_counts.aborted for each in members) >= 5)
        leaderships = sum(each.node.election.won for each in members)  # on a busy machine more than one
        assert leaderships < 5
        assert 1 <= said("it refuses") <= leaderships
        begun = said(sending)
        assert 1 <= begun <= leaderships
        await until(lambda: pins_of(members) == [None, None, None])
        await away.replace_disk()
        await away.start()
        await until(lambda: away.installed == 1)
        assert said(sending) > begun, "a rebuilt copy is another matter"


async def test_a_node_that_takes_nothing_of_the_state_holds_no_log_up_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transfer that begins again has made no progress."""
    monkeypatch.setattr(raft.snapshots.sender, "ABANDON_TIMEOUTS", 1)
    monkeypatch.setattr(raft.snapshots.snapshots, "PIN_TIMEOUTS", 4)
    async with cluster(tmp_path) as members:
        _, away = await one_behind(members)
        await away.start()
        monkeypatch.setattr(away.node._raft.snapshots, "on_message", lambda peer, message: None)
        await until(lambda: pins_of(members) != [None, None, None])
        await until(lambda: pins_of(members) == [None, None, None])
        assert sum(each.node.snapshot_counts.begun for each in members) > 1


async def test_a_replaced_disk_is_filled_and_votes_again(tmp_path: Path) -> None:
    async with cluster(tmp_path) as members:
        leader = await leader_with_topic(members)
        replaced = other_than(members, leader)
        await fill(members, 0, 40)
        await replaced.replace_disk()
        cut_all(members)
        assert leader.log.base.index > 1
        await replaced.start()
        assert not replaced.hard_state.voter
        await until(lambda: replaced.installed == 1 and same_state(list(members)))
        await fill(members, 40, 1)
        await until(lambda: replaced.hard_state.voter)
        await leader.stop()
        await fill(members, 41, 1)  # the two that are left elect one of them


async def test_a_node_that_lags_little_holds_the_log_up(tmp_path: Path) -> None:
    async with cluster(tmp_path, retain_behind_bytes=1 << 20) as members:
        leader = await leader_with_topic(members)
        away = other_than(members, leader)
        await until(lambda: same_state(list(members)))
        had = away.log.last_index
        await away.stop()
        await fill(members, 0, 60)
        now_leading = await leader_of(list(members))
        now_leading.cut()  # type: ignore[attr-defined]
        assert now_leading.log.base.index <= had
        await away.start()
        await until(lambda: same_state(list(members)))
        assert away.installed == 0

        def is_cut() -> bool:
            cut_all(members)
            return all(member.log.base.index > 20 for member in members)

        await until(is_cut)  # its acknowledgement may still be on the way


async def test_the_next_leader_begins_the_snapshot_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store.snapshots.snapshot, "PORTION_BYTES", 100)
    async with cluster(tmp_path) as members:
        _, away = await one_behind(members)
        await away.start()
        # Not always the leader of before: on a busy machine another may have been elected meanwhile.
        await until(lambda: any(member.node.snapshot_counts.begun for member in members))
        sender = next(member for member in members if member.node.snapshot_counts.begun)
        await sender.stop()
        survivors = [member for member in members if member is not sender]
        await until(lambda: away.installed >= 1 and same_state(list(survivors)))
        await fill(members, 60, 1)


async def test_a_leader_that_was_deposed_is_told_so_and_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients would be sent to it, and a new disk would count its vote as given to it."""
    async with cluster(tmp_path) as members:
        deposed = await leader_with_topic(members)
        term = deposed.node.term
        await deposed.stop()
        survivors = [member for member in members if member is not deposed]
        leader = await leader_of(list(survivors))
        follower = next(member for member in survivors if member is not leader)
        await until(lambda: follower.node.leader_id == leader.config.node_id)
        handlers, sent = follower.node._raft, list[tuple[int, object]]()
        monkeypatch.setattr(handlers.sender, "send", lambda peer, answer: sent.append((peer, answer)))
        handlers.on_message(deposed.config.node_id, SnapshotBegin(term, 7, 4096, 90, term, 99, "00", "2", 10))
        assert sent == [(deposed.config.node_id, SnapshotReject(handlers.state.term, 7, "there is a later leader"))]
        assert follower.node.leader_id == leader.config.node_id
        assert follower.node.receiving_percent is None


async def test_what_is_lost_on_the_way_is_sent_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store.snapshots.snapshot, "PORTION_BYTES", 1000)
    monkeypatch.setattr(raft.snapshots.sender, "WINDOW_MESSAGES", 3)
    async with cluster(tmp_path) as members:
        _, away = await one_behind(members)
        seen = [0]

        def lossy(send: Callable[[int, Message | Append], bool], peer: int, sent: Message | Append) -> bool:
            if isinstance(sent, SnapshotChunk):
                seen[0] += 1
                if seen[0] in (1, 5, 6):
                    return True
            return send(peer, sent)

        for member in (each for each in members if each.running):
            send = partial(lossy, member.node._transport.send)
            monkeypatch.setattr(member.node._transport, "send", send)
            member.node._raft.sender._transport_send = send
        await away.start()
        await until(lambda: away.installed == 1 and same_state(list(members)))
        assert seen[0] > 6
