"""What every handler needs of the node: propose a command, read blocks, say who leads."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn, cast

from cluster.config import NodeConfig
from cluster.long_poll import AppliedWaiters
from cluster.metrics import Metrics
from cluster.problems import Problem
from cluster.response_writer import ResponseBudget
from cluster.responses import Receipt
from raft.clock import Clock
from raft.errors import NoLeader, NotLeader, UnknownOutcome
from raft.membership import Configuration
from raft.node import RaftNode
from raft.proposals import Applied
from store.command import (
    Command,
    Decide,
    DeleteGroup,
    DeleteTopic,
    ExpireMessages,
    Proposal,
    PutTopic,
    ReleaseMessages,
)
from store.commit_log import CommitLog
from store.log_errors import DiskFull, LogError
from store.state_machine import StateMachine


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
        self._clock = clock
        self.response_budget = ResponseBudget()
        self.disk_is_low = False
        """Set by the disk guard: writes are refused, reads go on."""
        self.disk_free_bytes = 0
        """Set by the disk guard."""
        self.loop_delay_s = 0.0
        """Set by the loop watch: how late the event loop came to its last beat."""
        self._on_fatal = on_fatal
        self._id_prefix = id_prefix
        self._ids = 0

    async def propose(self, command: Command, blocks: Sequence[bytes] = ()) -> Applied:
        """The command's outcome, once it is fsynced on a majority and applied here.

        Nothing was changed: NotLeader, NoLeader, Overloaded, Refused, Problem disk_full. UnknownOutcome also when it
        takes longer than request_timeout_ms; it may still be committed then.
        """
        if not self._makes_room(command):
            self._require_disk()
        begun_s = time.perf_counter()
        try:
            async with asyncio.timeout(self.config.request_timeout_ms / 1000):
                applied = await self.raft.propose(Proposal(command, tuple(blocks)))
        except TimeoutError:
            raise self._late() from None
        self.metrics.commit_seconds.observe(time.perf_counter() - begun_s)
        return applied

    async def propose_all(self, proposals: Sequence[Proposal]) -> list[Applied | Exception]:
        """The outcome of each, in order: what `propose` returns or raises for it. None of them waits for another one.

        Raises what concerns all of them, with nothing changed: NotLeader, NoLeader, Problem disk_full.
        """
        self._require_disk()
        self.require_leader()
        begun_s = time.perf_counter()
        futures: list[asyncio.Future[Applied]] = []
        refused: dict[int, Exception] = {}
        for ordinal, proposal in enumerate(proposals):
            try:
                futures.append(self.raft.propose(proposal))
            except Exception as error:
                refused[ordinal] = error
        try:
            if futures:
                await asyncio.wait(futures, timeout=self.config.request_timeout_ms / 1000)
        finally:
            for future in futures:  # of what is not in the log yet, nobody waits any more
                if not future.cancel() and not future.cancelled():
                    future.exception()  # looked at: the caller may be gone
        outcomes = map(self._outcome, futures)
        self.metrics.commit_seconds.observe(time.perf_counter() - begun_s)
        return [refused.get(ordinal) or next(outcomes) for ordinal in range(len(proposals))]

    def _outcome(self, future: "asyncio.Future[Applied]") -> Applied | Exception:
        if future.cancelled():
            return self._late()
        error = future.exception()
        return future.result() if error is None else cast("Exception", error)

    def _late(self) -> UnknownOutcome:
        return UnknownOutcome(f"not committed within {self.config.request_timeout_ms} ms")

    def _makes_room(self, command: Command) -> bool:
        """What has to be possible on a disk that is low: it is small, and frees more than it takes."""
        if isinstance(command, PutTopic):  # to keep its messages for less time
            return self.state.topic(command.topic) is not None
        if isinstance(command, Decide):  # to let go of what its half holds
            return command.decision == "rollback"
        return isinstance(command, ExpireMessages | ReleaseMessages | DeleteTopic | DeleteGroup)

    def _require_disk(self) -> None:
        if self.disk_is_low:
            self.require_leader()
            raise Problem(
                "disk_full",
                f"less than {self.config.min_free_bytes} bytes are free on the leader's disk; make room there, delete "
                "topics, keep messages for less time, or see in `keelmq cluster status` what holds the log",
            )

    def is_leader(self) -> bool:
        """Leads, and has applied everything that was committed before its term: what it reads here is current."""
        return self.raft.is_leader and self.state.applied_term == self.raft.term

    def require_leader(self) -> None:
        """NotLeader or NoLeader unless this node leads and is up to date."""
        if self.is_leader():
            return
        leader_id = self.raft.leader_id
        if leader_id is None or leader_id == self.raft.node_id:
            raise NoLeader("no leader is ready")
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

    def leader_url(self) -> str | None:
        leader_id = self.raft.leader_id
        return None if leader_id is None else self.url_of(leader_id)

    def url_of(self, node_id: int) -> str | None:
        """Where clients reach that node; None if this one does not know it."""
        if node_id == self.raft.node_id:
            return self.config.advertised_url()
        member = self.raft.configuration.find(node_id)
        return None if member is None else member.url or None

    async def change_members(self, change: Callable[[Configuration], Configuration]) -> None:
        """`change` of the configuration is committed and applied here; raises as `propose`, or what `change` raises."""
        try:
            async with asyncio.timeout(self.config.request_timeout_ms / 1000):
                await self.raft.propose_configuration(change)
        except TimeoutError:
            raise self._late() from None

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

    def read_payload(self, position: int) -> bytes:
        """The payload of the record at a log position. A log that cannot be read ends the process: other nodes have the
        data. LogTruncated when it was removed since it was looked up; DiskFull when there is no file descriptor left.
        """
        with self._reading():
            return self.log.entry(self.log.index_at(position)).payload

    def term_at(self, index: int) -> int:
        """Of an entry that is applied."""
        with self._reading():
            return self.log.term_at(index)

    def read_records(self, first: int, last: int, max_bytes: int) -> tuple[bytes, int]:
        """Records as they are on disk, and the index that follows them; for errors see `read_payload`."""
        with self._reading():
            return self.log.raw_records(first, last, max_bytes)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except DiskFull:
            raise
        except LogError as error:
            self.fatal(str(error))

    def fatal(self, reason: str) -> NoReturn:
        self._on_fatal(reason)
        raise RuntimeError(reason)


def receipt_of(applied: Applied) -> Receipt:
    return Receipt(
        term=applied.term, index=applied.index, timestamp_ms=applied.timestamp_ms, durable_on=applied.durable_on
    )
