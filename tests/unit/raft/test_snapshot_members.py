"""A node that joins a cluster whose log begins late learns the members with the state that it gets."""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

import msgspec

from raft.config import PeerAddress, RaftConfig
from raft.errors import RaftError
from raft.membership import Configuration
from raft.membership import Member as ClusterMember
from tests.patience import PATIENCE_S
from tests.unit.raft.members import leader_of, same_state
from tests.unit.raft.test_snapshots import SnapshotMember, cluster, fill, leader_with_topic
from tests.unit.raft.test_transport import free_port, until

NEW = 4


async def change(
    members: list[SnapshotMember], to: Callable[[Configuration], Configuration], done: Callable[[Configuration], bool]
) -> None:
    """Propose the change until it is done, whoever leads."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            node = (await leader_of(list(members))).node
            if done(node.configuration) and node.configuration_index <= node.commit_index:
                return
            with contextlib.suppress(RaftError):
                await node.propose_configuration(to)
            await asyncio.sleep(0.01)


def new_node(like: RaftConfig) -> RaftConfig:
    listen = PeerAddress("127.0.0.1", free_port())
    return msgspec.structs.replace(like, node_id=NEW, listen=listen, peers={}, joins=True, incarnation=f"disk {NEW}")


async def test_who_gets_a_snapshot_knows_the_cluster_and_becomes_a_voter(tmp_path: Path) -> None:
    async with cluster(tmp_path) as members:
        leader = await leader_with_topic(members)
        new = SnapshotMember(new_node(leader.config), tmp_path / str(NEW))
        listen = new.config.listen
        learner = ClusterMember(NEW, listen.host, listen.port, "http://new", voter=False)
        await change(members, lambda now: now.with_learner(learner), lambda now: now.find(NEW) is not None)
        await fill(members, 0, 60)
        await until(lambda: same_state(list(members)))
        for member in members:
            member.cut()
        members.append(new)
        await new.start()
        await until(lambda: new.installed == 1 and same_state(list(members)))
        leader_node = (await leader_of(list(members))).node
        assert new.log.base.index > leader_node.configuration_index, "the record is in no log any more"
        assert new.node.configuration == leader_node.configuration
        assert new.node.configuration_index == leader_node.configuration_index
        await fill(members, 60, 1)
        await until(lambda: any(member.node.is_caught_up(NEW) for member in members))
        await change(members, lambda now: now.with_voter(NEW), lambda now: NEW in now.voters)
        await fill(members, 61, 1)
        await until(lambda: same_state(list(members)))
        await new.stop()
        await new.start()
        await until(lambda: NEW in new.node.configuration.voters and same_state(list(members)))
        assert [member.fatal for member in members] == [[], [], [], []]
