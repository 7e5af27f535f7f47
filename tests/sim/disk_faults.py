"""Disks that are slow, full or failing."""

from collections.abc import Callable, Mapping

from tests.simdisk import io_error

from .fault import PAUSE_US_MAX, PAUSE_US_MIN, Action, Fault
from .replica import HARD_STATE, LOG, Replica
from .world import World

RESERVED_BYTES = 32 * 1024 * 1024  # the commit log never takes the last of a disk
SLOW_SYNC_US_CHOICES = (20_000, 100_000, 400_000, 4_000_000)
FAILING_READS_MAX = 3
DESCRIPTORS_MAX = 6
FULL_FOR_LONG_US = 9_000_000  # until the load is over


class DiskFaults:
    def __init__(self, world: World, replicas: Mapping[int, Replica]) -> None:
        self._world, self._replicas = world, replicas
        self.table: dict[str, Action] = {
            "slow_sync": self._on_any(self._slow_sync, leader_probability=0.5),
            "sync_failure": self._on_any(self._sync_failure),
            "hard_state_failure": self._on_any(self._hard_state_failure),
            "read_failure": self._on_any(self._read_failure),
            "disk_full": self._on_any(self._disk_full),
            "leader_disk_full": self._on_any(self._full_for_long, leader_probability=1.0),
            "no_descriptors": self._on_any(self._no_descriptors, leader_probability=0.5),
        }

    def heal(self) -> None:
        """Make space on every disk and end all failures."""
        for replica in self._replicas.values():
            while replica.disk.is_full:
                replica.disk.make_space()
            replica.disk.clear_hooks()
            replica.disk.descriptors = None

    def _on_any(self, act: Callable[[Fault, Replica], None], leader_probability: float = 0.0) -> Action:
        def action(fault: Fault) -> None:
            alive = [replica for replica in self._replicas.values() if replica.alive]
            leaders = [replica for replica in alive if replica.is_leader]
            if alive:
                prefers = fault.random.random() < leader_probability
                act(fault, fault.random.choice(leaders if prefers and leaders else alive))

        return action

    def _slow_sync(self, fault: Fault, replica: Replica) -> None:
        disk, duration_us = replica.disk, fault.random.randint(PAUSE_US_MIN, 2 * PAUSE_US_MAX)
        disk.slow_sync_us = fault.random.choice(SLOW_SYNC_US_CHOICES)
        disk.slow_until_us = self._world.now_us + duration_us
        fault.happened(replica.node_id, disk.slow_sync_us // 1000, duration_us // 1000)

    def _sync_failure(self, fault: Fault, replica: Replica) -> None:
        """Make the kernel fail to write the dirty pages of the active segment: it drops them, and the next sync
        fails.
        """
        segments = [path for path in replica.disk.files(LOG) if path.endswith(".log")]
        if segments:
            replica.disk.fail_write_back(segments[-1])
            fault.happened(replica.node_id)

    def _hard_state_failure(self, fault: Fault, replica: Replica) -> None:
        """Make the next sync of term or vote fail: that of the file, or of the directory after the rename."""
        disk = replica.disk
        doomed = fault.random.choice((("fdatasync", f"{HARD_STATE}.tmp"), ("sync_directory", "/data")))

        def fail(operation: str, path: str) -> None:
            if (operation, path) == doomed and replica.alive:
                disk.remove_hook(fail)
                disk.failures_seen += 1
                fault.happened(replica.node_id, operation, path)
                raise io_error(operation, path)

        disk.add_hook(fail)

    def _read_failure(self, fault: Fault, replica: Replica) -> None:
        """Make some sectors unreadable: some reads of the log or the hard state fail, in recovery too."""
        disk, at = replica.disk, replica.disk.operations + fault.random.randint(0, 40)
        failures_left = fault.random.randint(1, FAILING_READS_MAX)

        def fail(operation: str, path: str) -> None:
            nonlocal failures_left
            if operation in ("pread", "read_bytes") and disk.operations >= at and replica.alive:
                failures_left -= 1
                if not failures_left:
                    disk.remove_hook(fail)
                disk.failures_seen += 1
                fault.happened(replica.node_id, operation, path)
                raise io_error(operation, path)

        disk.add_hook(fail)

    def _disk_full(self, fault: Fault, replica: Replica) -> None:
        """Fill the disk. The fault takes effect when the node wants to grow its log meanwhile."""
        disk, duration_us = replica.disk, fault.random.randint(PAUSE_US_MIN, PAUSE_US_MAX)
        disk.fill(RESERVED_BYTES, lambda: fault.happened(replica.node_id, duration_us // 1000))
        self._world.after(duration_us, disk.make_space)

    def _full_for_long(self, fault: Fault, replica: Replica) -> None:
        disk = replica.disk
        disk.fill(RESERVED_BYTES, lambda: fault.happened(replica.node_id, FULL_FOR_LONG_US // 1000))
        self._world.after(FULL_FOR_LONG_US, disk.make_space)

    def _no_descriptors(self, fault: Fault, replica: Replica) -> None:
        """Leave the process few files that it may open, or none; what it closes meanwhile, it may open again."""
        disk, duration_us = replica.disk, fault.random.randint(PAUSE_US_MIN, PAUSE_US_MAX)
        disk.descriptors = left = fault.random.randint(0, DESCRIPTORS_MAX)
        fault.happened(replica.node_id, left, duration_us // 1000)
        self._world.after(duration_us, lambda: setattr(disk, "descriptors", None))
