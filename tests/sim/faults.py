"""The faults of a plan, injected at their moments. This module holds the faults of processes and clocks."""

from collections.abc import Iterable, Mapping
from functools import partial

from tests.simdisk import PowerLost

from .damage_faults import DamageFaults
from .disk import kind_of
from .disk_faults import DiskFaults
from .fault import DOWN_US_MAX, DOWN_US_MIN, PAUSE_US_MAX, PAUSE_US_MIN, Action, Fault, minority, minority_impaired
from .network import Network
from .network_faults import NetworkFaults
from .observer import Observer
from .plan import FAULT_KINDS, PlannedFault
from .put_back_faults import PutBackFaults
from .replica import Replica
from .stranger_faults import StrangerFaults
from .world import MICROSECONDS_PER_SECOND, World

YEAR_MS = 365 * 24 * 3_600_000
JUMPS_MS = (-YEAR_MS, -3_600_000, -30_000, 1_000, 30_000, 3_600_000, YEAR_MS)
STROBES_MS = (20, 5_000, 600_000, YEAR_MS)
ANY_OPERATION = ("any", "file")
CRASH_POINTS = (
    *(("pwrite", "segment"), *(("fdatasync", "segment"),) * 3, ("truncate", "segment"), ("rename", "segment")),
    *(("open", "segment"), ("allocate", "next-segment"), ("fdatasync", "next-segment"), ("pwrite", "sidecar")),
    *(("pwrite", "synced"), ("fdatasync", "synced"), *(("sync_directory", "log"),) * 3, ("unlink", "segment")),
    *(("pwrite", "hard_state"), ("fdatasync", "hard_state"), ("rename", "hard_state"), ("sync_directory", "data")),
    *(
        ("fdatasync", "install"),
        ("rename", "install"),
        ("unlink", "install"),
        ("rename", "base"),
        ("fdatasync", "base"),
    ),
)


