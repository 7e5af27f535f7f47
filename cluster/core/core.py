"""The part of the node that every handler uses: it proposes commands, reads blocks and names the leader."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final, NoReturn

from aiohttp import web

from cluster.budgets import time_shares
from cluster.budgets.capacity import require_capacity
from cluster.budgets.client_budget import ByteBudget
from cluster.budgets.connection_limits import connections_of, limits_of
from cluster.budgets.holdings import ADMINISTRATION_BYTES, Holdings, request_bytes_max
from cluster.budgets.quotas import Quotas
from cluster.budgets.request_deadline import remaining_s
from cluster.budgets.time_shares import Client, time_shares_of
from cluster.budgets.turns import BODY_TURN_BYTES, PAGE_TURN_BYTES, REBALANCED_AT_ONCE, Turns
from cluster.core.audit_trail import AuditTrail
from cluster.core.background import Background
from cluster.core.entry_work import further_work_bytes
from cluster.core.log_pins import LogPins
from cluster.core.log_reads import LogReads
from cluster.core.long_poll import AppliedWaiters
from cluster.core.outcomes import late, outcome_of, unless_left, until_settled
from cluster.core.reader_threads import ReaderThreads
from cluster.limits import RESPONSE_BYTES_MAX
from cluster.metrics import Metrics
from cluster.problems import Problem
from cluster.process.config import NodeConfig
from cluster.process.request_scope import note_entry, note_queued, note_replicated
from cluster.security.access_control import AccessControl, Shown
from cluster.security.client_certificate import client_certificate_name
from cluster.security.issuer import Issuer
from cluster.telemetry.refusals import ProposalRefusals, counting_refusals
from cluster.telemetry.requests import RequestTimes
from cluster.telemetry.topic_counters import TopicCounters
from raft.errors import NoLeader, NotLeader, Overloaded, UnknownOutcome
from raft.health.clock import Clock
from raft.membership import Configuration
from raft.node import RaftNode
from raft.proposals import Applied, Proposed
from store.commands.cluster import PutSettings
from store.commands.entry import Command, Proposal
from store.commands.groups import DeleteGroup
from store.commands.retention import CountBytes, ExpireMessages, ReleaseMessages
from store.commands.topics import DeleteTopic, PurgeTopic, PutTopic
from store.commands.transactions import Decide
from store.log.commit_log import CommitLog
from store.state.machine import StateMachine

SOUGHT_BYTES_MIN: Final = 16 * 1024
"""Total bytes of blocks from which on a command is looked up as a repetition: a smaller one is replicated again as
quickly as it is found."""
SOUGHT_BLOCKS_MAX: Final = 100
"""Maximum number of blocks of a command that is looked up as a repetition: each takes up to 10 µs of the loop."""
_FREES: Final = (ExpireMessages, ReleaseMessages, CountBytes, DeleteTopic, PurgeTopic, DeleteGroup)
"""Commands that are accepted on a low disk: they are small and free more than they take."""


class Core:
    """One running node, as the handlers see it. Owns the budgets and turns of clients. Use on the event loop only."""

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
        administrator_tokens: Sequence[bytes] = (),
        quotas: Quotas | None = None,
        issuer: Issuer | None = None,
        audit: AuditTrail | None = None,
    ) -> None:
        """Create the core over opened parts. `id_prefix` begins every id of this process, and of no other one ever.
        Without `quotas` nobody is limited, without `issuer` nobody shows tokens of people, without `audit` no files.
        """
        self.config = config
        self.raft = raft
        self.state = state
        self.log = log
        self.waiters = waiters
        self.metrics = metrics
        self.reads = reads
        self._clock = clock
        share_percent = config.address_share_percent
        self.connections, self.admin_connections = connections_of(config)
        self.request_budget = ByteBudget(
            request_bytes_max(config), share_percent, "requests are in memory", ADMINISTRATION_BYTES
        )
        self.access = AccessControl(
            config.auth, administrator_tokens, state.users, self._latest_ms, self._shown_by, issuer
        )
        metrics.add_gauges(self.access.counters)
        self.audit = audit or AuditTrail({}, ReaderThreads("audit"), clock.wall_ms, clock.steady_s)
        self.quotas = quotas
        if quotas is not None:
            metrics.add_gauges(quotas.counters)
        self.holdings = Holdings(config, limits_of(self.connections, self.admin_connections), quotas)
        self.time_shares = time_shares_of(config.address_time_percent)
        metrics.add_gauges(self.time_shares.counters)
        self.request_times = RequestTimes(
            config.slow_request_ms, lambda request: self.access.principal_of(request).name
        )
        metrics.add_gauges(self.request_times.metrics)
        self.refusals = ProposalRefusals()
        metrics.add_gauges(self.refusals.metrics)
        self.topic_reads = TopicCounters()
        """Messages that this node handed to consumers, by topic."""
        self.background = Background()
        self.audit.attach(self.access, self.background)
        metrics.add_gauges(self.background.counters)
        self.body_turns = Turns(BODY_TURN_BYTES)
        self.queue_page_turns = Turns(PAGE_TURN_BYTES)
        self.log_page_turns = Turns(PAGE_TURN_BYTES)
        """Turns of log pages, apart from queue pages: a log reader does not keep its host's consumers waiting."""
        self.rebalance_turns = Turns(REBALANCED_AT_ONCE)
        self.response_budget = ByteBudget(RESPONSE_BYTES_MAX, share_percent, "responses wait to be read by clients")
        self.log_pins = LogPins()
        """Entries that backups under way need of the log."""
        self.loop_delay_s = 0.0
        """Seconds by which the event loop was late for its last beat; the loop watch sets it."""
        self._on_fatal = on_fatal
        self._id_prefix = id_prefix
        self._ids = 0

    @contextlib.asynccontextmanager
    async def turn(self, turns: Turns, key: str, size: int) -> AsyncIterator[None]:
        """Hold a turn until the `async with` block is left. Raises as `take_turn` does."""
        await self.take_turn(turns, key, size)
        try:
            yield
        finally:
            turns.give_back(key, size)

    async def take_turn(self, turns: Turns, key: str, size: int) -> None:
        """Wait for a turn; `turns.give_back` has to follow.

        Raises Overloaded when the turn does not come within request_timeout_ms, or before the client gives up.
        """
        await self._in_time(lambda: turns.take(key, size))

    @contextlib.asynccontextmanager
    async def costly(self) -> AsyncIterator[None]:
        """Do costly work until the `async with` block is left. Raises as `begin_costly` does."""
        client = await self.begin_costly()
        try:
            yield
        finally:
            if client is not None:
                client.end()

    async def begin_costly(self) -> Client | None:
        """Wait until the use of the present client is down to its share of the time, and return the client.

        `end` has to be called on the client. Returns None outside of a request. Raises Overloaded as `take_turn` does.
        """
        client = time_shares.current()
        if client is not None:
            await self._in_time(client.begin)
        return client

    async def _in_time(self, turn: Callable[[], Awaitable[None]]) -> None:
        timeout_s, begun_s = self._timeout_s(), time.perf_counter()
        try:
            async with asyncio.timeout(timeout_s):
                await turn()
        except TimeoutError:
            raise Overloaded(f"the request's turn did not come within {timeout_s:g} s; nothing was stored") from None
        finally:
            note_queued(time.perf_counter() - begun_s)

    @counting_refusals
    async def propose(
        self,
        command: Command,
        blocks: Sequence[bytes] = (),
        *,
        by: web.Request | None = None,
        on_left: Callable[[Applied], None] | None = None,
    ) -> Applied:
        """Propose a command and return its outcome, once it is fsynced on a majority and applied on this node. The
        entry names the principal of the request `by`. `on_left` gets the outcome when nobody waits for it any more.

        A large command that was applied before returns its former outcome at once. Raises NotLeader, NoLeader,
        Overloaded, Refused, Problem disk_full or the problems of require_capacity; nothing was changed then. After
        request_timeout_ms, or when the client gives up (request_deadline.py), raises Overloaded if the command still
        waited for a place in the log, otherwise UnknownOutcome: the command may still be committed then.
        """
        timeout_s = self._timeout_s()
        if (before := self._applied_before(command, blocks)) is not None:
            return before
        if not self._makes_room(command):
            self._require_disk()
            require_capacity(self.config, self.state, command)
        begun_s = time.perf_counter()
        principal = "" if by is None else self.access.proved_name(by)
        proposed = self.raft.propose(
            self._weighed(Proposal(command, tuple(blocks), principal=principal)), time_shares.sender()
        )
        try:
            async with asyncio.timeout(timeout_s):
                applied = await (proposed if on_left is None else unless_left(proposed, on_left))
        except TimeoutError:
            raise late(proposed, timeout_s) from None
        finally:
            _count_wait(begun_s)
        self.metrics.commit_seconds.observe(time.perf_counter() - begun_s)
        note_entry(applied.index)
        return applied

    def _weighed(self, proposal: Proposal) -> Proposal:
        """Add what the command works on in the state: a commit gives offsets to all batches of its transaction, so
        commits of large transactions share no entry.
        """
        further = further_work_bytes(proposal.command, self.state)
        return Proposal(proposal.command, proposal.blocks, further, proposal.principal) if further else proposal

    async def propose_all(self, proposals: Sequence[Proposal]) -> list[Applied | Exception]:
        """Propose all commands at once. Return, in order, the outcome or the error of `propose` for each.

        Raises errors that concern all proposals, with nothing changed: NotLeader, NoLeader, Problem disk_full, and
        Overloaded when the client has given up.
        """
        timeout_s = self._timeout_s()
        full = self.why_no_room() is not None
        if full and not any(self._makes_room(each.command) for each in proposals):
            self._require_disk()
        self.require_leader()
        begun_s, sender = time.perf_counter(), time_shares.sender()
        futures: list[Proposed] = []
        settled: dict[int, Applied | Exception] = {}
        for ordinal, proposal in enumerate(proposals):
            try:
                if (before := self._applied_before(proposal.command, proposal.blocks)) is not None:
                    settled[ordinal] = before
                    continue
                if full and not self._makes_room(proposal.command):
                    self._require_disk()
                require_capacity(self.config, self.state, proposal.command)
                futures.append(self.raft.propose(self._weighed(proposal), sender))
            except Exception as error:
                settled[ordinal] = error
        try:
            await until_settled(futures, timeout_s)
        finally:
            _count_wait(begun_s)
            outcomes = [outcome_of(future, timeout_s) for future in futures]
        self.metrics.commit_seconds.observe(time.perf_counter() - begun_s)
        following = iter(outcomes)
        results = [settled.get(ordinal) or next(following) for ordinal in range(len(proposals))]
        for result in results:
            if isinstance(result, Exception):
                self.refusals.note(result)
        return results

    def _applied_before(self, command: Command, blocks: Sequence[bytes]) -> Applied | None:
        """Return the former outcome of a large command that was applied before, so that it is not replicated a second
        time (docs/decisions.md, 40); None for other commands. Raises Refused, or as `require_leader` does. Reads no
        file of the log.
        """
        if not blocks or sum(map(len, blocks)) < SOUGHT_BYTES_MIN or len(blocks) > SOUGHT_BLOCKS_MAX:
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
        """Return the seconds to wait for an outcome. Raises Overloaded when the client has given up already."""
        timeout_s = remaining_s(self.config.request_timeout_ms / 1000)
        if not timeout_s:
            raise Overloaded("the client's time was over before its request could be proposed; nothing was stored")
        return timeout_s

    def _makes_room(self, command: Command) -> bool:
        """Return whether the command is accepted on a low disk, because it is small and frees more than it takes."""
        if isinstance(command, PutTopic):  # it may shorten the retention of a topic
            return self.state.topic(command.topic) is not None
        if isinstance(command, Decide):  # a rollback releases the half message
            return command.decision == "rollback"
        if isinstance(command, PutSettings):  # it may shorten the log
            return command.log_retention_bytes is not None
        return isinstance(command, _FREES)

    @property
    def disk_is_low(self) -> bool:
        """True when this node's disk has no room. The node may lead all the same, if no other one is fitter."""
        return self.raft.disks.is_low(self.raft.node_id)

    def why_no_room(self) -> str | None:
        """Return a text that names the full disks which prevent a majority from storing a write; None while a majority
        has room.
        """
        full = self.raft.leadership.full_disks()
        if not full:
            return None
        named = " and ".join(f"node {node_id}" for node_id in full)
        return (
            f"there is no room on the disk of {named}, and no majority without; make room there, delete topics, "
            "shorten their retention, or find the holders of the log with `keelmq cluster status`"
        )

    def _require_disk(self) -> None:
        reason = self.why_no_room()
        if reason is not None:
            self.require_leader()
            raise Problem("disk_full", reason, {"full_nodes": self.raft.leadership.full_disks()})

    def is_leader(self) -> bool:
        """Return whether this node leads and has applied all entries committed before its term, so that its state is
        current.
        """
        return self.raft.is_leader and self.state.applied_term == self.raft.term

    def require_leader(self) -> None:
        """Raise NotLeader or NoLeader unless this node leads and its state is current."""
        if self.is_leader():
            return
        leader_id = self.raft.leader_id
        if leader_id is None or leader_id == self.raft.node_id:
            raise NoLeader(self.raft.vacancy.why_nobody_leads() if leader_id is None else "no leader is ready")
        raise NotLeader(leader_id)

    def require_bodies(self) -> None:
        """Raise NotLeader or NoLeader while this node's log is behind the snapshot that it started with, because the
        leader has the missing entries.
        """
        if self.raft.is_catching_up:
            leader_id = self.raft.leader_id
            if leader_id is None or leader_id == self.raft.node_id:
                raise NoLeader("this node's log is still behind its state, and no leader is known")
            raise NotLeader(leader_id)

    def require_replica(self) -> None:
        """Raise NotLeader or NoLeader on a node whose state differs from the others, or from the leader while nobody
        knows which of the two is right: equal requests must not have different answers.
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
        """Return the URL at which clients reach a node; None if this node does not know it.

        Once the log has the nodes, the URL in the log also holds for this node itself, as the other nodes use it too.
        """
        member = self.raft.membership.find(node_id)
        if node_id == self.raft.node_id and (not self.raft.configuration_index or member is None or not member.url):
            return self.config.advertised_url()
        return None if member is None else member.url or None

    async def change_members(self, change: Callable[[Configuration], Configuration], *, by: web.Request) -> None:
        """Commit a changed configuration and wait until it is applied here. Raises UnknownOutcome after
        request_timeout_ms, the other errors of `propose`, and the errors of `change`.
        """
        try:
            async with asyncio.timeout(self.config.request_timeout_ms / 1000):
                entry = await self.raft.propose_configuration(change, self.access.proved_name(by))
                note_entry(entry.index)
        except TimeoutError:
            raise UnknownOutcome(f"not committed within {self.config.request_timeout_ms} ms") from None

    def _latest_ms(self) -> int:
        """Return the later one of the replicated clock, which stands on a node that is cut off, and this node's own."""
        return max(self.now_ms(), self._clock.wall_ms())

    def _shown_by(self, request: web.Request) -> Shown:
        """Return the credentials of a request."""
        shown = request.headers.getall("Authorization", ())
        return Shown(
            "\n".join(shown) if shown else None,
            client_certificate_name(request),
            request.remote or "",
        )

    def note_producer(self, request: web.Request, group: str) -> None:
        """Note that the client of the request, at whichever listener, sends transactions of the producer group."""
        for connections in (self.connections, self.admin_connections):
            if connections is not None:
                connections.note_producer(request.protocol, group)

    def new_id(self) -> str:
        """Return a new id that is unique for ever: the prefix of the process and a counter in hexadecimal digits. It
        may serve as batch, transaction and member id.
        """
        self._ids += 1
        return f"{self._id_prefix}{self._ids:x}"

    def now_ms(self) -> int:
        """Return the time of the replicated clock, in ms, that a command would get if it were proposed now."""
        return self.raft.clock_ms()

    def clock_is_sure(self) -> bool:
        """Return whether the clocks of a majority agree on the time. While they do not, no irreversible command is
        proposed because its time has come, and apply would refuse it.
        """
        return self.raft.clocks.is_sure()

    def is_alone(self) -> bool:
        """Return whether this node is the only voter, so that no other node can check its clock."""
        return self.raft.configuration.voters == {self.raft.node_id}

    def wall_ms(self) -> int:
        """Return this node's wall clock in ms, for people to read. It may leap, and differ from other nodes' clocks."""
        return self._clock.wall_ms()

    def steady_ms(self) -> int:
        """Return a steady clock in ms, to measure spans of time; leaps of the wall clock do not affect it."""
        return int(self._clock.steady_s() * 1000)

    def fatal(self, reason: str) -> NoReturn:
        self._on_fatal(reason)
        raise RuntimeError(reason)


def _count_wait(begun_s: float) -> None:
    seconds = time.perf_counter() - begun_s
    note_replicated(seconds)
    client = time_shares.current()
    if client is not None:
        client.waited(seconds)
