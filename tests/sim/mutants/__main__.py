"""`python -m tests.sim.mutants`: run every mutant until it is caught; say by whom, after how many seeds."""

import argparse
import multiprocessing
import os
import sys
from collections.abc import Iterator, Sequence
from functools import partial

from rich.table import Column

from deploy.reporting.report import Report

from . import MUTANTS
from .hunt import Hunt, hunt

SEEDS_MAX = 500
COLUMNS = ("mutant", "what is broken", "invariant", "caught by", "after seeds")
EXIT_MISSED = 1


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    report = Report()
    names = options.mutant or list(MUTANTS)
    hunts = sorted(_hunt_all(report, names, options), key=lambda found: names.index(found.mutant))
    if options.markdown:
        print_markdown(report, hunts)
    else:
        print_table(report, hunts)
    return conclude(report, hunts, options.first_seed, options.seeds)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.sim.mutants", description=__doc__, epilog=f"Mutants: {', '.join(sorted(MUTANTS))}."
    )
    parser.add_argument("--seeds", type=int, default=SEEDS_MAX, help=f"seeds per mutant at most (default {SEEDS_MAX})")
    parser.add_argument(
        "--first-seed", type=int, help="where the seeds begin (default: 0, or where the mutant is known to be caught)"
    )
    parser.add_argument(
        "--mutant", action="append", choices=sorted(MUTANTS), metavar="NAME", help="only this one; may be repeated"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one per core)")
    parser.add_argument("--markdown", action="store_true", help="print the table for docs/reliability.md")
    options = parser.parse_args(arguments)
    if options.seeds < 1 or options.jobs < 1 or (options.first_seed or 0) < 0:
        parser.error("--seeds and --jobs must be at least 1, --first-seed at least 0")
    return options


def _hunt_all(report: Report, names: Sequence[str], options: argparse.Namespace) -> Iterator[Hunt]:
    slowest_first = sorted(names, key=lambda name: not MUTANTS[name].rare)
    done = 0
    report.step(f"at most {options.seeds} seeds for each of {len(names)} mutants")
    with (
        report.live(lambda: f"{done} of {len(names)} mutants", share=lambda: done / len(names)),
        multiprocessing.Pool(options.jobs) as pool,
    ):
        run = partial(_hunt_named, options.first_seed, options.seeds)
        for found in pool.imap_unordered(run, slowest_first):
            done += 1
            if found.caught_by is None:
                report.event(f"{found.mutant} is not caught within {found.seeds} seeds", "fault")
            elif found.slip:
                report.event(f"{found.mutant} does not run: {found.detail}", "fault")
            else:
                report.event(f"{found.mutant}: {found.caught_by} after {found.seeds} seeds")
            yield found


def _hunt_named(first_seed: int | None, seeds: int, name: str) -> Hunt:
    variant = MUTANTS[name]
    return hunt(variant, variant.first_seed if first_seed is None else first_seed, seeds)


def _rows(hunts: Sequence[Hunt]) -> Iterator[tuple[str, ...]]:
    for found in hunts:
        variant = MUTANTS[found.mutant]
        invariant = str(variant.invariant) if variant.invariant else "progress"
        yield variant.name, variant.breaks, invariant, found.caught_by or "nobody", f"{found.seeds:,}"


def print_table(report: Report, hunts: Sequence[Hunt]) -> None:
    headings = [Column(name, justify="right") if name in ("invariant", "after seeds") else name for name in COLUMNS]
    report.table("deliberately broken nodes", headings, _rows(hunts))


def print_markdown(report: Report, hunts: Sequence[Hunt]) -> None:
    report.text(f"| {' | '.join(COLUMNS)} |\n|---|---|---|---|---|")
    for name, breaks, invariant, caught_by, seeds in _rows(hunts):
        report.text(f"| `{name}` | {breaks} | {invariant} | {caught_by} | {seeds} |")


def conclude(report: Report, hunts: Sequence[Hunt], first_seed: int | None, seeds_max: int) -> int:
    """Print the result; return the exit status."""
    missed = [found.mutant for found in hunts if found.caught_by is None]
    slips = [found.mutant for found in hunts if found.slip]
    result = {
        "mutants": len(hunts),
        "caught": len(hunts) - len(missed) - len(slips),
        "missed": missed,
        "slips": slips,
        "first_seed": first_seed,
        "seeds_max": seeds_max,
        "seeds_run": sum(found.seeds for found in hunts),
        "seeds_to_catch": {found.mutant: found.seeds for found in hunts if found.caught_by is not None},
        "caught_by": {found.mutant: found.caught_by for found in hunts if found.caught_by is not None},
    }
    report.result(result)
    return EXIT_MISSED if missed or slips else 0


if __name__ == "__main__":
    sys.exit(main())
