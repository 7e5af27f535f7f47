"""A node that did nothing for a while, or has much to catch up with, holds up no node, least of all itself."""

import asyncio
import shutil
from pathlib import Path

import pytest

from raft.errors import NoLeader
from raft.journal import Journal
from raft.messages import Append, AppendReply
from tests.unit.raft.members import cluster, leader_of, message, put_topic, same_state
from tests.unit.raft.test_transport import until


async def test_a_follower_that_answers_hundreds_of_times_at_once_is_sent_what_it_lacks_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answers piled up while the leader stood still. Each of them once brought as many entries as an append
    holds.
    """
    async with cluster(3, tmp_path) as members:
        leader = await leader_of(members)
        await put_topic(leader)
        await until(lambda: same_state(members))
        follower, other = [member for member in members if member is not leader]
        for member in (follower, other):
            member.disk.hold()
        raft, peer = leader.node._raft, follower.config.node_id
        acked = raft.replication.acked(peer)
        pending = []
        for last_index in (acked + 1, acked + 2, acked + 3):
            pending.append(asyncio.ensure_future(leader.node.propose(message(f"b{last_index}"))))
            await asyncio.sleep(0)  # an entry each
            assert leader.log.last_index == last_index
        appends: list[int] = []
        send = raft.sender.send

        def watched_send(to: int, sent: object) -> None:
            if to == peer and isinstance(sent, Append) and sent.entries:
                appends.append(len(sent.entries))
            send(to, sent)

        monkeypatch.setattr(raft.sender, "send", watched_send)
        refusal = AppendReply(raft.state.term, False, 0, acked + 1, acked + 1, True, True)
        deliver = leader.node._transport._onMessageReceivedCallback
        for _ in range(600):
            deliver(leader.node._transport._node(peer), refusal)
        assert appends == []
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(appends) == 1
        for member in (follower, other):
            member.disk.release()
        await asyncio.gather(*pending)


async def test_a_leader_that_stood_for_an_election_timeout_is_none_when_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing that it does first counts: earlier answers would look as if its followers had just spoken."""
    async with cluster(3, tmp_path) as members:
        leader = await leader_of(members)
        await put_topic(leader)
        raft, term = leader.node._raft, leader.node.term
        monkeypatch.setattr(raft.stalls, "_awake_at", raft.stalls._awake_at - 1.0)
        assert not leader.node.is_leader, "it reads nothing as a leader"
        with pytest.raises(NoLeader):
            await leader.node.propose(message("b"))
        assert leader.node.role != "leader"
        assert raft.state.log.last_term == term, "nothing was appended"
        leader = await leader_of(members)
        assert leader.node.term > term
        await leader.node.propose(message("b"))


@pytest.mark.parametrize("work_ms", [0, 3_600_000])
async def test_the_index_is_brought_to_disk_after_some_work_of_apply(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work_ms: int
) -> None:
    """A restart applies again the entries that were not: that must not take long, whatever entries cost."""
    monkeypatch.setattr("raft.applying.FLUSH_WORK_MS", work_ms)
    async with cluster(1, tmp_path) as [member]:
        await leader_of([member])
        await put_topic(member)

        def count(name: str) -> int:
            return int(member.index._database.property_int_value(f"rocksdb.{name}") or 0)

        if not work_ms:
            await until(lambda: count("num-immutable-mem-table") == 0)
            if count(
                "num-entries-active-mem-table"
            ):  # applied while an earlier flush was under way: the next one takes it
                await member.node.propose(message("a"))
            await until(lambda: count("num-entries-active-mem-table") == 0)
        else:
            assert count("num-entries-active-mem-table") > 0


async def test_a_new_leader_does_not_walk_through_its_log_to_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No entry is known to be committed on nodes whose indexes are rebuilt. A walk through the log held the loop in
    every tick.
    """
    async with cluster(3, tmp_path) as members:
        leader = await leader_of(members)
        await put_topic(leader)
        for number in range(100):
            await leader.node.propose(message(f"b{number}"))
        last_index = leader.log.last_index
        for member in members:
            await member.stop()
            shutil.rmtree(member.directory / "index")
        looked_at: list[int] = []
        item = Journal._item

        def watched_item(journal: Journal, index: int) -> tuple[bytes, int, int]:
            looked_at.append(index)
            return item(journal, index)

        monkeypatch.setattr(Journal, "_item", watched_item)
        for member in members:
            await member.start()
        await leader_of(members)
        await until(lambda: same_state(members))
        assert members[0].machine.applied_index > last_index >= 100
        assert sum(index not in (0, 1) for index in looked_at) < 30
