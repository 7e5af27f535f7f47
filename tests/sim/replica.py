"""One broker node of the simulation: real RaftNode, commit log, hard state, state machine, RocksDB index and services.

Simulated are the wire, the disk under the log, the clock, and the thread or kernel that syncs. The index is a RocksDB
or its replacement (index_files.py). A dead process leaves only flushed data of the index.
"""

from asyncio.events import _get_running_loop, _set_running_loop
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple
from unittest import mock

import raft.node
import store.snapshots.install
from cluster.core.long_poll import AppliedWaiters
from raft.config import RaftConfig
from raft.events import NodeEvents
from raft.handlers import SafeRaft
from raft.health.clock import Clock
from raft.library import LEADER
from raft.storage import Storage
from store.log.commit_log import CommitLog
from store.log.errors import DiskFull, LogError
from store.log.hard_state import HardState
from store.log.watermarks import Watermarks
from store.snapshots.install import SnapshotStore
from tests.simdisk import PowerLost

from .addresses import draw_override, peer_address, url
from .checkers.durable_log import DurableLog
from .checkers.refusals import watch_refusals
from .checkers.whole_entries import watch_cuts
from .disk import TimedDisk
from .fiber import Fiber
from .freezer import Freezer
from .front import Front
from .index_files import IndexFiles
from .kernel_sync import SimKernelSync
from .log_cuts import CutSettings, cut
from .loop import SimLoop
from .network import Network, incarnation
from .node_index import NodeIndex
from .observer import Observer
from .settings import Settings
from .sim_transport import SimTransport
from .threads import Running
from .wire import ClientNetwork
from .world import EPOCH_MS, MICROSECONDS_PER_SECOND, World

DATA, LOG, HARD_STATE = "/data", "/data/log", "/data/hard_state"
WAKE_US_MAX = 60  # until the kernel lets a woken thread run
KERNEL_PROBABILITY = 0.5  # that a node's log is synced by the kernel and not by a thread


class Image(NamedTuple):
    """The contents of a node's disk at some time."""

    files: dict[str, bytes]
    index: str  # type: ignore[assignment]  # the name of the copy; hides tuple.index


