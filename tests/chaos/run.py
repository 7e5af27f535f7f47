"""A run: one epoch after the other, each a fresh cluster on empty disks, summed up in one result.

The product keeps every message, so the disks, the ledgers and the verdict of an hour in one piece would grow without
bound. The first epoch has the run's seed, and the others have seeds that follow from it: each epoch can be repeated
alone.
"""

import logging
import logging.handlers
import math
import random
import resource
import shutil
from pathlib import Path
from typing import Any, Final

import msgspec

from tests.chaos.broken import DEFECTS
from tests.chaos.cluster import SPARES
from tests.chaos.display import Display
from tests.chaos.epoch import Epoch, Plan
from tests.chaos.isolation import Machine
from tests.chaos.nemeses.catalogue import Choice, summary_of
from tests.chaos.network import Network
from tests.chaos.report import Figures, result_of
from tests.chaos.self_test import verdict_on_defect
from tests.chaos.violations import Violations

SEEDS: Final = 1_000_000
CLIENT_LOG_BYTES: Final = 32 << 20


def epoch_seeds(seed: int, count: int) -> list[int]:
    following = random.Random(f"epochs of {seed}")
    return [seed, *(following.randrange(SEEDS) for _ in range(count - 1))]


class RunPlan(msgspec.Struct, frozen=True):
    """The settings of a run from the command line."""

    seed: int
    minutes: float
    epoch_minutes: float
    """Maximum minutes of an epoch; all epochs are equally long."""
    nodes: int
    rate: int
    broken: str | None = None
    """Defect of the nodes or clients, or None; with one, the run ends with the first violation."""

    @property
    def epochs(self) -> int:
        return max(1, math.ceil(self.minutes / self.epoch_minutes))

    @property
    def minutes_per_epoch(self) -> float:
        return self.minutes / self.epochs


class Run:
    """Runs the epochs. `await run.execute()` returns the result. An epoch that breaks a promise is the last one."""

    def __init__(self, plan: RunPlan, choice: Choice, machine: Machine, directory: Path, display: Display) -> None:
        self.violations = Violations()
        """Violations of the present or last epoch."""
        self.seed = plan.seed
        """Seed of the present or last epoch."""
        self.plan = plan
        self._choice = choice
        self._machine = machine
        self._directory = directory
        self._display = display

    async def execute(self, *, keep: bool = False) -> dict[str, Any]:
        """Run the epochs and return the result. With `keep`, the directories of innocent epochs (node logs and history)
        stay.
        """
        plan, display = self.plan, self._display
        for line in summary_of(self._choice.skipped):
            display.event("step", line)
        network = Network(range(1, plan.nodes + 1 + SPARES)) if self._machine.isolated else None
        if plan.broken is not None and DEFECTS[plan.broken].in_client:
            DEFECTS[plan.broken].install()
        done: list[Figures] = []
        for number, self.seed in enumerate(epoch_seeds(plan.seed, plan.epochs), 1):
            if plan.epochs > 1:
                display.event("step", f"epoch {number} of {plan.epochs}, seed {self.seed}")
            directory = self._directory / f"epoch{number}"
            directory.mkdir()
            epoch_plan = Plan(self.seed, plan.minutes_per_epoch, plan.nodes, plan.rate, plan.broken)
            epoch = Epoch(epoch_plan, self._choice.kinds, self._machine, network, directory, display)
            self.violations = epoch.violations
            done.append(await epoch.execute())
            display.acked_before += done[-1].acked
            if self.violations:
                break
            if not keep:
                shutil.rmtree(directory)
        memory_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        result: dict[str, Any] = {"seed": plan.seed, "minutes": plan.minutes, "nodes": plan.nodes}
        result |= {"skipped": sorted(self._choice.skipped)} | result_of(done, self.violations, memory_bytes)
        return result | (verdict_on_defect(result, plan.broken) if plan.broken is not None else {})


def log_to(path: Path) -> None:
    """Write the SDK's log to a file: its warnings belong to the evidence, not on the screen. The newest are kept."""
    handler = logging.handlers.RotatingFileHandler(path, maxBytes=CLIENT_LOG_BYTES, backupCount=1)
    logging.basicConfig(handlers=[handler], level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
