"""`python -m tests.sim`: run many seeds on all cores, shrink and tell those that fail, and end with one RESULT line."""

import argparse
import multiprocessing
import os
import secrets
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from deploy.reporting.report import Report

from .mutants import MUTANTS
from .outcome import Outcome
from .plan import FAULT_KINDS, Edits
from .report import EXIT_VIOLATION, Totals, conclude, print_totals
from .run import run_safe
from .shrink import RERUNS_MAX, shrink
from .stock_run import run_stock
from .story import Story
from .variant import SAFE
from .world import Listener, print_event

FIRST_SEED_MAX = 10**9
STOCK_SEEDS_MIN, STOCK_SEEDS_MAX = 12, 30
CHUNK_SEEDS = 2
SEEDS_PER_PROCESS = 400  # then a new one: RocksDB and the allocator keep some memory
SHRUNK_MAX = 3

Run = Callable[[int], Outcome]


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    if options.seed is not None:
        return _replay(options)
    report = Report()
    first_seed = secrets.randbelow(FIRST_SEED_MAX) if options.first_seed is None else options.first_seed
    report.text(f"FIRST_SEED={first_seed}")
    seeds = range(first_seed, first_seed + options.seeds)
    ours, stock = Totals(), Totals()
    if options.stock:
        stock = _run_all(report, "stock PySyncObj", _guarded_stock, seeds, options.jobs)
    else:
        ours = _run_all(report, "our nodes", partial(_guarded, options.mutant, options.edits), seeds, options.jobs)
        _explain(report, ours, options)
    if not options.stock and not options.mutant:
        stock_seeds = range(min(max(options.seeds, STOCK_SEEDS_MIN), STOCK_SEEDS_MAX))
        stock = _run_all(report, "stock PySyncObj", _guarded_stock, stock_seeds, options.jobs)
    return conclude(report, ours, stock, first_seed, judged=not options.mutant and options.edits == Edits())


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds to run (default 200)")
    parser.add_argument("--first-seed", type=int, help="the first of them (default: a fresh one, printed)")
    parser.add_argument("--seed", type=int, help="run this seed only; if it fails, shrink it and tell its story")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one per core)")
    parser.add_argument("--stock", action="store_true", help="run the stock PySyncObj handlers only")
    parser.add_argument("--mutant", choices=sorted(MUTANTS), metavar="NAME", help="run a broken node instead of ours")
    parser.add_argument("--verbose", action="store_true", help="with --seed: print every event")
    parser.add_argument("--no-shrink", action="store_true", help="leave failing seeds as they are")
    edits = parser.add_argument_group("edits of the plan of a --seed, as a shrunk failure prints them")
    edits.add_argument("--only-faults", type=_numbers, help="only these faults happen: 3,7 or none")
    edits.add_argument("--until-ms", type=int, help="load and faults end at this simulated time")
    edits.add_argument("--actions", type=int, help="clients do no more than so many things")
    edits.add_argument("--nodes", type=int, choices=(1, 3, 5), help="size of the cluster")
    edits.add_argument("--calm-links", action="store_true", help="links lose, double and reorder nothing")
    edits.add_argument("--no-purges", action="store_true", help="nothing is purged, and no topic is deleted")
    edits.add_argument(
        "--only-kinds",
        type=_kinds,
        help="of any seed: all faults are of these kinds: kill,wipe (default: any, or those of the mutant)",
    )
    options = parser.parse_args(arguments)
    if options.seeds < 1 or options.jobs < 1:
        parser.error("--seeds and --jobs must be at least 1")
    focus = Edits(only_kinds=options.only_kinds) if options.only_kinds else MUTANTS.get(options.mutant, SAFE).edits
    options.edits = Edits(
        options.only_faults,
        options.until_ms,
        options.actions,
        options.nodes,
        calm_links=options.calm_links,
        no_purges=options.no_purges,
        only_kinds=focus.only_kinds,
    )
    if options.seed is None and options.edits != focus:
        parser.error("edits of a plan, other than --only-kinds, need --seed")
    return options


def _kinds(text: str) -> tuple[str, ...]:
    kinds = tuple(text.split(","))
    if unknown := set(kinds) - set(FAULT_KINDS):
        raise argparse.ArgumentTypeError(
            f"no such kinds: {', '.join(sorted(unknown))}; there are {', '.join(FAULT_KINDS)}"
        )
    return kinds


def _numbers(text: str) -> tuple[int, ...]:
    return () if text == "none" else tuple(int(number) for number in text.split(","))