class Replica:
    """A node's disk and clock, and its process while that runs."""

    def __init__(
        self,
        world: World,
        network: Network,
        clients: ClientNetwork,
        node_id: int,
        settings: Settings,
        observer: Observer,
        index_files: IndexFiles,
    ) -> None:
        self.world, self.network, self.node_id, self.settings = world, network, node_id, settings
        self.clients, self.observer = clients, observer
        self.wipes = 0
        self._incarnation_wipes = 0  # as far as the node itself knows
        self._wipe_due = False
        self.disk = self._new_disk()
        self.durable = DurableLog(self.disk, LOG, HARD_STATE, observer.safety.committed.term_of)
        self._restarting = False  # a decided snapshot is being put in place
        self.fibers: list[Fiber] = []
        self.wall_offset_ms = 0
        self.skew_us = 0
        self.alive = False
        self.buried = True  # down, and everything of the last life is cleared away
        self.on_down: Callable[[Replica], None] = lambda replica: None
        self._random = world.random_of(f"scheduling {node_id}")
        self._indexes = NodeIndex(index_files, node_id)
        self.life = 0
        self._front: Front | None = None
        self._stop_task: Any = None
        self._freezer = Freezer(world)
        self._held_us = self._worked_us = 0
        by_kernel = world.random_of(f"syncs {node_id}").random() < KERNEL_PROBABILITY
        kernel = world.random_of(f"kernel {node_id}")
        self._syncs = lambda: SimKernelSync(self, self.loop, kernel) if by_kernel else None

    @property
    def joins(self) -> bool:
        """True when the node joins instead of founding: it is not one of the first, or its disk is new and the members
        have changed since the cluster began. A lone founder would begin a cluster of its own.
        """
        if self.node_id not in self.settings.founders:
            return True
        return self.wipes > 0 and self.observer.membership.has_changed(self.observer.safety.committed.knows)

    @property
    def raft(self) -> SafeRaft:
        return self.node._raft

    @property
    def has_recovered(self) -> bool:
        return self._front is not None

    @property
    def front(self) -> Front:
        assert self._front is not None, "it has recovered"
        return self._front

    def term_at(self, index: int) -> int | None:
        """Return the term of an entry, as the process sees it, or the committed term if only the state holds the
        entry.
        """
        log = self.log
        if 0 < index < log.first_index or log.last_index < index <= self.machine.applied_index:
            return self.observer.safety.committed.term_of(index)
        return log.term_at(index) if log.first_index <= index <= log.last_index else None

    @property
    def is_leader(self) -> bool:
        return self.alive and bool(self.raft.state.role == LEADER)

    @property
    def now_us(self) -> int:
        """The time by the node's own monotonic clock, in microseconds."""
        return self.world.now_us + self.skew_us

    # --- life --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Recover from what the disk holds, and run."""
        self.life += 1
        self._front = None
        self._indexes.begin_life()
        self._freezer.begin_life()
        self._held_us = 0
        self.disk.failures_seen = 0
        self.disk.descriptors = None  # a new process has none open
        self.alive, self.buried = True, False
        self.fibers = []
        self._stop_task = None
        self.loop = SimLoop(  # type: ignore[abstract]  # as much of a loop as a node uses
            self.world, self.run, lambda error: self.on_fatal(f"unhandled {error!r}")
        )
        self.run(self._open)

    def _open(self) -> None:
        settings = self.settings
        self._install()
        self.index = self._indexes.open()
        waiters = AppliedWaiters()
        self.machine = self.observer.make_machine(self, self.index, waiters, settings)
        hard_state = HardState(self.disk, HARD_STATE)
        watermarks = Watermarks.open(self.disk, DATA)
        self.log = CommitLog.open(
            self.disk,
            LOG,
            segment_bytes=settings.segment_bytes,
            cache_bytes=settings.cache_bytes,
            applied_index=self.machine.applied_index,
            committed_index=watermarks.committed_index,
            may_be_new=hard_state.term == 0 and not hard_state.voter,
        )
        if self._restarting:
            self.disk.damages = [each for each in self.disk.damages if not each.path.startswith(LOG)]
        self._restarting = False
        self.world.trace("open", self.node_id, self.log.recovery.case.value, self.log.last_index)
        config = RaftConfig(
            cluster_id="simulated",
            node_id=self.node_id,
            listen=peer_address(self.node_id),
            peers={} if self.joins else self.settings.peers_of(self.node_id),
            override=draw_override(self),
            urls={} if self.joins else {peer: url(peer) for peer in self.settings.founders},
            joins=self.joins,
            election_timeout_ms=settings.election_timeout_ms,
            heartbeat_ms=settings.heartbeat_ms,
            max_clock_skew_ms=settings.max_clock_skew_ms,
            max_entries_in_flight=settings.max_entries_in_flight,
            max_entry_bytes=settings.max_entry_bytes,
            max_in_flight_bytes=settings.max_in_flight_bytes,
            incarnation=self.incarnation,
            retain_behind_bytes=settings.cuts.retain_behind_bytes if settings.cuts else 1 << 30,
        )
        self._transport = SimTransport(self)
        clock = Clock(self._wall_ms, worked_s=lambda: self._worked_us / MICROSECONDS_PER_SECOND)
        snapshots = SnapshotStore(self.disk, DATA, self.index, self._indexes)
        with mock.patch.object(raft.node, "TcpTransport", return_value=self._transport):
            self.node = raft.node.RaftNode(
                config,
                Storage(self.log, hard_state, self.machine, watermarks, snapshots, background_sync=self._syncs),
                NodeEvents(self.on_fatal, on_installed=self._on_decided, on_forgotten=self._on_forgotten),
                clock=clock,
            )
        self.observer.on_start(self)
        watch_cuts(self)
        watch_refusals(self)
        self._front = Front(self, self.settings.node_config(self.node_id, self.network.node_ids), waiters, clock)
        self.loop.create_task(self._front.serve())
        if settings.cuts is not None:
            self._cut_later(settings.cuts, self.life)

    def _install(self) -> None:
        self._restarting = self._restarting or self.disk.exists(f"{DATA}/{store.snapshots.install.DECISION_FILE}")
        if (decision := store.snapshots.install.finish_install(self.disk, DATA, self._indexes)) is not None:
            self.observer.on_installed(self, decision.base.index)

    @property
    def throws_its_log_away(self) -> bool:
        """True when the next start begins an empty log, whatever the present one holds."""
        return self._restarting or f"{DATA}/{store.snapshots.install.DECISION_FILE}" in self.disk.files(DATA)

    def _on_decided(self) -> None:
        self.observer.on_decided(self)
        self.loop.call_soon(self.stop)

    def _on_forgotten(self) -> None:
        """Go on with a disk that was put back as with a new one, now that the node has found out."""
        self.observer.on_forgotten(self)
        self._incarnation_wipes = self.wipes
        self.loop.call_soon(self.stop)

    def _cut_later(self, cuts: CutSettings, life: int) -> None:
        def again() -> None:
            if self.alive and self.life == life:
                with self.observer.finding():
                    self.run(lambda: cut(self, cuts, self.observer.note))
                self._cut_later(cuts, life)

        self.world.after(self._random.randint(1, 2 * cuts.pause_us), again)

    def crash(self, *, power_loss: bool) -> None:
        """Kill the process at once; with `power_loss` the disk forgets, in part, writes that were not synced."""
        if not self.alive:
            return
        self.alive = self.loop.alive = False
        self.world.trace("down", self.node_id, "power" if power_loss else "kill")
        if power_loss:
            self.disk.lose_power()
        else:
            self.disk.kill_process()
        if self._front is not None:
            self._front.end(silently=power_loss)
        self.world.after(0, self._bury)  # not here: the dying node's own code may still be on the stack

    def wipe(self) -> None:
        """Kill the machine if it runs, and replace it by one with an empty disk under the same node id."""
        if self.buried:
            self._indexes.forget()
            self._replace_disk()
        else:
            self._wipe_due = True
            self.crash(power_loss=True)

    def take_image(self) -> Image | None:
        """Return the disk and the index as a power loss would leave them; None while they would not be one state."""
        if not self.alive or not self.has_recovered or self.disk.is_damaged or self._restarting or self.is_put_back:
            return None
        files = self.disk.image()
        if f"{DATA}/{store.snapshots.install.DECISION_FILE}" in files or HARD_STATE not in files:
            return None
        return Image(files, self._indexes.take_image())

    def put_back(self, image: Image) -> None:
        """Put the disk and the index of this node, which is down, back to the image."""
        self.durable.remember()
        self.disk.put_back(image.files)
        self._indexes.put_back(image.index)
        self.wipes += 1
        self.durable.put_back()
        self.observer.on_put_back(self)

    @property
    def is_put_back(self) -> bool:
        """True when the disk was put back and the node does not know it yet."""
        return self.wipes != self._incarnation_wipes

    def _replace_disk(self) -> None:
        self._restarting = False
        self.wipes += 1
        self._incarnation_wipes = self.wipes
        self.disk = self._new_disk()
        self.durable.wiped(self.disk)
        self.observer.on_wiped(self)

    @property
    def incarnation(self) -> str:
        return incarnation(self.node_id, self._incarnation_wipes)

    def incarnation_of(self, peer: int) -> str:
        """Return the incarnation that the peer named when it connected last."""
        return str(getattr(self._transport.peers[peer], "incarnation", ""))

    def _new_disk(self) -> TimedDisk:
        disk = TimedDisk(self.world, self.world.random_of(f"disk {self.node_id}.{self.wipes}"))
        disk.resume_sync, disk.on_synced = self.resume_fiber, self._note_sync
        return disk

    def _note_sync(self, fiber: Fiber) -> None:
        by = "the kernel" if fiber.of_kernel else "a thread"
        self.observer.note(f"sync: by {by}{' while the loop stood' if self._freezer.stands else ''}")

    def stop(self) -> None:
        """Stop gracefully: hand leadership over and close all files. `on_down` follows."""

        async def stop() -> None:
            await self.front.leave()
            try:
                self.log.close()
                self.index.flush()
            except LogError as error:
                self.on_fatal(str(error))
                return
            self.alive = self.loop.alive = False
            self.front.end(silently=False)
            self.world.trace("down", self.node_id, "stop")
            self.disk.kill_process()
            self.world.after(0, self._bury)

        def begin() -> None:
            if self._stop_task is None:
                self._stop_task = self.loop.create_task(stop())

        self.run(begin)

    def _bury(self) -> None:
        self.network.detach(self.node_id)
        for fiber in self.fibers:
            fiber.kill()
        self.loop.close_tasks()
        if self._wipe_due:
            self._replace_disk()
        else:
            self._indexes.leave_flushed()
        self._indexes.end_life(keep=not self._wipe_due)
        self._wipe_due = False
        self.buried = True
        self.on_down(self)

    def dispose(self) -> None:
        """Release everything at the end of the run."""
        if self.alive:
            self.alive = self.loop.alive = False
            for fiber in self.fibers:
                fiber.kill()
            self.loop.close_tasks()
            self._indexes.close()

    # --- running -----------------------------------------------------------------------------------------------

    def freeze(self, duration_us: int) -> None:
        """Stop the node for `duration_us`, as SIGSTOP does. Messages that arrive wait."""
        self._freezer.freeze(duration_us)

    def take(self, duration_us: int) -> None:
        """Let the running step take `duration_us` of the node's clock. Nothing else of the node runs meanwhile."""
        self._held_us += duration_us
        self._worked_us += duration_us
        self.world.skew_us += duration_us

    def run(self, action: Callable[[], None]) -> None:
        """Run code of this node, on its loop and by its clock, and look at the node afterwards."""
        if not self._may_run(self.run, action):
            return
        world, observer = self.world, self.observer
        outer_node, outer_skew_us, outer_loop = Running.node, world.skew_us, _get_running_loop()
        Running.node, world.skew_us = self, self.skew_us
        _set_running_loop(self.loop)
        try:
            action()
            if self._held_us:
                observer.on_held(self, self._held_us)
                self.freeze(self._held_us)
                self._held_us = 0
            if self.alive:
                observer.after_step(self)
        except LogError as error:
            if isinstance(error, DiskFull) and self._restarting:  # the operator makes room and tries again
                self.observer.on_no_room(self, str(error))
                self.crash(power_loss=False)
            else:
                self.on_fatal(str(error))
        except PowerLost:
            assert not self.alive, "only a dead node's files are dead"
        finally:
            Running.node, world.skew_us = outer_node, outer_skew_us
            _set_running_loop(outer_loop)
        if observer.found is not None:
            raise observer.found

    def wake(self, fiber: Fiber) -> None:
        self.world.after(1 + int(self._random.random() * WAKE_US_MAX), partial(self.resume_fiber, fiber))

    def resume_fiber(self, fiber: Fiber) -> None:
        if fiber not in self.fibers:
            return
        if self.alive if fiber.of_kernel else self._may_run(self.resume_fiber, fiber):
            fiber.resume()

    def _may_run(self, again: Callable[[Any], None], what: Any) -> bool:
        """Return False when the node is dead or frozen; then `again(what)` is called after it."""
        return self.alive and self._freezer.may_run(again, what)

    def receive(self, source: int, message: Any, *, forged: bool = False) -> None:
        self.run(lambda: self._transport.deliver(source, message, forged=forged))

    def link_up(self, peer: int) -> None:
        incarnation = self.network.endpoint(peer).incarnation  # now: when we thaw, another may be there
        self.run(lambda: self._transport.peer_up(peer, incarnation))

    def link_down(self, peer: int) -> None:
        self.run(lambda: self._transport.peer_down(peer))

    @property
    def true_ms(self) -> int:
        """Return the time of a right wall clock, in milliseconds."""
        return EPOCH_MS + self.world.now_us // 1000

    def _wall_ms(self) -> int:
        return self.true_ms + self.wall_offset_ms

    def on_fatal(self, reason: str) -> None:
        if not self.alive:
            return  # the crash itself came out of a file operation
        self.observer.on_fatal(self, reason)
        self.crash(power_loss=False)
