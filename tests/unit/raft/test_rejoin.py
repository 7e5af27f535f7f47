"""A node that lost its disk: its old acknowledgements are gone, so its vote must not count until it has caught up."""

import asyncio
import shutil
from pathlib import Path

import msgspec
import pytest

from tests.unit.raft.members import (
    Member,
    cluster,
    leader_of,
    make_members,
    message,
    propose_until_accepted,
    put_topic,
    same_state,
)
from tests.unit.raft.test_node import unanswered
from tests.unit.raft.test_transport import until

SEVERAL_ELECTIONS_S = 3.0
"""Three times the longest election timeout of these clusters."""


async def wipe(member: Member) -> None:
    await member.stop()
    shutil.rmtree(member.directory)
    member.config = msgspec.structs.replace(member.config, incarnation=member.config.incarnation + "+")


async def no_leader_appears(members: list[Member]) -> bool:
    try:
        async with asyncio.timeout(SEVERAL_ELECTIONS_S):
            await leader_of(members)
    except TimeoutError:
        return True
    return False


async def test_first_election_needs_every_node(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    members = make_members(3, tmp_path)
    try:
        for member in members[:2]:
            await member.start()
        assert await no_leader_appears(members[:2])
        assert "the first election of a cluster needs every node: no vote from 3 (never heard)" in caplog.text
        await members[2].start()
        await leader_of(members)
        await members[2].stop()
        await put_topic(await leader_of(members[:2]))  # afterwards a majority is enough
    finally:
        for member in members:
            await member.stop()


async def test_wiped_node_cannot_elect_one_that_lacks_a_committed_entry(tmp_path: Path) -> None:
    async with cluster(3, tmp_path) as members:
        leader = await leader_of(members)
        await put_topic(leader)
        await until(lambda: same_state(members))
        wiped, behind = [member for member in members if member is not leader]
        await behind.stop()
        await propose_until_accepted([leader, wiped], lambda: message("precious"))
        await leader.stop()
        await wipe(wiped)

        await wiped.start()
        await behind.start()
        assert await no_leader_appears([wiped, behind]), "together they have forgotten a committed message"

        await leader.start()
        await leader_of(members)
        await until(lambda: same_state(members))
        assert [member.machine.max_offset("orders", 0) for member in members] == [1, 1, 1]
        await leader.stop()
        again = await propose_until_accepted([wiped, behind], lambda: message("precious"))
        assert again.result.results[0].duplicate, "caught up, the wiped node votes, and remembers"


async def test_wiped_node_is_filled_by_the_leader_it_already_had(tmp_path: Path) -> None:
    async with cluster(3, tmp_path) as members:
        leader = await leader_of(members)
        await put_topic(leader)
        await asyncio.gather(*(leader.node.propose(message(f"b{i}")) for i in range(20)))
        wiped = next(member for member in members if member is not leader)
        await wipe(wiped)
        term = leader.node.term
        await wiped.start()
        await until(lambda: same_state(members))
        assert leader.node.term == term
        assert wiped.machine.max_offset("orders", 0) == 20


async def test_what_a_lost_disk_acknowledged_no_longer_counts(tmp_path: Path) -> None:
    # A leader that hears of nobody while the disk is replaced steps down, and there is nothing to see then.
    async with cluster(3, tmp_path, election_timeout_ms=4_000) as members:
        leader = await leader_of(members)
        await put_topic(leader)
        await until(lambda: same_state(members))
        slow, wiped = [member for member in members if member is not leader]
        await slow.stop()
        leader.disk.hold()
        index = leader.log.last_index + 1
        pending = asyncio.ensure_future(leader.node.propose(message("b")))

        def acknowledged() -> bool:
            return leader.node.peers[wiped.config.node_id].match_index == index

        await until(acknowledged)  # and not yet durable on the leader
        await wipe(wiped)
        await wiped.start(disk_held=True)
        await until(lambda: not acknowledged())
        assert leader.node.role == "leader"
        leader.disk.release()
        assert await unanswered(pending), "only the leader's disk has it"
        pending.cancel()


async def test_a_new_disk_does_not_count_before_every_node_has_told_its_term(tmp_path: Path) -> None:
    # The silent node may lead a later term by the vote of the lost disk, which would refuse what it is sent now.
    async with cluster(3, tmp_path, election_timeout_ms=4_000) as members:
        leader = await leader_of(members)
        await put_topic(leader)
        await until(lambda: same_state(members))
        silent, wiped = [member for member in members if member is not leader]
        await silent.stop()
        await wipe(wiped)
        await wiped.start()
        pending = asyncio.ensure_future(leader.node.propose(message("b")))
        await until(lambda: wiped.log.synced_index == leader.log.last_index)
        assert await unanswered(pending), "of three disks one is away, and one has forgotten whom it voted for"
        await silent.start()
        await pending
        await until(lambda: same_state(members))
