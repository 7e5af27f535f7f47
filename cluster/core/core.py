"""What every handler needs of the node: propose a command, read blocks, say who leads."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final, NoReturn, cast

from cluster.budgets import time_shares
from cluster.budgets.capacity import require_capacity
from cluster.budgets.client_budget import ByteBudget
from cluster.budgets.connections import Connections, connections_max
from cluster.budgets.request_deadline import remaining_s
from cluster.budgets.time_shares import Client, TimeShares
from cluster.budgets.turns import BODY_TURN_BYTES, PAGE_TURN_BYTES, REBALANCED_AT_ONCE, Turns
from cluster.core.background import Background
from cluster.core.log_reads import LogReads
from cluster.core.long_poll import AppliedWaiters
from cluster.limits import RESPONSE_BYTES_MAX
from cluster.metrics import Metrics
from cluster.problems import Problem
from cluster.process.config import NodeConfig
from raft.clock import Clock
from raft.errors import NoLeader, NotLeader, Overloaded, UnknownOutcome
from raft.membership import Configuration
from raft.node import RaftNode
from raft.proposals import Applied, Proposed
from store.commands.entry import Command, Proposal
from store.commands.groups import DeleteGroup
from store.commands.retention import ExpireMessages, ReleaseMessages
from store.commands.topics import DeleteTopic, PutTopic
from store.commands.transactions import Decide
from store.log.commit_log import CommitLog
from store.state.machine import StateMachine

SOUGHT_BYTES_MIN: Final = 16 * 1024
"""Blocks that were sent before are sought from this size on: less is replicated again as quickly as it is found."""
SOUGHT_BLOCKS_MAX: Final = 100
"""Each takes up to 10 µs of the loop."""
ADMINISTRATION_BYTES: Final = 1024 * 1024
"""Of requests' bodies, beside what other requests may hold."""


