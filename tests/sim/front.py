"""The services of one life of a simulated node: the real core, HTTP application, check service and group coordinator.

They are served over connections of the simulated client network instead of sockets; webhooks are reached the same way.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from aiohttp import web

from cluster.application import Services
from cluster.core.core import Core
from cluster.core.log_reads import LogReads
from cluster.core.long_poll import AppliedWaiters
from cluster.health.disk_guard import DiskGuard
from cluster.metrics import Metrics
from cluster.process.config import NodeConfig
from cluster.transactions.webhooks import WebhookFailed, WebhookReply
from raft.health.clock import Clock
from raft.proposals import Applied
from store.commands.entry import Command, Proposal
from store.commands.groups import CommitOffsets, JoinGroup, LeaveGroup
from store.commands.messages import Produce, Produced
from store.commands.transactions import Decide, Discard, Prepare, Prepared, RecordChecks, ResumeTransaction

from .checkers.majority_durable import check_entry_holds, check_entry_holds_content
from .wire import HELD_US, ServerTransport
from .world import MICROSECONDS_PER_SECOND

if TYPE_CHECKING:
    from .replica import Replica

T = TypeVar("T")


class InlineReads:
    """The steps of the reader threads, run one at a time when the loop turns to them."""

    async def run(self, step: Callable[[], T]) -> T:
        await asyncio.sleep(0)
        return step()

    def stop(self) -> None:
        """Do nothing, because there is no thread to end."""


class ObservedReads(LogReads):
    """The real reads. Payloads that were removed from the log are read from the observer's archive."""

    replica: "Replica"

    def cached(self, position: int) -> bytes | None:
        if position < self.replica.log.base.position:
            return self.replica.observer.archive.payload(position)
        return super().cached(position)


class ObservedCore(Core):
    """The real core. The checkers see every promise when it is made, and every decision of the services alone."""

    replica: "Replica"

    async def propose(
        self,
        command: Command,
        blocks: Sequence[bytes] = (),
        *,
        by: web.Request | None = None,
        on_left: Callable[[Applied], None] | None = None,
    ) -> Applied:
        observer = self.replica.observer
        with observer.finding():
            observer.history.sessions.on_proposed(
                command, self.replica.node_id, self.raft.term, asyncio.get_running_loop().time(), self.state.group
            )
        self._asked(command)
        try:
            applied = await super().propose(command, blocks, by=by, on_left=on_left)
        except Exception as error:
            self._refused(command, error)
            raise
        self._promise(command, applied)
        return applied

    async def propose_all(self, proposals: Sequence[Proposal]) -> list[Applied | Exception]:
        for proposal in proposals:
            self._asked(proposal.command)
        try:
            outcomes = await super().propose_all(proposals)
        except Exception as error:
            for proposal in proposals:
                self._refused(proposal.command, error)
            raise
        for proposal, outcome in zip(proposals, outcomes, strict=True):
            if isinstance(outcome, Applied):
                self._promise(proposal.command, outcome)
            else:
                self._refused(proposal.command, outcome)
        return outcomes

    def _asked(self, command: Command) -> None:
        self.replica.observer.history.refusals.asked((self.replica.node_id, self.replica.life), command)

    def _refused(self, command: Command, error: Exception) -> None:
        """Check an error, which may say that the command is stored nowhere."""
        observer = self.replica.observer
        with observer.finding():
            observer.history.refusals.answered((self.replica.node_id, self.replica.life), command, error)

    def _promise(self, command: Command, applied: Applied) -> None:
        """Check the command's outcome, which is about to be told to a client."""
        observer = self.replica.observer
        observer.on_acknowledged(self.replica, applied, _named(command))
        with observer.finding():
            _, payload = observer.safety.machine.entries[applied.index]
            if isinstance(command, Produce | Prepare) and is_duplicate(applied.result):
                check_entry_holds_content(command, applied.index, payload)
            else:
                check_entry_holds(command, applied.index, payload)


def is_duplicate(result: Any) -> bool:
    """Return whether nothing in the result is new."""
    if isinstance(result, Produced):
        return all(each.duplicate for each in result.results)
    return isinstance(result, Prepared) and result.duplicate


