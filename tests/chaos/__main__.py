"""Run `python -m tests.chaos --minutes 1 --nemesis all --seed 7`: exit code 0 only when no promise was broken.

With `--broken NAME` the exit code is 0 only when the defect was found.
"""

import argparse
import asyncio
import secrets
import signal
import sys
import tempfile
from pathlib import Path
from typing import Final

import uvloop

from deploy.reporting.report import Report
from tests.chaos.broken import DEFECTS
from tests.chaos.directory import RunDirectory
from tests.chaos.display import Display
from tests.chaos.isolation import enter_isolation, look_around
from tests.chaos.nemeses.catalogue import choose
from tests.chaos.report import show
from tests.chaos.run import SEEDS, Run, RunPlan, log_to
from tests.chaos.self_test import ALL, find_all_guilty
from tests.requirements import DYING_WITH_PARENT

NODES: Final = 3
RATE: Final = 4_000
EPOCH_MINUTES: Final = 10.0
BROKEN_EPOCH_MINUTES: Final = 1.0
"""Default length of an epoch with a defect: a shorter epoch is judged more often, so the defect is found sooner."""
BAD_USAGE: Final = 2
BROKEN_PROMISE: Final = 1
INTERRUPTED: Final = 130
TERMINATED: Final = 143


def main() -> int:
    given = parser().parse_args()
    if DYING_WITH_PARENT.reason is not None:
        print(f"chaos: {DYING_WITH_PARENT.reason}", file=sys.stderr)
        return BAD_USAGE
    if given.broken == ALL:
        return find_all_guilty(options(given))
    seed = secrets.randbelow(SEEDS) if given.seed is None else given.seed
    # The seed is decided before the run moves into namespaces of its own, where it starts again.
    not_isolated = enter_isolation([*sys.argv[1:], "--seed", str(seed)])
    machine = look_around(not_isolated)
    try:
        choice = choose(given.nemesis, machine, given.nodes)
    except ValueError as error:
        print(f"chaos: {error}", file=sys.stderr)
        return BAD_USAGE
    if not choice.kinds:
        print(f"chaos: nothing of {given.nemesis} works here: {choice.skipped}", file=sys.stderr)
        return BAD_USAGE
    directory = RunDirectory(Path(given.directory))
    log_to(directory.path / "clients.log")
    report = Report()
    report.event(f"seed {seed}, repeat with: {command(given, given.minutes, seed)}")
    plan = RunPlan(seed, given.minutes, epoch_minutes(given), given.nodes, given.rate, given.broken)
    display = Display(f"chaos: {given.nodes} nodes, {given.nemesis}, seed {seed}", given.minutes * 60, report)
    run = Run(plan, choice, machine, directory.path, display)
    clean = False
    terminated: list[int] = []

    def on_terminate(number: int, frame: object) -> None:
        terminated.append(number)
        signal.raise_signal(signal.SIGINT)  # asyncio knows how to end by that one

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a script's background job begins with it ignored
    signal.signal(signal.SIGTERM, on_terminate)
    try:
        with display.live(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            result = runner.run(run.execute(keep=given.keep))
        show(report, result, run.violations)
        clean = bool(run.violations) == (given.broken is not None)
        if run.violations and plan.epochs > 1:
            report.text(f"repeat this epoch with: {command(given, plan.minutes_per_epoch, run.seed)}")
        if not clean:
            report.text(f"history, node logs and data are kept in {directory.path}")
        report.result(result)
    except KeyboardInterrupt:
        print("chaos: interrupted", file=sys.stderr)
        clean = True
        return TERMINATED if terminated else INTERRUPTED
    finally:
        directory.close(keep=given.keep or not clean)
    return 0 if clean else BROKEN_PROMISE


def epoch_minutes(given: argparse.Namespace) -> float:
    default = EPOCH_MINUTES if given.broken is None else BROKEN_EPOCH_MINUTES
    return float(default if given.epoch_minutes is None else given.epoch_minutes)


def command(given: argparse.Namespace, minutes: float, seed: int) -> str:
    """Return the command that repeats a run, or one epoch of it."""
    found = f"make chaos MINUTES={minutes:g} NEMESIS={given.nemesis} SEED={seed}"
    more = {"--nodes": (given.nodes, NODES), "--rate": (given.rate, RATE), "--broken": (given.broken, None)}
    more["--epoch-minutes"] = (given.epoch_minutes, None)
    arguments = [f"{name} {value}" for name, (value, default) in more.items() if value != default]
    return f"{found} CHAOS_ARGS='{' '.join(arguments)}'" if arguments else found


def options(given: argparse.Namespace) -> list[str]:
    """Return this run's options without the defect, for a run of its own."""
    found = ["--minutes", f"{given.minutes:g}", "--nemesis", given.nemesis, "--nodes", str(given.nodes)]
    found += ["--rate", str(given.rate), "--epoch-minutes", f"{epoch_minutes(given):g}"]
    found += ["--directory", given.directory]
    return [*found, *(["--seed", str(given.seed)] if given.seed is not None else [])]


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    found.add_argument("--minutes", type=float, default=1.0, help="how long faults are injected (default: 1)")
    found.add_argument(
        "--epoch-minutes",
        type=float,
        default=None,
        help="maximum minutes of an epoch; a longer run begins anew on empty disks "
        f"(default: {EPOCH_MINUTES:g}, with --broken {BROKEN_EPOCH_MINUTES:g})",
    )
    found.add_argument("--nemesis", default="all", help="all, or comma-separated families and kinds (docs/chaos.md)")
    found.add_argument("--seed", type=int, default=None, help="seed of faults and load (default: a fresh one)")
    found.add_argument("--nodes", type=int, choices=(3, 5), default=NODES)
    found.add_argument("--rate", type=int, default=RATE, help=f"wanted messages per second (default: {RATE})")
    found.add_argument(
        "--broken",
        choices=(*DEFECTS, ALL),
        default=None,
        metavar="NAME",
        help=f"break nodes or clients on purpose: {ALL}, {', '.join(DEFECTS)}",
    )
    found.add_argument("--directory", default=tempfile.gettempdir(), help="parent of the run's directory")
    found.add_argument("--keep", action="store_true", help="also keep history and logs of a clean run")
    return found


if __name__ == "__main__":
    sys.exit(main())
