"""A cluster of whole nodes in one loop, each with its directory, for tests."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from crc32c import crc32c

from raft.config import PeerAddress, RaftConfig
from raft.errors import RaftError
from raft.events import NodeEvents
from raft.node import RaftNode
from raft.proposals import Applied
from raft.storage import Storage
from store.commands.entry import Proposal
from store.commands.messages import BatchHeader, Produce
from store.commands.topics import PutTopic
from store.index.index import Index
from store.log.commit_log import CommitLog
from store.log.differs import DiffersMark
from store.log.hard_state import HardState
from store.log.watermarks import Watermarks
from store.state.machine import StateMachine
from tests.patience import PATIENCE_S
from tests.unit.raft.held_disk import HeldDisk
from tests.unit.raft.test_transport import free_port, until

ELECTION_TIMEOUT_MS = 800
STEADY_MS = 4_000
"""Election timeout of clusters whose leader no test ends: a busy machine is not to end it either."""
"""All nodes of a test are in one loop, on a machine that may be busy: who leads should go on leading."""


class Member:
    """One node with a directory of its own. It can be stopped and started again."""

    def __init__(self, config: RaftConfig, directory: Path) -> None:
        self.config = config
        self.directory = directory
        self.disk = HeldDisk()
        self.fatal: list[str] = []
        self.running = False
        self.reopening: asyncio.Task[None] | None = None

    async def start(self, *, disk_held: bool = False) -> None:
        """Start the node. With `disk_held`, no write after the log was opened becomes durable until the disk is
        released.
        """
        self.directory.mkdir(exist_ok=True)
        self.index = Index.open(str(self.directory / "index"))
        self.machine = StateMachine(self.index)
        self.log = CommitLog.open(
            self.disk,
            str(self.directory / "log"),
            segment_bytes=1 << 20,
            cache_bytes=1 << 16,
            applied_index=self.machine.applied_index,
        )
        if disk_held:
            self.disk.hold()
        hard_state = HardState(self.disk, str(self.directory / "hard_state"))
        self.watermarks = Watermarks.open(self.disk, str(self.directory))
        self.node = RaftNode(
            self.config,
            Storage(
                self.log,
                hard_state,
                self.machine,
                self.watermarks,
                differs=DiffersMark(self.disk, str(self.directory)),
            ),
            NodeEvents(self.fatal.append, on_forgotten=self.begin_anew),
        )
        await self.node.start()
        self.running = True

    async def stop(self) -> None:
        if self.reopening is not None:
            await self.reopening
        await self._stop()

    async def _stop(self) -> None:
        if self.running:
            self.running = False
            self.disk.release()
            await self.node.stop()
            if not self.fatal:
                self.log.close()
            self.watermarks.close()
            self.index.close()

    def reopen(self) -> None:
        """Stop and start the node, as the broker does when the node asks for that."""

        async def again() -> None:
            await self._stop()
            await self.start()

        self.reopening = asyncio.create_task(again())

    def begin_anew(self) -> None:
        """Start the node with a new incarnation, as the broker does when the disk was put back."""
        self.config = msgspec.structs.replace(self.config, incarnation=self.config.incarnation + "+")
        self.reopen()


def make_members(count: int, tmp_path: Path, election_timeout_ms: int = ELECTION_TIMEOUT_MS) -> list[Member]:
    addresses = {node: PeerAddress("127.0.0.1", free_port()) for node in range(1, count + 1)}
    return [
        Member(
            RaftConfig(
                cluster_id="test",
                node_id=node,
                listen=address,
                peers={peer: other for peer, other in addresses.items() if peer != node},
                election_timeout_ms=election_timeout_ms,
                heartbeat_ms=100,
            ),
            tmp_path / str(node),
        )
        for node, address in addresses.items()
    ]


@asynccontextmanager
async def cluster(
    count: int, tmp_path: Path, election_timeout_ms: int = ELECTION_TIMEOUT_MS
) -> AsyncIterator[list[Member]]:
    members = make_members(count, tmp_path, election_timeout_ms)
    try:
        for member in members:
            await member.start()
        yield members
    finally:
        for member in members:
            await member.stop()


async def leader_of(members: list[Member]) -> Member:
    def leaders() -> list[Member]:
        return [member for member in members if member.running and member.node.is_leader]

    await until(lambda: len(leaders()) == 1)
    return leaders()[0]


def message(batch_id: str, body: bytes = b"x") -> Proposal:
    return Proposal(Produce((BatchHeader("orders", 0, 1, batch_id, None, crc32c(body), len(body)),)), (body,))


async def put_topic(leader: Member) -> Applied:
    return await leader.node.propose(Proposal(PutTopic("orders", 1)))


async def propose_until_accepted(members: list[Member], proposal: Callable[[], Proposal]) -> Applied:
    """Propose to whichever node leads until one accepts, with the same id, as the SDK does."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await (await leader_of(members)).node.propose(proposal())
            except RaftError:
                await asyncio.sleep(0.01)


def same_state(members: list[Member]) -> bool:
    states = {(m.machine.applied_index, m.machine.state_hash) for m in members if m.running}
    return len(states) == 1