class SimWebhooks:
    """`HttpWebhooks` over the simulated client network."""

    def __init__(self, replica: "Replica", timeout_ms: int) -> None:
        self._replica, self._timeout_s = replica, timeout_ms / 1000

    def start(self) -> None:
        """Do nothing, because there is nothing to open."""

    async def stop(self) -> None:
        """Do nothing, because there is nothing to close."""

    async def post(self, url: str, body: bytes, traceparent: str | None = None) -> WebhookReply:
        front = self._replica.front
        clients = self._replica.clients
        answered: asyncio.Future[WebhookReply] = asyncio.get_running_loop().create_future()

        def on_answer(reply: WebhookReply) -> None:
            front.on_node(lambda: answered.set_result(reply) if not answered.done() else None)

        while front.says_nothing:
            await asyncio.sleep(HELD_US / MICROSECONDS_PER_SECOND)
        clients.call_webhook(self._replica.node_id, url, body, on_answer)
        try:
            async with asyncio.timeout(self._timeout_s):
                reply = await answered
        except TimeoutError:
            raise WebhookFailed("no answer", "timed_out") from None
        if 200 <= reply.status < 300:
            with clients.finding():
                clients.on_webhook_answered(body)
        return reply


class Front:
    """The services and the API that face the clients during one life of a node."""

    def __init__(self, replica: "Replica", config: NodeConfig, waiters: AppliedWaiters, clock: Clock) -> None:
        self._replica = replica
        self.node_id = replica.node_id
        metrics = Metrics()
        reads = ObservedReads(
            replica.log,
            replica.disk,
            InlineReads(),
            metrics,
            bytes_per_s=config.cold_read_bytes_per_s,
            on_fatal=replica.on_fatal,
        )
        reads.replica = replica
        self.core = ObservedCore(
            config,
            replica.node,
            replica.machine,
            replica.log,
            waiters,
            metrics,
            reads,
            on_fatal=replica.on_fatal,
            clock=clock,
            id_prefix=f"n{replica.node_id}-{replica.life}-",
        )
        self.core.replica = replica
        self.services = Services(
            self.core, SimWebhooks(replica, config.check_webhook_timeout_ms), lambda _: replica.wipe()
        )
        self._disk_guard = DiskGuard(self.core, replica.disk, "/data")
        self.services.alarms.add(self._disk_guard.conditions)
        self._runner = self.services.make_runner()
        self._ended = False

    @property
    def alive(self) -> bool:
        return self._replica.alive and not self._ended

    async def serve(self) -> None:
        """Start as the broker does: Raft first, then the services, then connections."""
        await self._runner.setup()
        await self._replica.node.start()
        self.services.start()
        self._disk_guard.start()
        self._replica.clients.attach(self)

    async def leave(self) -> None:
        """Stop as the broker does: hand over, answer every open request, take no more connections."""
        await self._disk_guard.stop()
        await self.services.leave()
        self._replica.clients.refuse(self.node_id)
        await self._runner.cleanup()

    def end(self, *, silently: bool) -> None:
        """Record that the process is dead."""
        self._ended = True
        self._replica.clients.detach(self.node_id, silently=silently)

    def accept(self, transport: ServerTransport) -> asyncio.Protocol:
        assert self._runner.server is not None
        return self._runner.server()

    @property
    def says_nothing(self) -> bool:
        return self._replica.machine.stays_within_an_entry

    def on_node(self, action: Callable[[], None]) -> None:
        if self.alive:
            self._replica.run(lambda: action() if self.alive else None)


def _named(command: Command) -> str:
    """Return the name that violations give to the subject of the command."""
    if isinstance(command, Produce):
        return ", ".join(f"batch {header.batch_id}" for header in command.batches)
    if isinstance(command, Prepare):
        batches = ", ".join(f"batch {header.batch_id}" for header in command.batches)
        return f"transaction {command.transaction_id} of {batches}"
    name = type(command).__name__
    match command:
        case Decide(transaction_id=transaction_id) | ResumeTransaction(transaction_id=transaction_id):
            return f"{name} of transaction {transaction_id}"
        case RecordChecks(transaction_ids=transaction_ids) | Discard(transaction_ids=transaction_ids):
            return f"{name} of {', '.join(f'transaction {each}' for each in transaction_ids)}"
        case JoinGroup() | LeaveGroup() | CommitOffsets():
            return f"{name} of {command.member_id} in group {command.group}"
        case _:
            return name
