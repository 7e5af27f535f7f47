"""Run `make powerloss`: three nodes lose power, again and again, and every promise is compared with their disks.

The last line is `RESULT {json}`. The exit status is 1 when a promise was broken, and 0 otherwise, also when this
machine does not allow the run: RESULT then says why it was skipped.
"""

import argparse
import logging
import math
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from deploy.reporting.report import Report
from tests.powerloss.cluster import PowerCluster
from tests.powerloss.epoch import Broken, Epoch
from tests.powerloss.images import MAKING, Filesystem
from tests.powerloss.machine import Workspace, enter_isolation, usable_filesystems
from tests.powerloss.plan import draw_epoch
from tests.powerloss.tally import Tally

EPOCH_CYCLES: Final = 25
"""Default number of cycles per epoch: logs stay small enough to be read whole in every cycle."""
EXIT_VIOLATION, EXIT_BLIND = 1, 2
_SEED_BITS: Final = 32
_VIOLATIONS_SHOWN: Final = 20
BROKEN: Final = ("no_fsync", "no_index_flush")
"""Directories beside this file, each with a `sitecustomize` that breaks the nodes."""


class Interruption:
    """Ends the run at its next step, within seconds, after SIGTERM or Ctrl-C; a second Ctrl-C ends it at once.

    The signal handler raises nothing, because its exception could come out anywhere, also where a lock is being
    released.
    """

    def __init__(self) -> None:
        self._requested = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._request)

    def between(self, show: Callable[[str], None]) -> Callable[[str], None]:
        """Return a wrapper of `show`, which every step begins with: it raises KeyboardInterrupt after a signal."""

        def show_unless_requested(step: str) -> None:
            if self._requested:
                raise KeyboardInterrupt
            show(step)

        return show_unless_requested

    def _request(self, number: int, frame: object) -> None:
        self._requested = True
        signal.signal(signal.SIGINT, signal.default_int_handler)


def main(arguments: list[str]) -> int:
    settings = _parse(arguments)
    seed = random.SystemRandom().getrandbits(_SEED_BITS) if settings.seed is None else settings.seed
    reason = enter_isolation([*arguments, *([] if settings.seed is not None else ["--seed", str(seed)])])
    if reason is not None:
        return _skipped(Report(), reason)
    interruption = Interruption()
    logging.getLogger("keelmq").addHandler(logging.NullHandler())  # outages are expected here
    report = Report()
    wanted: list[Filesystem] = list(MAKING) if settings.filesystem == "both" else [settings.filesystem]
    tally = Tally(seed)
    try:
        with Workspace() as directory:
            usable, refused = usable_filesystems(wanted, directory)
            for filesystem, why in refused.items():
                report.event(f"without {filesystem}: {why}")
            if not usable:
                return _skipped(report, "; ".join(f"{name}: {why}" for name, why in refused.items()))
            report.step(f"SEED={seed}, {settings.cycles} cycles on {' and '.join(usable)}")
            doing = ""

            def show(step: str) -> None:
                nonlocal doing
                doing = step

            state, share = lambda: f"{tally.state()}: {doing}", lambda: tally.cycles / max(settings.cycles, 1)
            with report.live(state, share=share):
                _run_epochs(directory, usable, settings, tally, interruption.between(show))
    except KeyboardInterrupt:
        report.event("interrupted; everything is unmounted and removed")
        return 130
    report.table("KeelMQ without power", ("what", "how often"), tally.rows())
    for violation in tally.violations[:_VIOLATIONS_SHOWN]:
        report.text(f"VIOLATION {violation.kind}: {violation.detail}", "problem")
    if tally.violations:
        report.text(
            f"repeat with: make powerloss CYCLES={tally.cycles + 1} SEED={seed} FILESYSTEM={settings.filesystem}"
        )
    never_reached = tally.never_reached()
    if never_reached:
        report.text(f"never reached, so not tried: {', '.join(never_reached)}", "problem")
    report.result(tally.result(skipped_filesystems=refused))
    if tally.violations:
        return EXIT_VIOLATION
    return EXIT_BLIND if never_reached else 0


def _run_epochs(
    directory: Path, usable: list[Filesystem], settings: argparse.Namespace, tally: Tally, show: Callable[[str], None]
) -> None:
    """Run epochs until all cycles are done or a violation is found."""
    rng = random.Random(tally.seed)
    environment = {}
    if settings.broken:  # what it breaks are calls of Python
        environment = {"PYTHONPATH": str(Path(__file__).parent / settings.broken), "KEELMQ_LOG_SYNC": "thread"}
    cycles = settings.epoch
    with_retention = settings.retention == "always"
    if settings.retention == "alternate":
        with_retention = rng.random() < 1 / 2
        cycles = min(cycles, math.ceil(settings.cycles / 2))
    while tally.cycles < settings.cycles:
        plan = draw_epoch(rng, usable, retention=with_retention)
        cluster = PowerCluster(directory, plan.filesystems, plan.options, environment)
        epoch = Epoch(cluster, plan, rng.getrandbits(_SEED_BITS), tally, show, settings.keep)
        try:
            epoch.run(min(cycles, settings.cycles - tally.cycles))
        except Broken:
            return
        if settings.retention == "alternate":
            with_retention = not with_retention


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.powerloss", description=__doc__)
    parser.add_argument("--cycles", type=int, default=20, help="number of power losses (default: 20)")
    parser.add_argument("--seed", type=int, help="repeat the choices of an earlier run (default: a fresh seed)")
    parser.add_argument("--filesystem", choices=[*MAKING, "both"], default="both")
    parser.add_argument(
        "--epoch",
        type=int,
        default=EPOCH_CYCLES,
        help="cycles before a new cluster on new disks (default: %(default)s)",
    )
    parser.add_argument("--keep", type=Path, metavar="DIR", help="target of a copy of the data at a violation")
    parser.add_argument(
        "--retention",
        choices=["alternate", "always", "never"],
        default="alternate",
        help="whether topics keep messages for a short time, so that the front of the log goes (default: every other "
        "epoch)",
    )
    parser.add_argument("--broken", choices=BROKEN, help="run nodes with this defect, which must be found")
    return parser.parse_args(arguments)


def _skipped(report: Report, reason: str) -> int:
    report.event(f"skipped: {reason}")
    report.result({"skipped": reason})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
