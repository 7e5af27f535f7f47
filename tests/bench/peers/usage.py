"""The users of the processor in one slice: the peer's servers, its client, this benchmark, and strangers."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from tests.bench.peers.processes import TICKS_PER_S

# Fields of the first line of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal.
_IDLE, _IOWAIT, _STEAL = 3, 4, 7


class MachineTime(NamedTuple):
    """Seconds of all cores since the machine's start: in use, kept by the host of a virtual machine, and all."""

    busy_s: float
    stolen_s: float
    total_s: float

    @classmethod
    def now(cls) -> "MachineTime":
        return cls.parse(Path("/proc/stat").read_text().split("\n", 1)[0])

    @classmethod
    def parse(cls, line: str) -> "MachineTime":
        """Read the first line of /proc/stat; the time of guests is part of user and nice."""
        ticks = [int(field) for field in line.split()[1:9]]
        total, stolen = sum(ticks), ticks[_STEAL]
        busy = total - stolen - ticks[_IDLE] - ticks[_IOWAIT]
        return cls(busy / TICKS_PER_S, stolen / TICKS_PER_S, total / TICKS_PER_S)


class Usage(NamedTuple):
    """The time used since the start, or between two samples, in seconds of processor time."""

    at_s: float
    servers_s: float
    client_s: float
    own_s: float
    machine: MachineTime

    @classmethod
    def now(cls, servers_s: Callable[[], float], client_s: Callable[[], float]) -> "Usage":
        return cls(time.monotonic(), servers_s(), client_s(), time.process_time(), MachineTime.now())

    def since(self, before: "Usage") -> "Usage":
        machine = MachineTime(*(now - then for now, then in zip(self.machine, before.machine, strict=True)))
        return Usage(
            self.at_s - before.at_s,
            self.servers_s - before.servers_s,
            self.client_s - before.client_s,
            self.own_s - before.own_s,
            machine,
        )

    @property
    def strangers_percent(self) -> float:
        """Share of all cores' time that neither this benchmark nor the measured peer used, and that was not idle.

        Time that the machine's host kept for others counts as theirs.
        """
        if self.machine.total_s <= 0:
            return 0.0
        ours = self.servers_s + self.client_s + self.own_s
        strangers = max(0.0, self.machine.busy_s - ours) + self.machine.stolen_s
        return 100 * strangers / self.machine.total_s


def per_message_us(cpu_s: float, messages: int) -> float:
    """Return the processor time per message in microseconds; 0 without messages."""
    return cpu_s * MICROSECONDS_PER_S / messages if messages else 0.0


MICROSECONDS_PER_S: Final = 1_000_000
