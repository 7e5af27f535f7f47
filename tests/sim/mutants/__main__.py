"""`python -m tests.sim.mutants`: run every mutant until it is caught; say by whom, after how many seeds."""

import argparse
import json
import multiprocessing
import os
import sys
from collections.abc import Iterator, Sequence
from functools import partial

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from . import MUTANTS
from .hunt import Hunt, hunt

SEEDS_MAX = 500
COLUMNS = ("mutant", "what is broken", "invariant", "caught by", "after seeds")
EXIT_MISSED = 1


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    console = Console(file=sys.stderr)
    names = options.mutant or list(MUTANTS)
    hunts = sorted(_hunt_all(console, names, options), key=lambda found: names.index(found.mutant))
    if options.markdown:
        print_markdown(hunts)
    else:
        print_table(console, hunts)
    return conclude(hunts, options.first_seed, options.seeds)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.sim.mutants", description=__doc__, epilog=f"Mutants: {', '.join(sorted(MUTANTS))}."
    )
    parser.add_argument("--seeds", type=int, default=SEEDS_MAX, help=f"seeds per mutant at most (default {SEEDS_MAX})")
    parser.add_argument("--first-seed", type=int, default=0, help="where the seeds begin (default 0)")
    parser.add_argument(
        "--mutant", action="append", choices=sorted(MUTANTS), metavar="NAME", help="only this one; may be repeated"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one per core)")
    parser.add_argument("--markdown", action="store_true", help="print the table for docs/reliability.md")
    options = parser.parse_args(arguments)
    if options.seeds < 1 or options.jobs < 1 or options.first_seed < 0:
        parser.error("--seeds and --jobs must be at least 1, --first-seed at least 0")
    return options


def _hunt_all(console: Console, names: Sequence[str], options: argparse.Namespace) -> Iterator[Hunt]:
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    slowest_first = sorted(names, key=lambda name: not MUTANTS[name].rare)
    with Progress(*columns, console=console) as progress, multiprocessing.Pool(options.jobs) as pool:
        task = progress.add_task("mutants", total=len(names))
        run = partial(_hunt_named, options.first_seed, options.seeds)
        for found in pool.imap_unordered(run, slowest_first):
            progress.advance(task)
            if found.caught_by is not None and not console.is_terminal:  # nobody sees the bar
                print(f"{found.mutant}: {found.caught_by} after {found.seeds} seeds", flush=True)
            if found.caught_by is None:
                console.print(f"{found.mutant} is not caught within {found.seeds} seeds", markup=False)
            elif found.slip:
                console.print(f"{found.mutant} does not run: {found.detail}", markup=False)
            yield found


def _hunt_named(first_seed: int, seeds: int, name: str) -> Hunt:
    return hunt(MUTANTS[name], first_seed, seeds)


def _rows(hunts: Sequence[Hunt]) -> Iterator[tuple[str, ...]]:
    for found in hunts:
        variant = MUTANTS[found.mutant]
        invariant = str(variant.invariant) if variant.invariant else "progress"
        yield variant.name, variant.breaks, invariant, found.caught_by or "nobody", f"{found.seeds:,}"


def print_table(console: Console, hunts: Sequence[Hunt]) -> None:
    table = Table(title="deliberately broken nodes")
    for column in COLUMNS:
        table.add_column(column, justify="right" if column in ("invariant", "after seeds") else "left")
    for row in _rows(hunts):
        table.add_row(*row)
    console.print(table)


def print_markdown(hunts: Sequence[Hunt]) -> None:
    print(f"| {' | '.join(COLUMNS)} |\n|---|---|---|---|---|")
    for name, breaks, invariant, caught_by, seeds in _rows(hunts):
        print(f"| `{name}` | {breaks} | {invariant} | {caught_by} | {seeds} |")


def conclude(hunts: Sequence[Hunt], first_seed: int, seeds_max: int) -> int:
    """Prints the RESULT line; returns the exit status."""
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
    print(f"RESULT {json.dumps(result)}", flush=True)
    return EXIT_MISSED if missed or slips else 0


if __name__ == "__main__":
    sys.exit(main())
