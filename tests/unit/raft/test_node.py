"""Whole Raft nodes in one loop: real sockets, real disks, the real state machine."""

import asyncio
import contextlib
import errno
import os
from pathlib import Path

import pytest

from raft.errors import NoLeader, NotLeader, RaftError, SafetyViolation, UnknownOutcome
from raft.proposals import Applied
from store.errors import Refused
from store.log.errors import DiskFull
from tests.patience import PATIENCE_S
from tests.unit.raft.members import (
    STEADY_MS,
    Member,
    cluster,
    leader_of,
    message,
    propose_until_accepted,
    put_topic,
    same_state,
)
from tests.unit.raft.test_transport import until
from tests.unit.store.stopped_index import go_on, stop_writes

QUIET_S = 0.3
"""Seconds without an event after which we believe that it does not come: three heartbeats."""


async def test_committed_commands_reach_every_node_in_the_same_order(tmp_path: Path) -> None:
    async with cluster(3, tmp_path, STEADY_MS) as members:
        leader = await leader_of(members)
        await put_topic(leader)
        applied = await asyncio.gather(*(leader.node.propose(message(f"b{i}")) for i in range(100)))
        assert sorted(a.result.results[0].offset for a in applied) == list(range(100))
        assert all(len(a.durable_on) >= 2 for a in applied), "a majority has it fsynced"
        await until(lambda: same_state(members))
        assert [m.machine.max_offset("orders", 0) for m in members] == [100, 100, 100]


async def test_a_node_that_is_stopped_leaves_no_files_open(tmp_path: Path) -> None:
    """The library opens a pipe for each node and never closes it; `select` refuses file numbers from 1024 on."""

    async def start_and_stop() -> int:
        async with cluster(1, tmp_path) as members:
            await leader_of(members)
        return len(os.listdir("/proc/self/fd"))

    assert await start_and_stop() == await start_and_stop()


async def test_followers_name_the_leader_and_take_nothing(tmp_path: Path) -> None:
    async with cluster(3, tmp_path) as members:
        leader = await leader_of(members)
        followers = [member for member in members if member is not leader]
        await until(lambda: all(f.node.leader_id == leader.config.node_id for f in followers))
        with pytest.raises(NotLeader) as raised:
            followers[0].node.propose(message("b"))
        assert raised.value.leader_id == leader.config.node_id


async def test_refused_command_is_an_answer_and_the_node_goes_on(tmp_path: Path) -> None:
    async with cluster(1, tmp_path) as [member]:
        await leader_of([member])
        with pytest.raises(Refused, match="topic_not_found"):
            await member.node.propose(message("b"))
        await put_topic(member)
        assert member.fatal == []


async def test_stopping_leader_hands_over_and_nothing_is_lost(tmp_path: Path) -> None:
    async with cluster(3, tmp_path) as members:
        leader = await leader_of(members)
        await put_topic(leader)
        await leader.node.propose(message("before"))
        term = leader.node.term
        await leader.stop()
        successor = await leader_of(members)
        assert successor.node.term == term + 1, "one election, without waiting for a time-out"
        again = await propose_until_accepted(members, lambda: message("before"))
        assert again.result.results[0].duplicate, "appended once, also across a leader change"
        await leader.start()
        await until(lambda: same_state(members))


async def test_all_nodes_restart_with_what_was_acknowledged(tmp_path: Path) -> None:
    async with cluster(3, tmp_path) as members:
        leader = await leader_of(members)
        await put_topic(leader)
        await leader.node.propose(message("kept"))
        for member in members:
            await member.stop()
        for member in members:
            await member.start()
        await leader_of(members)
        await until(lambda: same_state(members))
        assert [m.machine.max_offset("orders", 0) for m in members] == [1, 1, 1]


async def test_minority_takes_nothing(tmp_path: Path) -> None:
    async with cluster(3, tmp_path) as members:
        leader = await leader_of(members)
        await put_topic(leader)
        for member in members:
            if member is not leader:
                await member.stop()
        pending = asyncio.ensure_future(leader.node.propose(message("alone")))
        await until(lambda: not leader.node.is_leader)  # check-quorum
        with pytest.raises(RaftError):
            await pending
        with pytest.raises(NoLeader):
            leader.node.propose(message("later"))


