"""One Raft node on one asyncio loop: handlers, transport and log put together."""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from raft.applied_listeners import AppliedListeners
from raft.applying import Applying
from raft.cluster_name import ClusterName
from raft.config import PeerAddress, RaftConfig
from raft.errors import NodeStopped, NoLeader, NotLeader, ProtocolError, RaftError
from raft.events import NodeEvents
from raft.fair_queue import OWN
from raft.feature_levels import FeatureLevels
from raft.handing_over import hand_over
from raft.handlers import SafeRaft
from raft.health.clock import SYSTEM_CLOCK, Clock, ReplicatedClock
from raft.health.clock_agreement import ClockAgreement
from raft.journal import Journal
from raft.library import LEADER, ROLE_NAMES
from raft.membership import Configuration, recover_membership
from raft.peers.peer_status import PeerStatus as PeerStatus
from raft.peers.transport import TcpTransport
from raft.proposals import ProposalQueue, Proposed, awaited
from raft.replication.commit_notice import CommitNotice
from raft.snapshots.snapshots import SnapshotCounts
from raft.storage import Storage
from raft.syncing.log_sync import LogSync
from raft.syncing.syncers import syncer_of
from store.commands.entry import Proposal
from store.features import UnknownFeatureLevel
from store.log.errors import DiskFull
from store.log.record import Entry

log = logging.getLogger(__name__)