def _guarded(mutant: str | None, edits: Edits, seed: int, listeners: Sequence[Listener] = ()) -> Outcome:
    """Run one seed; an exception of the simulation itself is a failure of that seed too."""
    try:
        variant = MUTANTS[mutant] if mutant else SAFE
        return run_safe(seed, variant, edits=edits, listeners=listeners)
    except Exception:
        return Outcome(seed, violation="error", detail=traceback.format_exc())


def _guarded_stock(seed: int) -> Outcome:
    try:
        return run_stock(seed)
    except Exception:
        return Outcome(seed, violation="error", detail=traceback.format_exc())


def _run_all(report: Report, title: str, run: Run, seeds: range, jobs: int) -> Totals:
    totals = Totals()
    report.step(title)

    def state() -> str:
        violations = f", {totals.violations} fail" if totals.violations else ""
        return f"{totals.seeds} of {len(seeds)} seeds{violations}"

    with report.live(state, share=lambda: totals.seeds / len(seeds)):
        for outcome in _outcomes(run, seeds, jobs):
            totals.add(outcome)
            if outcome.violation and run is not _guarded_stock:
                report.event(f"SEED={outcome.seed} {outcome.violation}: {outcome.detail}", "fault")
    return totals


def _outcomes(run: Run, seeds: range, jobs: int) -> Iterator[Outcome]:
    if jobs == 1:
        yield from map(run, seeds)
        return
    with multiprocessing.Pool(jobs, maxtasksperchild=SEEDS_PER_PROCESS // CHUNK_SEEDS) as pool:
        yield from pool.imap_unordered(run, seeds, chunksize=CHUNK_SEEDS)


def _explain(report: Report, totals: Totals, options: argparse.Namespace) -> None:
    """The first failures, one of each kind before a second of any: shrunk, told, and how to repeat them."""
    kinds: dict[str | None, int] = {}
    ranked = []
    for outcome in totals.failures:
        kinds[outcome.violation] = kinds.get(outcome.violation, 0) + 1
        ranked.append((kinds[outcome.violation], outcome.seed, outcome))
    for _, seed, outcome in sorted(ranked, key=lambda item: item[:2])[:SHRUNK_MAX]:
        edits = options.edits if options.no_shrink else _shrunk(report, outcome, options)
        _tell(report, seed, options.mutant, edits)


def _shrunk(report: Report, failed: Outcome, options: argparse.Namespace) -> Edits:
    report.step(f"shrinking seed {failed.seed}: at most {RERUNS_MAX} runs")
    with report.live():
        run = partial(_guarded, options.mutant)
        smallest = shrink(failed, lambda edits: run(edits, failed.seed), edits=options.edits)
    report.event(
        f"SEED={failed.seed} shrunk from {len(failed.faults)} faults to {len(smallest.outcome.faults)} "
        f"in {smallest.reruns} runs"
    )
    return smallest.edits


def _tell(report: Report, seed: int, mutant: str | None, edits: Edits) -> None:
    story = Story()
    _guarded(mutant, edits, seed, [story])
    for line in story.lines():
        report.text(line)
    arguments = " ".join(filter(None, (f"--mutant {mutant}" if mutant else "", edits.arguments())))
    command = f"make sim SEED={seed}" + (f" SIM_ARGS='{arguments}'" if arguments else "")
    report.text(f"replay: {command}")


def _replay(options: argparse.Namespace) -> int:
    report = Report()
    report.step(f"seed {options.seed}")
    listeners = [print_event] if options.verbose else []
    if options.stock:
        outcome = run_stock(options.seed, verbose=options.verbose)
    else:
        outcome = _guarded(options.mutant, options.edits, options.seed, listeners)
    report.event(f"SEED={outcome.seed} {outcome.violation or 'no violation'} {outcome.detail}")
    if outcome.violation and not options.stock:
        edits = options.edits
        if edits == Edits(only_kinds=edits.only_kinds) and not options.no_shrink:
            edits = _shrunk(report, outcome, options)
        _tell(report, options.seed, options.mutant, edits)
    totals = Totals()
    totals.add(outcome)
    print_totals(report, *((Totals(), totals) if options.stock else (totals, Totals())))
    result = {
        "seed": outcome.seed,
        "nodes": outcome.nodes,
        "violation": outcome.violation,
        "acked": outcome.acknowledged,
        "terms": outcome.terms,
        "steps": outcome.steps,
        "faults": outcome.faults,
        "met": dict(sorted(outcome.met.items())),
        "trace": outcome.trace,
    }
    report.result(result)
    return EXIT_VIOLATION if outcome.violation else 0


if __name__ == "__main__":
    sys.exit(main())