class Faults:
    """Inject faults into a running cluster until `stop_and_heal`, and start nodes again that are down."""

    def __init__(self, world: World, network: Network, replicas: Mapping[int, Replica], observer: Observer) -> None:
        self._world, self._network, self._replicas, self._observer = world, network, replicas, observer
        self._restarts = {node_id: world.random_of(f"restart {node_id}") for node_id in replicas}
        self.running = True
        self.counts = dict.fromkeys(FAULT_KINDS, 0)
        self.fired: set[int] = set()
        self._disks = DiskFaults(world, replicas)
        self._put_backs = PutBackFaults(world, replicas, lambda: self.running)
        self.table: dict[str, Action] = {
            "kill": lambda fault: self._crash(fault, self._any(fault), power_loss=False),
            "kill_leader": lambda fault: self._crash(fault, self._leader(fault), power_loss=False),
            "power_loss": lambda fault: self._crash(fault, self._any(fault), power_loss=True),
            "power_loss_leader": lambda fault: self._crash(fault, self._leader(fault), power_loss=True),
            "power_loss_all": self._power_loss_all,
            "crash_in_operation": self._crash_in_operation,
            "graceful_stop": self._graceful_stop,
            "freeze": self._freeze,
            "wipe": self._wipe,
            **self._put_backs.table,
            **NetworkFaults(world, network, lambda: self.running).table,
            **self._disks.table,
            **DamageFaults(world, replicas).table,
            **StrangerFaults(world, replicas).table,
            "wall_clock_jump": self._wall_clock_jump,
            "wall_clock_strobe": self._wall_clock_strobe,
            "clock_jump": self._clock_jump,
        }
        assert self.table.keys() == set(FAULT_KINDS)
        self._true_time = observer.true_time
        self._true_time.is_minority = lambda nodes: not nodes or minority(replicas, nodes)
        for replica in replicas.values():
            replica.on_down = self._on_down

    def schedule(self, faults: Iterable[PlannedFault]) -> None:
        for planned in faults:
            self._world.after(planned.at_us - self._world.now_us, self._injection(planned))

    def stop_and_heal(self) -> None:
        """End all faults: mend links, empty disks, replace damaged disks, and start every node again."""
        self.running = False
        self._network.heal()
        self._disks.heal()
        for replica in self._replicas.values():
            if replica.wall_offset_ms:
                self._set_wall_clock_right(replica)
            if replica.disk.is_damaged:
                self._observer.find_damage(replica)
                replica.wipe()
            if not replica.alive:
                self._restart_later(replica)

    def _set_wall_clock_right(self, replica: Replica) -> None:
        """End the leaps of the node's wall clock. A lone voter, which can compare its clock with nobody's, is restarted
        too: only so does it take the leap for true (raft/health/clock_agreement.py).
        """
        self._leap(replica, -replica.wall_offset_ms)
        if replica.alive and replica.raft.state.configuration.voters == {replica.node_id}:
            replica.crash(power_loss=False)

    def _injection(self, planned: PlannedFault) -> Fault:
        return Fault(planned, self._world, self._happened, self.table[planned.kind], lambda: self.running)

    def _happened(self, fault: Fault) -> None:
        self.counts[fault.kind] += 1
        self.fired.add(fault.number)

    # --- processes -------------------------------------------------------------------------------------------

    def _any(self, fault: Fault) -> Replica | None:
        alive = [replica for replica in self._replicas.values() if replica.alive]
        return fault.random.choice(alive) if alive else None

    def _leader(self, fault: Fault) -> Replica | None:
        leaders = [replica for replica in self._replicas.values() if replica.is_leader]
        return fault.random.choice(leaders) if leaders else None

    def _crash(self, fault: Fault, replica: Replica | None, *, power_loss: bool) -> None:
        if replica is not None:
            fault.happened(replica.node_id)
            replica.crash(power_loss=power_loss)

    def _power_loss_all(self, fault: Fault) -> None:
        if fault.random.random() < 0.7:
            return  # rarer than the rest: it leaves nobody to go on
        fault.happened()
        for replica in self._replicas.values():
            replica.crash(power_loss=True)

    def _crash_in_operation(self, fault: Fault) -> None:
        """Crash the node right before an operation on its disk: any, a chosen one, or one in recovery."""
        replica, random = self._any(fault), fault.random
        if replica is None:
            return
        disk, power_loss = replica.disk, random.random() < 0.6
        target = random.choice((ANY_OPERATION, ANY_OPERATION, *CRASH_POINTS))
        recovery = random.random() < 0.3
        left = random.randint(1, 30 if recovery or target == ANY_OPERATION else 3)

        def strike(operation: str, path: str) -> None:
            nonlocal left
            if not replica.alive or (recovery and not self._observer.is_recovering(replica.node_id)):
                return
            kind = kind_of(path)
            if recovery or target in (ANY_OPERATION, (operation, kind)):
                left -= 1
            if left:
                return
            disk.remove_hook(strike)
            moment = "recovery" if self._observer.is_recovering(replica.node_id) else "service"
            fault.happened(replica.node_id, operation, kind, moment, "power" if power_loss else "kill")
            self._observer.on_strike(operation, kind, moment)
            replica.crash(power_loss=power_loss)
            raise PowerLost(f"at {operation} {path}")

        disk.add_hook(strike)
        if recovery:
            replica.crash(power_loss=random.random() < 0.7)

    def _graceful_stop(self, fault: Fault) -> None:
        replica = self._any(fault)
        if replica is not None:
            fault.happened(replica.node_id)
            replica.stop()

    def _wipe(self, fault: Fault) -> None:
        """Replace one node's disk for good, while no more than a minority has lost anything."""
        replica = self._any(fault)
        if replica is not None and minority_impaired(self._replicas, replica.node_id):
            fault.happened(replica.node_id)
            replica.wipe()

    def _freeze(self, fault: Fault) -> None:
        replica = self._any(fault)
        if replica is not None:
            duration_us = fault.random.randint(PAUSE_US_MIN, 2 * PAUSE_US_MAX)
            fault.happened(replica.node_id, duration_us // 1000)
            replica.freeze(duration_us)

    def _on_down(self, replica: Replica) -> None:
        self._observer.on_down(replica)
        self._restart_later(replica)

    def _restart_later(self, replica: Replica) -> None:
        def start() -> None:
            if self._put_backs.holds(replica.node_id):
                self._restart_later(replica)
            elif not replica.alive and replica.buried:
                replica.start()

        self._world.after(self._restarts[replica.node_id].randint(DOWN_US_MIN, DOWN_US_MAX), start)

    # --- clocks ----------------------------------------------------------------------------------------------

    def _clock_to_leap(self, fault: Fault) -> Replica | None:
        """Return a replica whose clock may leap; None if no clock may. At most a minority of clocks is wrong at once,
        and within the time for which a clock's reading counts.
        """
        wrong, alike = self._true_time.wrong(), list(self._replicas.values())
        allowed = [each for each in alike if self._true_time.is_minority(wrong | {each.node_id})]
        return fault.random.choice(allowed) if allowed else None

    def _wall_clock_jump(self, fault: Fault) -> None:
        """Make a right wall clock jump ahead or back, or set a wrong one right."""
        replica = self._clock_to_leap(fault)
        wrong = [each for each in self._replicas.values() if each.wall_offset_ms]
        if wrong and (replica is None or fault.random.random() < 0.4):
            replica = fault.random.choice(wrong)
            jump_ms = -replica.wall_offset_ms
        elif replica is not None:
            jump_ms = fault.random.choice(JUMPS_MS)
        else:
            return
        self._leap(replica, jump_ms)
        fault.happened(replica.node_id, jump_ms)

    def _wall_clock_strobe(self, fault: Fault) -> None:
        """Make the wall clock leap to and fro."""
        replica = self._clock_to_leap(fault)
        if replica is None:
            return
        jump_ms, times = fault.random.choice(STROBES_MS), 2 * fault.random.randint(2, 15)
        fault.happened(replica.node_id, jump_ms, times)
        at_us = 0
        for number in range(times):
            leap = partial(self._leap, replica, -jump_ms if number % 2 else jump_ms)
            self._world.after(at_us := at_us + fault.random.randint(1_000, 40_000), leap)

    def _leap(self, replica: Replica, jump_ms: int) -> None:
        if not jump_ms or not (self.running or replica.wall_offset_ms):
            return  # healed in the middle of a strobe
        replica.wall_offset_ms += jump_ms
        if replica.wall_offset_ms:
            self._true_time.set_wrong(replica.node_id)
        else:
            self._true_time.set_right(replica.node_id)

    def _clock_jump(self, fault: Fault) -> None:
        """Make the monotonic clock of one node leap ahead, as after a suspended virtual machine."""
        replica = fault.random.choice(list(self._replicas.values()))
        leap_us = fault.random.randint(100_000, 5 * MICROSECONDS_PER_SECOND)
        replica.skew_us += leap_us
        self._true_time.on_leap(leap_us / 1000)
        fault.happened(replica.node_id, leap_us // 1000)