class RaftNode:
    """Proposes commands and applies what is committed.

    Everything runs on the loop that called `start`, except the sync of the log, by the kernel or a thread. After an
    event that ends it (raft/events.py) the node does nothing more by itself. It owns its storage from `start` to
    `stop`, but does not close it.
    """

    def __init__(self, config: RaftConfig, storage: Storage, events: NodeEvents, clock: Clock = SYSTEM_CLOCK) -> None:
        """Set up. Raises UnknownFeatureLevel when the log says that this build does not know the cluster's level."""
        self.config, self.node_id = config, config.node_id
        self.state_machine = state_machine = storage.state_machine
        self._log, self._watermarks = storage.log, storage.watermarks
        self._open_background_sync, self._worked_s = storage.background_sync, clock.worked_s
        self._on_fatal = events.on_fatal
        self._on_outdated = events.on_outdated or events.on_fatal
        self._failed = self._stopping = self._handing_over = self._is_going_on = False
        self._applied_listeners = AppliedListeners()
        self._leader_listeners = AppliedListeners()
        self._transport = TcpTransport(config)
        self.membership = membership = recover_membership(config, storage.log, state_machine)
        """The nodes, with the addresses that count, and what of that is settled."""
        name = ClusterName(config, state_machine, membership)
        self._transport.cluster_uid = lambda: name.uid
        self._transport.set_membership(membership)
        self.why_unconnected, self.tls = self._transport.why_unconnected, self._transport.tls
        self.clocks = ClockAgreement.of(config, clock, membership)
        self.clock_ms = ReplicatedClock(clock, lambda: state_machine.clock_ms, self.clocks.time_ms)
        """What an entry proposed now would be stamped with."""
        journal = Journal(storage.log, storage.hard_state, state_machine.applied_index, storage.watermarks)
        journal.opening = name.opening
        self._applying = Applying(state_machine, clock.worked_s)
        self._raft = SafeRaft(
            config,
            journal,
            self._transport,
            self._applying,
            state_machine.applied_index,
            membership,
            storage.snapshots,
            on_installed=partial(self.fall_silent, events.on_installed),
            clocks=self.clocks,
            guard=self._guarded,  # whatever arrives for the handlers may change what is due: a step follows
        )
        self._state = self._raft.state
        self._raft.own_copy.on_forgotten = partial(self.fall_silent, events.on_forgotten)
        self._raft.log_writer.on_feature_level = events.on_feature_level
        self.read_state = self._raft.snapshots.read
        """Returns a reader of the state as of `applied_index`, of whole entries, whatever is applied meanwhile."""
        self.durable_on = self._raft.replication.durable_on
        self.answering_voters = self._raft.replication.answering_voters
        """Leader: returns this node and the others that have answered lately and would vote."""
        self._transport.on_outdated = self._fail_with
        events.on_feature_level(membership.current.level)
        self.disks, self.presence, self.leadership = self._raft.disks, self._raft.presence, self._raft.leadership
        self.disks.index_waits_since = self._applying.waiting_since
        self.election, self.vital_signs, self.vacancy = self._raft.election, self._raft.vital_signs, self._raft.vacancy
        self.replicas = self._raft.own_copy.compare_replicas(state_machine.history, storage.differs)
        """Whether this replica differs from the others, or others do (raft/copies/replicas.py)."""
        self._raft.on_membership = partial(self._transport.set_membership, membership)
        self.feature_levels = FeatureLevels(
            self._state,
            lambda: self._raft.leads_and_knows_all,
            self._transport.build_of,
            self._transport.last_build_of,
            self.propose_configuration,
        )
        self._transport.on_data_arrives = lambda peer: None if self._failed else self._raft.data_arrives(peer)
        self._proposals = ProposalQueue(
            self._append_entry,
            self.durable_on,
            self.clock_ms.stamp_ms,
            self.clocks.is_sure,
            self.feature_levels.of_proposals,
            max_entry_bytes=config.max_entry_bytes,
            max_entries_in_flight=config.max_entries_in_flight,
            max_in_flight_bytes=config.max_in_flight_bytes,
        )

    # --- state -------------------------------------------------------------------------------------------------

    @property
    def term(self) -> int:
        return self._state.term

    @property
    def role(self) -> str:
        """`leader`, `follower` or `candidate`."""
        return ROLE_NAMES[self._state.role]

    @property
    def is_leader(self) -> bool:
        """Leads as far as it knows, and has applied everything that was committed before it did."""
        return self._raft.leads_and_knows_all and not self._stopping and not self._handing_over

    @property
    def leader_id(self) -> int | None:
        return self._state.leader_id

    @property
    def commit_index(self) -> int:
        return self._state.commit_index

    @property
    def applied_index(self) -> int:
        return self._state.last_applied

    @property
    def durable_index(self) -> int:
        return self._log.synced_index

    def needed_from(self) -> int:
        """The first entry that must stay in this node's log for others (raft/replication/retention.py)."""
        return self._raft.replication.needed_from()

    @property
    def is_catching_up(self) -> bool:
        """True while the log is behind the state, which came as a snapshot: bodies that the state names are missing."""
        return self._log.last_index < self._state.last_applied

    @property
    def receiving_percent(self) -> int | None:
        """Percentage of a snapshot that has arrived here; None while none is received."""
        return self._raft.snapshots.receiving

    @property
    def snapshot_counts(self) -> SnapshotCounts:
        """The counts of the snapshots that this process has sent."""
        return self._raft.snapshots.counts

    @property
    def known_committed_index(self) -> int:
        """The highest entry that a leader called committed, also where this log does not reach that far."""
        return self._state.knowledge.committed[1]

    @property
    def waits_for(self) -> tuple[int, int] | None:
        """Term and index of a committed entry for want of which this node stands for no election; None otherwise."""
        return self._raft.election.waits_for if self.leader_id is None else None

    @property
    def lacks_vote(self) -> bool:
        """True when this node is a voter whose disk is new to the cluster, and so neither votes nor counts yet."""
        return self._raft.lacks_vote

    @property
    def in_flight_bytes(self) -> int:
        return self._proposals.in_flight_bytes

    @property
    def peers(self) -> dict[int, PeerStatus]:
        return self._raft.peers(self._transport.is_connected)

    @property
    def configuration(self) -> Configuration:
        """The nodes of the cluster as far as this one knows: the last configuration in its log, committed or not."""
        return self._state.configuration

    @property
    def configuration_index(self) -> int:
        """Index of the log record with the configuration; 0 for the one that nodes are started with."""
        return self._state.membership.index

    @property
    def removed_by(self) -> int | None:
        """The node that says that this one was removed from the cluster, while no leader is known."""
        return self._transport.removed_by if self.leader_id is None else None

    def on_applied(self, callback: Callable[[], None]) -> None:
        """Call back on the loop after every step that applied something."""
        self._applied_listeners.add(callback)

    def on_leader(self, callback: Callable[[], None]) -> None:
        """Call back on the loop, soon after this node has begun to follow another leader."""
        self._leader_listeners.add(callback)

    # --- life --------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Listen, dial the peers and start ticking. Raises OSError when the address cannot be bound."""
        self._loop = loop = asyncio.get_running_loop()
        self._raft.election.on_leader = lambda: loop.call_soon(self._leader_listeners.tell)
        syncer = syncer_of(self._loop, self._open_background_sync(), self._worked_s)
        self._log_sync = LogSync(self._log, self._watermarks, syncer, self._after_sync, self._sync_failed)
        self._raft.follower.on_written = self._log_sync.request
        self._proposals.on_failure = self._fail_with
        replication, may_send = self._raft.replication, lambda: not self._failed
        self._commit_notice = CommitNotice(self._state, replication, may_send, self._fail_with)
        try:
            await self._transport.start()
        except BaseException:
            await self._log_sync.stop()
            raise
        self._ticker = asyncio.create_task(self._tick_for_ever())

    async def stop(self) -> None:
        """Hand leadership over, if there is a node to take it, then fall silent. The outcome of entries that were not
        acknowledged is unknown.
        """
        self._stopping = True
        self._raft.election.retire()
        self._raft.snapshots.stop_receiving("this node stops")
        self._proposals.fail_waiting(NodeStopped("the node is stopping"))
        if self._state.role == LEADER and self._state.other_voters and not self._failed:
            await hand_over(self._raft)
        self._ticker.cancel()
        await asyncio.gather(self._ticker, return_exceptions=True)
        await self._transport.stop()
        self._failed = True  # nothing of what still arrives is for us
        await self._log_sync.stop()

    # --- membership --------------------------------------------------------------------------------------------

    async def hand_over(self, to: int | None = None) -> bool:
        """Hand leadership over, to the voter `to` or else to the fittest, taking nothing meanwhile; return whether this
        node has ceased to lead in HAND_OVER_TIMEOUT_MS.
        """
        if self._state.role == LEADER and self._state.other_voters:
            self._handing_over = True
            try:
                await hand_over(self._raft, to)
            finally:
                self._handing_over = False
        return bool(self._state.role != LEADER)

    def propose_configuration(
        self, change: Callable[[Configuration], Configuration], principal: str = ""
    ) -> "asyncio.Future[Entry]":
        """Propose what `change` makes of the present configuration, on behalf of `principal`; resolves when it is
        committed and applied.

        Raises at once, with nothing appended: NotLeader, NoLeader, NodeStopped, MembershipRefused. The future raises
        UnknownOutcome.
        """
        self._check_leads()
        following = change(self._state.configuration).named(principal)
        future, on_outcome = awaited(self._loop)
        self._append_and_send(lambda: self._raft.proposing.propose_configuration(following, on_outcome))
        return future

    async def check_answers(self, node_id: int, address: PeerAddress) -> None:
        """OSError, TimeoutError, UnicodeError or ProtocolError unless that node of this cluster answers there."""
        await self._transport.check_answers(node_id, address)

    def is_caught_up(self, peer: int) -> bool:
        """Leader: whether that node has everything but the newest entries, and may vote."""
        return self._raft.replication.is_caught_up(peer)

    # --- proposing ---------------------------------------------------------------------------------------------

    def propose(self, proposal: Proposal, sender: str = OWN) -> Proposed:
        """Propose a command of a sender; the future resolves when it is fsynced on a majority and applied here.

        Raises at once, with nothing appended: NotLeader, NoLeader, Overloaded, NodeStopped, FeatureNotEnabled. The
        awaitable raises Refused (the command was carried to every replica and changed nothing), UnknownOutcome (retry
        with the same id), DiskFull.
        """
        self._check_leads()
        return self._proposals.submit(proposal, sender)

    def use_weights(self, weight_of: Callable[[str], int]) -> None:
        """Have senders take turns in front of the log by their weights, each at least 1. All are equal without it."""
        self._proposals.use_weights(weight_of)

    def refuse_waiting(self, error: RaftError) -> None:
        """Tell all who wait for a place in the log this error: nothing of theirs was appended."""
        self._proposals.fail_waiting(error)

    def _check_leads(self) -> None:
        if self._stopping or self._failed:
            raise NodeStopped("the node is stopping")
        if self._handing_over:
            raise NoLeader("leadership is being handed over")
        if self._state.role != LEADER:
            if self.leader_id is None:
                raise NoLeader(self.vacancy.why_nobody_leads())
            raise NotLeader(self.leader_id)
        if self.feature_levels.may_be_new:  # a new cluster gets its level before its first command, or other change
            self.feature_levels.tick()

    def _append_entry(self, payload: bytes, on_outcome: Callable[[Entry | None, Any], None]) -> int:
        return self._append_and_send(partial(self._raft.proposing.propose, payload, on_outcome))

    def _append_and_send(self, append: Callable[[], int]) -> int:
        """Append an entry, send it to the followers, and have it synced here meanwhile. Raises what `append` does."""
        try:
            index = append()
        except (RaftError, DiskFull) as error:
            if isinstance(error, DiskFull):
                self.disks.on_log_full()
            raise  # nothing was appended; the proposers are told
        except Exception as error:
            self._fail_with(error)
            raise
        try:
            self._raft.proposing.send()
        except Exception as error:  # the entry may commit all the same: nobody is told an outcome any more
            self._fail_with(error)
        self._log_sync.request()
        return index

    # --- driving -----------------------------------------------------------------------------------------------

    def _guarded(self, handler: Callable[..., None]) -> Callable[..., None]:
        def handle(*arguments: Any) -> None:
            if self._failed:
                return
            try:
                handler(*arguments)
            except ProtocolError:
                raise  # the connection is at fault, and closed; this node is not
            except DiskFull as error:  # the message is dropped, as if it had been lost on the way
                log.warning("dropping a message of a peer, as if it had been lost on the way: %s", error)
            except Exception as error:
                self._fail_with(error)
            else:
                self._after_event()

        return handle

    def _after_event(self) -> None:
        """Go on after a message or a sync: sync what it appended, and commit and apply what it made possible."""
        if self._log.synced_index < self._log.last_index:
            self._log_sync.request()
            if self._state.role != LEADER:
                return  # the tick comes with the sync's end; it would only delay the acknowledgement now
        # What piles up is done once, in the next turn of the loop; a commit, for which somebody waits, at once.
        if self._is_going_on or self._raft.wants_step or self._raft.replication.may_send_on:
            self._go_on_soon()
        elif self._raft.may_commit:
            self._drive(self._raft.advance)
        else:
            self._commit_notice.soon()

    def _go_on_soon(self) -> None:
        """Go on in the next turn of the loop, after the messages that have arrived by then."""
        if not self._is_going_on:
            self._is_going_on = True
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._is_going_on = False
        self._drive(self._raft.step if self._raft.wants_step else self._raft.advance)

    def _after_sync(self, took_s: float | None) -> None:
        if self._failed:
            return
        if took_s is not None:
            self.disks.note_sync(took_s)
        try:
            self._raft.on_synced()
        except Exception as error:
            self._fail_with(error)
        else:
            self._after_event()

    def _sync_failed(self, error: BaseException) -> None:
        self._fail(f"the commit log cannot be synced: {error}")

    def _drive(self, go_on: Callable[[], None]) -> None:
        """Have the handlers go on, and then do what follows from it: tell the listeners, sync, notify of commits."""
        if self._failed:
            return
        applied_before = self._state.last_applied
        try:
            go_on()
            if self.feature_levels.may_be_new:
                self.feature_levels.tick()
            # before any answer leaves that goes by what was committed now: they are written in a later turn of the loop
            if self._state.knowledge.write(self._state.commit_index):
                self._log_sync.request()
        except DiskFull as error:
            log.warning("this step of the node ended early, and the next one tries again: %s", error)
        except Exception as error:
            self._fail_with(error)
            return
        if self._log.synced_index < self._log.last_index:
            self._log_sync.request()
        if self._state.last_applied != applied_before:
            self._applied_listeners.tell()
        if self._raft.applier.has_unapplied and not self._applying.waits_for_index:
            self._go_on_soon()
        self._commit_notice.soon()

    async def _tick_for_ever(self) -> None:
        try:
            while True:
                self._drive(self._raft.step)
                await asyncio.sleep(self._raft.pause_s())
        except Exception as error:  # nobody awaits this task
            self._fail_with(error)

    def fall_silent(self, start_again: Callable[[], None]) -> None:
        """Promise nothing any more, and start again with another state."""
        self._failed = True
        self._raft.sender.gate.discard()
        start_again()

    def _fail_with(self, error: Exception) -> None:
        if isinstance(error, UnknownFeatureLevel) and not self._failed:
            self._failed = True
            self._on_outdated(str(error))
            return
        log.exception("the node cannot go on and stops", exc_info=error)
        self._fail(f"{type(error).__name__}: {error}")

    def _fail(self, reason: str) -> None:
        if not self._failed:
            self._failed = True
            self._on_fatal(reason)