def request_bytes_max(config: NodeConfig) -> int:
    """Bytes of requests' bodies that a node holds at a time: a request of the largest size fits one address' share."""
    fits_largest = -(-config.max_request_bytes * 100 // config.address_share_percent)
    return max(config.max_in_flight_bytes, fits_largest) + ADMINISTRATION_BYTES


class Core:
    """One running node, as the handlers see it. Loop-only."""

    def __init__(
        self,
        config: NodeConfig,
        raft: RaftNode,
        state: StateMachine,
        log: CommitLog,
        waiters: AppliedWaiters,
        metrics: Metrics,
        reads: LogReads,
        *,
        on_fatal: Callable[[str], None],
        clock: Clock,
        id_prefix: str,
    ) -> None:
        """`id_prefix` begins every id this process makes: nobody else's ever does."""
        self.config = config
        self.raft = raft
        self.state = state
        self.log = log
        self.waiters = waiters
        self.metrics = metrics
        self.reads = reads
        self._clock = clock
        share_percent = config.address_share_percent
        self.connections = Connections(
            connections_max(config.max_connections), share_percent, config.request_timeout_ms / 1000
        )
        self.request_budget = ByteBudget(
            request_bytes_max(config), share_percent, "requests are in memory", ADMINISTRATION_BYTES
        )
        self.time_shares = TimeShares(config.address_time_percent)
        metrics.add_gauges(self.time_shares.counters)
        self.background = Background()
        metrics.add_gauges(self.background.counters)
        self.body_turns = Turns(BODY_TURN_BYTES)
        self.queue_page_turns = Turns(PAGE_TURN_BYTES)
        self.log_page_turns = Turns(PAGE_TURN_BYTES)
        """Beside those of queues: a reader of the log does not keep its host's consumers waiting."""
        self.rebalance_turns = Turns(REBALANCED_AT_ONCE)
        self.response_budget = ByteBudget(
            RESPONSE_BYTES_MAX, share_percent, "responses wait to be read by their clients"
        )
        self.loop_delay_s = 0.0
        """Set by the loop watch: how late the event loop came to its last beat."""
        self._on_fatal = on_fatal
        self._id_prefix = id_prefix
        self._ids = 0

    @contextlib.asynccontextmanager
    async def turn(self, turns: Turns, key: str, size: int) -> AsyncIterator[None]:
        """Raises as `take_turn` does. The turn lasts until the block is left."""
        await self.take_turn(turns, key, size)
        try:
            yield
        finally:
            turns.give_back(key, size)

    async def take_turn(self, turns: Turns, key: str, size: int) -> None:
        """Overloaded when the turn does not come within request_timeout_ms, or before the client gives up."""
        await self._in_time(lambda: turns.take(key, size))

    @contextlib.asynccontextmanager
    async def costly(self) -> AsyncIterator[None]:
        """Raises as `begin_costly` does."""
        client = await self.begin_costly()
        try:
            yield
        finally:
            if client is not None:
                client.end()

    async def begin_costly(self) -> Client | None:
        """Wait until the client whose request is handled has come to its share of the time. `end` has to follow on it,
        if there is one. Overloaded as in `take_turn`.
        """
        client = time_shares.current()
        if client is not None:
            await self._in_time(client.begin)
        return client

    async def _in_time(self, turn: Callable[[], Awaitable[None]]) -> None:
        timeout_s = self._timeout_s()
        try:
            async with asyncio.timeout(timeout_s):
                await turn()
        except TimeoutError:
            raise Overloaded(f"it was not this request's turn within {timeout_s:g} s; nothing was stored") from None

    async def propose(self, command: Command, blocks: Sequence[bytes] = ()) -> Applied:
        """The command's outcome, once it is fsynced on a majority and applied here. A large command that was applied
        before has its outcome at once.

        Nothing was changed: NotLeader, NoLeader, Overloaded, Refused, Problem disk_full, or that of require_capacity.
        When it takes longer than request_timeout_ms, or than the client waits (request_deadline.py): Overloaded if it
        was still waiting for a place in the log, otherwise UnknownOutcome; it may still be committed then.
        """
        timeout_s = self._timeout_s()
        if (before := self._carried_out(command, blocks)) is not None:
            return before
        if not self._makes_room(command):
            self._require_disk()
            require_capacity(self.config, self.state, command)
        begun_s = time.perf_counter()
        proposed = self.raft.propose(Proposal(command, tuple(blocks)))
        try:
            async with asyncio.timeout(timeout_s):
                applied = await proposed
        except TimeoutError:
            raise _late(proposed, timeout_s) from None
        finally:
            _count_wait(begun_s)
        self.metrics.commit_seconds.observe(time.perf_counter() - begun_s)
        return applied

    async def propose_all(self, proposals: Sequence[Proposal]) -> list[Applied | Exception]:
        """The outcome of each, in order: what `propose` returns or raises for it. None of them waits for another one.

        Raises what concerns all of them, with nothing changed: NotLeader, NoLeader, Problem disk_full, Overloaded when
        the client has given up.
        """
        timeout_s = self._timeout_s()
        self._require_disk()
        self.require_leader()
        begun_s = time.perf_counter()
        futures: list[Proposed] = []
        settled: dict[int, Applied | Exception] = {}
        for ordinal, proposal in enumerate(proposals):
            try:
                if (before := self._carried_out(proposal.command, proposal.blocks)) is not None:
                    settled[ordinal] = before
                    continue
                require_capacity(self.config, self.state, proposal.command)
                futures.append(self.raft.propose(proposal))
            except Exception as error:
                settled[ordinal] = error
        try:
            if futures:
                await asyncio.wait(futures, timeout=timeout_s)
        finally:
            _count_wait(begun_s)
            for future in futures:  # of what is not in the log yet, nobody waits any more
                if not future.cancel() and not future.cancelled():
                    future.exception()  # looked at: the caller may be gone
        outcomes = (_outcome(future, timeout_s) for future in futures)
        self.metrics.commit_seconds.observe(time.perf_counter() - begun_s)
        return [settled.get(ordinal) or next(outcomes) for ordinal in range(len(proposals))]

    def _carried_out(self, command: Command, blocks: Sequence[bytes]) -> Applied | None:
        """The outcome of a large command that is sent again after it was applied; it is not replicated a second time
        (docs/decisions.md, 40). Raises as `require_leader` does, or Refused. Reads no file of the log.
        """
        if sum(map(len, blocks)) < SOUGHT_BYTES_MIN or len(blocks) > SOUGHT_BLOCKS_MAX:
            return None
        self.require_leader()
        before = self.state.carried_out(command)
        place = None if before is None else self.log.places.place_of(before.index)
        if before is None or place is None:
            return None
        term, position = place
        if position != before.position:  # a receipt names the entry that holds the messages
            return None
        return Applied(before.result, term, before.index, before.timestamp_ms, self.raft.durable_on(before.index))

    def _timeout_s(self) -> float:
        """For how long the outcome of a proposal is waited for; Overloaded when its client has given up already."""
        timeout_s = remaining_s(self.config.request_timeout_ms / 1000)
        if not timeout_s:
            raise Overloaded("the client's time was over before its request could be proposed; nothing was stored")
        return timeout_s

    def _makes_room(self, command: Command) -> bool:
        """What has to be possible on a disk that is low: it is small, and frees more than it takes."""
        if isinstance(command, PutTopic):  # to keep its messages for less time
            return self.state.topic(command.topic) is not None
        if isinstance(command, Decide):  # to let go of what its half holds
            return command.decision == "rollback"
        return isinstance(command, ExpireMessages | ReleaseMessages | DeleteTopic | DeleteGroup)

    @property
    def disk_is_low(self) -> bool:
        """Whether there is no room on this node's disk. It may lead all the same, if nobody is fitter."""
        return self.raft.disks.is_low(self.raft.node_id)

    def why_no_room(self) -> str | None:
        """Whose disks a write would have no room on, so that no majority could take it; None while one can."""
        full = self.raft.leadership.full_disks()
        if not full:
            return None
        named = " and ".join(f"node {node_id}" for node_id in full)
        return (
            f"there is no room on the disk of {named}, and no majority without; make room there, delete topics, keep "
            "messages for less time, or see in `keelmq cluster status` what holds the log"
        )

    def _require_disk(self) -> None:
        reason = self.why_no_room()
        if reason is not None:
            self.require_leader()
            raise Problem("disk_full", reason, {"full_nodes": self.raft.leadership.full_disks()})

    def is_leader(self) -> bool:
        """Leads, and has applied everything that was committed before its term: what it reads here is current."""
        return self.raft.is_leader and self.state.applied_term == self.raft.term

    def require_leader(self) -> None:
        """NotLeader or NoLeader unless this node leads and is up to date."""
        if self.is_leader():
            return
        leader_id = self.raft.leader_id
        if leader_id is None or leader_id == self.raft.node_id:
            raise NoLeader(self.raft.leadership.why_nobody_leads() if leader_id is None else "no leader is ready")
        raise NotLeader(leader_id)

    def require_bodies(self) -> None:
        """NotLeader or NoLeader while this node's log is still behind the snapshot that it started with: the leader has
        what is missing.
        """
        if self.raft.is_catching_up:
            leader_id = self.raft.leader_id
            if leader_id is None or leader_id == self.raft.node_id:
                raise NoLeader("this node's log is still behind its state, and no leader is known")
            raise NotLeader(leader_id)

    def require_replica(self) -> None:
        """NotLeader or NoLeader on a node that differs from the others, or from the leader while nobody knows which of
        them is right: the same question must not have two answers.
        """
        if self.raft.replicas.is_suspect and (self.raft.replicas.differs or self.raft.role != "leader"):
            leader_id = self.raft.leader_id
            if leader_id is None or leader_id == self.raft.node_id:
                raise NoLeader("this replica differs from others, and no leader is known")
            raise NotLeader(leader_id)

    def leader_url(self) -> str | None:
        leader_id = self.raft.leader_id
        return None if leader_id is None else self.url_of(leader_id)

    def url_of(self, node_id: int) -> str | None:
        """Where clients reach that node; None if this one does not know it. Once the log has the nodes, also this one
        goes by what the log says of it: so do the others.
        """
        member = self.raft.membership.find(node_id)
        if node_id == self.raft.node_id and (not self.raft.configuration_index or member is None or not member.url):
            return self.config.advertised_url()
        return None if member is None else member.url or None

    async def change_members(self, change: Callable[[Configuration], Configuration]) -> None:
        """`change` of the configuration is committed and applied here; raises as `propose`, or what `change` raises."""
        try:
            async with asyncio.timeout(self.config.request_timeout_ms / 1000):
                await self.raft.propose_configuration(change)
        except TimeoutError:
            raise UnknownOutcome(f"not committed within {self.config.request_timeout_ms} ms") from None

    def new_id(self) -> str:
        """Unique for ever: the process' prefix, then counted. An allowed batch, transaction and member id."""
        self._ids += 1
        return f"{self._id_prefix}{self._ids:x}"

    def now_ms(self) -> int:
        """The replicated clock as it would be if something were proposed now."""
        return self.raft.clock_ms()

    def clock_is_sure(self) -> bool:
        """Whether a majority of clocks agree on the time. While they do not, nothing irreversible is done for its time,
        and apply would refuse it.
        """
        return self.raft.clocks.is_sure()

    def is_alone(self) -> bool:
        """Whether this node is the only voter: nobody else can tell whether its clock is right."""
        return self.raft.configuration.voters == {self.raft.node_id}

    def wall_ms(self) -> int:
        """This node's own wall clock, for people; it may leap, and differ from the others'."""
        return self._clock.wall_ms()

    def steady_ms(self) -> int:
        """For spans of time: goes on at its own pace when the wall clock leaps."""
        return int(self._clock.steady_s() * 1000)

    def fatal(self, reason: str) -> NoReturn:
        self._on_fatal(reason)
        raise RuntimeError(reason)


def _count_wait(begun_s: float) -> None:
    client = time_shares.current()
    if client is not None:
        client.waited(time.perf_counter() - begun_s)


def _outcome(future: Proposed, timeout_s: float) -> Applied | Exception:
    if future.cancelled():
        return _late(future, timeout_s)
    error = future.exception()
    return future.result() if error is None else cast("Exception", error)


def _late(proposed: Proposed, timeout_s: float) -> UnknownOutcome | Overloaded:
    if proposed.is_in_log:
        return UnknownOutcome(f"not committed within {timeout_s * 1000:.0f} ms")
    return Overloaded(f"waited {timeout_s * 1000:.0f} ms for a place in the log; nothing was stored")