async def test_nothing_is_answered_once_an_entry_is_in_the_log_and_cannot_be_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader's memory changed an entry, which it finds when it sends the next one. That one may commit by another
    leader: to say that it was refused would be a lie.
    """
    async with cluster(3, tmp_path) as members:
        leader = await leader_of(members)
        await put_topic(leader)
        await until(lambda: same_state(members))

        def changed() -> None:
            raise SafetyViolation("entry 3 differs from the record that was appended")

        monkeypatch.setattr(leader.node._raft.replication, "send_appends", changed)
        before = leader.log.last_index
        pending = asyncio.ensure_future(leader.node.propose(message("b")))
        await until(lambda: bool(leader.fatal))
        assert leader.log.last_index == before + 1
        assert await unanswered(pending)
        pending.cancel()


@pytest.mark.parametrize("wheel", ["tick", "flush", "commit notice"])
async def test_a_wheel_that_fails_ends_the_node_and_does_not_stop_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wheel: str
) -> None:
    def broken(*_: object) -> int:
        raise SafetyViolation("the memory of this node has changed")

    async with cluster(1, tmp_path) as [member]:
        await leader_of([member])
        raft, pending = member.node._raft, []
        if wheel == "tick":
            monkeypatch.setattr(raft, "pause_s", broken)
        elif wheel == "flush":
            monkeypatch.setattr(member.node._proposals, "_stamp_ms", broken)
            pending = [asyncio.ensure_future(member.node.propose(message("b")))]
        else:
            monkeypatch.setattr(raft.replication, "awaits_word_of", broken)
            member.node._commit_notice._send_of(raft.state.commit_index)
            assert member.fatal, "without a tick, which would find it too"
        await until(lambda: bool(member.fatal))
        assert member.fatal == ["SafetyViolation: the memory of this node has changed"]
        for each in pending:
            with pytest.raises(SafetyViolation):
                await each


async def unanswered(pending: "asyncio.Future[Applied]") -> bool:
    done, _ = await asyncio.wait([pending], timeout=QUIET_S)
    return not done


async def test_leader_does_not_count_its_own_copy_before_it_is_synced(tmp_path: Path) -> None:
    """Row 8: both followers have the entry on disk, the leader has not."""
    async with cluster(3, tmp_path) as members:
        leader = await leader_of(members)
        await put_topic(leader)
        leader.disk.hold()
        pending = asyncio.ensure_future(leader.node.propose(message("b")))
        followers = [m for m in members if m is not leader]
        await until(lambda: all(m.log.synced_index == leader.log.last_index for m in followers))
        assert await unanswered(pending)
        assert leader.node.commit_index < leader.log.last_index
        leader.disk.release()
        assert leader.config.node_id in (await pending).durable_on


async def test_followers_do_not_acknowledge_before_they_have_synced(tmp_path: Path) -> None:
    async with cluster(3, tmp_path) as members:
        leader = await leader_of(members)
        await put_topic(leader)
        followers = [m for m in members if m is not leader]
        await until(lambda: same_state(members))
        for follower in followers:
            follower.disk.hold()
        pending = asyncio.ensure_future(leader.node.propose(message("b")))
        await until(lambda: all(m.log.last_index == leader.log.last_index for m in followers))
        assert await unanswered(pending)
        followers[0].disk.release()
        assert (await pending).durable_on == tuple(sorted((leader.config.node_id, followers[0].config.node_id)))
        followers[1].disk.release()  # its vote would wait for its disk, and with it this loop


async def test_single_node_waits_for_its_own_sync(tmp_path: Path) -> None:
    async with cluster(1, tmp_path) as [member]:
        await leader_of([member])
        await put_topic(member)
        member.disk.hold()
        pending = asyncio.ensure_future(member.node.propose(message("b")))
        assert await unanswered(pending)
        member.disk.release()
        assert (await pending).durable_on == (1,)


async def test_failed_sync_stops_the_node_with_the_reason(tmp_path: Path) -> None:
    async with cluster(3, tmp_path) as members:
        leader = await leader_of(members)
        await put_topic(leader)
        leader.disk.broken = True
        pending = asyncio.ensure_future(leader.node.propose(message("b")))
        await until(lambda: leader.fatal != [])
        assert "cannot be synced" in leader.fatal[0]
        assert "input/output error" in leader.fatal[0]
        assert await unanswered(pending), "what may not be on disk is not acknowledged"
        pending.cancel()
        others = [member for member in members if member is not leader]
        applied = await propose_until_accepted(others, lambda: message("b"))
        assert leader.config.node_id not in applied.durable_on


async def test_full_disk_while_committed_entries_are_applied_stops_the_node_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing could be applied after that: the state would lack the effect of the entry."""
    async with cluster(1, tmp_path) as members:
        member = members[0]
        leader = await leader_of(members)
        await put_topic(leader)

        def is_full(*_: object, **__: object) -> None:
            raise DiskFull("flush", "index", errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(member.index, "flush", is_full)
        monkeypatch.setattr(member.machine, "_flush_entries", 1)
        sending = asyncio.ensure_future(leader.node.propose(message("b")))
        await until(lambda: bool(member.fatal))
        assert "cannot be applied here: flush index: No space left" in member.fatal[0]
        sending.cancel()
        monkeypatch.undo()


async def test_slow_disk_is_not_a_dead_node(tmp_path: Path) -> None:
    """Heartbeats are answered while a sync hangs, so leadership does not flap."""
    async with cluster(3, tmp_path, election_timeout_ms=4_000) as members:  # this process may stand for seconds
        leader = await leader_of(members)
        await put_topic(leader)
        term = leader.node.term
        for member in members:
            member.disk.hold()
        pending = asyncio.ensure_future(leader.node.propose(message("b")))
        done, _ = await asyncio.wait([pending], timeout=1.5 * leader.config.election_timeout_ms / 1000)
        assert not done
        assert (leader.node.term, leader.node.is_leader) == (term, True)
        for member in members:
            member.disk.release()
        await pending


async def test_leader_whose_disk_hangs_lets_another_lead(tmp_path: Path) -> None:
    async with cluster(3, tmp_path) as members:
        leader = await leader_of(members)
        await put_topic(leader)
        leader.disk.hold()
        pending = asyncio.ensure_future(leader.node.propose(message("b")))
        others = [member for member in members if member is not leader]
        applied = await propose_until_accepted(others, lambda: message("b"))
        assert applied.result.results[0].offset == 0
        with pytest.raises(UnknownOutcome):
            await pending
        leader.disk.release()
        await until(lambda: same_state(members))
        assert leader.machine.max_offset("orders", 0) == 1


async def test_nodes_that_stop_together_do_not_hand_leadership_to_and_fro(tmp_path: Path) -> None:
    """Found by chaos (seed 77): two stopping nodes made each other leader sixty times, till their time was over."""
    async with cluster(3, tmp_path) as members:
        leader = await leader_of(members)
        term = leader.node.term
        follower, other = (member for member in members if member is not leader)
        await other.stop()  # so that there is nobody else to take over
        leader.running = follower.running = False
        await asyncio.gather(leader.node.stop(), hand_back(follower))
        assert max(leader.node.term, follower.node.term) == term + 1
        leader.log.close()
        follower.log.close()
        leader.index.close()
        follower.index.close()


async def hand_back(member: Member) -> None:
    """Stop the node as soon as it could hand leadership back."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE_S):
            while not member.node.is_leader:
                await asyncio.sleep(0)
    await member.node.stop()


async def test_followers_hear_of_a_commit_without_waiting_for_a_heartbeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(3, tmp_path) as members:
        leader = await leader_of(members)
        await put_topic(leader)
        await until(lambda: same_state(members))
        term = leader.node.term
        raft = leader.node._raft
        monkeypatch.setattr(raft.state.library, "schedule_heartbeat", lambda: None)
        raft.state.library._SyncObj__newAppendEntriesTime = float("inf")  # there will be none
        await leader.node.propose(message("b"))
        await until(lambda: same_state(members))
        assert (leader.node.term, leader.node.is_leader) == (term, True), "not from another leader"


async def test_no_heartbeat_is_sent_for_a_commit_that_an_append_has_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(3, tmp_path) as members:
        leader = await leader_of(members)
        await put_topic(leader)
        raft = leader.node._raft
        commit_index = raft.state.commit_index
        await until(lambda: same_state(members) and not raft.replication.awaits_word_of(commit_index))
        sent: list[int] = []
        monkeypatch.setattr(raft.replication, "send_heartbeats", lambda: sent.append(commit_index))
        leader.node._commit_notice._send_of(commit_index)
        assert sent == []


async def test_a_node_that_is_removed_while_it_runs_says_so(tmp_path: Path) -> None:
    async with cluster(3, tmp_path) as members:
        leader = await leader_of(members)
        removed = next(each for each in members if each is not leader)
        await until(lambda: leader.node.is_caught_up(removed.node.node_id))
        await until(lambda: leader.node.commit_index >= leader.node.configuration_index > 0)  # of a new cluster's level
        await leader.node.propose_configuration(lambda current: current.without(removed.node.node_id))
        await until(lambda: removed.node.removed_by is not None)
        assert removed.node.leader_id is None


def deaf_to(member: Member, peer: int) -> None:
    transport = member.node._transport
    deliver = transport._deliver
    transport._deliver = lambda node, *rest: None if node.id == peer else deliver(node, *rest)  # type: ignore[method-assign]


async def test_a_removal_that_never_commits_cuts_no_node_off(tmp_path: Path) -> None:
    """Node 1 appends the removal of node 2 and loses its link to 3, which is elected, writes, and hands over to 2."""
    async with cluster(3, tmp_path) as members:
        one = await leader_of(members)
        two, three = (each for each in members if each is not one)
        await put_topic(one)
        await until(lambda: same_state(members))
        await until(lambda: one.node.is_caught_up(two.node.node_id))
        deaf_to(one, three.node.node_id)
        deaf_to(three, one.node.node_id)
        two.node._raft.election._retired = True  # so that 3 is elected
        removal = one.node.propose_configuration(lambda current: current.without(two.node.node_id))
        removal.add_done_callback(lambda future: future.exception())
        await until(lambda: three.node.is_leader)
        for number in range(3):
            await three.node.propose(message(f"b{number}"))
        two.node._raft.election._retired = False
        await three.stop()
        applied = await propose_until_accepted([one, two], lambda: message("after"))
        assert applied.result.results[0].offset == 3


async def test_a_node_whose_index_takes_no_writes_goes_on_with_everything_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RocksDB stops writes while its flushes do not keep up: the loop stood, and with it votes and heartbeats."""
    async with cluster(3, tmp_path) as members:
        leader = await leader_of(members)
        await put_topic(leader)
        await until(lambda: same_state(members))
        follower = next(each for each in members if each is not leader)
        stop_writes(follower.index)
        applied_before = follower.node.applied_index
        for number in range(5):
            await leader.node.propose(message(f"b{number}"))
        await until(lambda: follower.log.synced_index == leader.log.last_index)
        await until(lambda: follower.node.commit_index == leader.node.commit_index)
        assert follower.node.applied_index == applied_before
        assert follower.node.disks.report().sync_ms is not None
        assert leader.node.is_leader
        steps, step = [0], follower.node._raft.step

        def counted() -> None:
            steps[0] += 1
            step()

        monkeypatch.setattr(follower.node._raft, "step", counted)
        monkeypatch.setattr(follower.node, "_go_on_soon", lambda: pytest.fail("it looks again with each turn"))
        await until(lambda: steps[0] >= 3)
        monkeypatch.undo()
        go_on(follower.index)
        await until(lambda: same_state(members))


async def test_a_follower_tells_once_that_it_follows_somebody(tmp_path: Path) -> None:
    async with cluster(3, tmp_path) as members:
        leader = await leader_of(members)
        follower = next(member for member in members if member is not leader)
        await follower.stop()
        await follower.start()
        leaders: list[int | None] = []
        follower.node.on_leader(lambda: leaders.append(follower.node.leader_id))
        await until(lambda: bool(leaders))
        await put_topic(leader)
        await until(lambda: same_state(members))
        assert leaders == [leader.config.node_id]
