"""Compares this tree with another one: two clusters run side by side, and the loads take turns between them.

Figures of two runs one after the other differ by what the disk and the machine did meanwhile; a ratio within one round
does not. The median of the rounds' ratios is the figure, and their range says how far to trust it.
"""

import statistics
import subprocess
import sys
from pathlib import Path
from typing import Final, NamedTuple, Self

from deploy.reporting.report import Report
from tests.bench import beside_worker

ROUNDS: Final = 5
TURN_S_MAX: Final = 60.0
LOWER_IS_BETTER: Final = frozenset({"sequential_p50"})
"""Loads whose figure is a time in ms; the other figures are rates per second."""


class BesideError(Exception):
    """The other tree cannot be measured; the text says why."""


class Comparison(NamedTuple):
    """The figures of one load, by round: of this tree and of the other one."""

    load: str
    ours: list[float]
    theirs: list[float]

    @property
    def ratios(self) -> list[float]:
        """Return this tree's figure over the other's, so that above 1 is always better: times are turned round."""
        pairs = zip(self.ours, self.theirs, strict=True)
        return [theirs / ours if self.load in LOWER_IS_BETTER else ours / theirs for ours, theirs in pairs]


class _Tree:
    """A tree's worker process, which owns three nodes of that tree."""

    def __init__(self, tree: Path, directory: Path, protection: str) -> None:
        python = tree / ".venv/bin/python"
        if not python.exists():
            raise BesideError(f"{tree} has no .venv/bin/python: run `make setup` there first")
        command = [str(python.absolute()), beside_worker.__file__, str(directory), protection]
        self._tree = tree
        self._process = subprocess.Popen(
            command, cwd=tree, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def __enter__(self) -> Self:
        self._figure()  # its nodes are ready
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()  # also in the middle of a load; it stops its nodes
        self._process.communicate()

    def measure(self, load: str, seconds: float, report: Report) -> float:
        """Return the figure of one turn of the load, never 0: a turn that is too short for this machine is said and
        repeated in twice the time. Raises BesideError when the worker ends, as it does when calls fail, and when
        nothing is acknowledged within a minute.
        """
        while not (figure := self._turn(load, seconds)):
            if seconds >= TURN_S_MAX:
                raise BesideError(f"the nodes of {self._tree} acknowledge nothing of {load} within {seconds:g} s")
            report.event(f"  {load}: nothing was acknowledged within {seconds:g} s; again with twice the time")
            seconds *= 2
        return figure

    def _turn(self, load: str, seconds: float) -> float:
        stdin = self._process.stdin
        if stdin is not None:
            print(load, seconds, file=stdin, flush=True)
        return self._figure()

    def _figure(self) -> float:
        for line in self._process.stdout or ():
            if line.startswith(beside_worker.PREFIX):
                return float(line.removeprefix(beside_worker.PREFIX))
        raise BesideError(
            f"the nodes of {self._tree} could not be measured: run `make bench` there to see the error "
            f"(exit {self._process.wait()})"
        )


def compare(
    other: Path, rounds: int, seconds: float, directory: Path, report: Report, protection: str = "open"
) -> list[Comparison]:
    """Run both clusters under `directory` and return each load's figures. Raises BesideError.

    The cluster of this tree has the `protection`, the other one is open.
    """
    comparisons = [Comparison(load, [], []) for load in beside_worker.LOADS]
    report.step(f"three nodes of {other}, three nodes of this tree")
    with (
        _Tree(other, directory, "open") as theirs,
        _Tree(Path.cwd(), directory, protection) as ours,
    ):
        for number in range(rounds):
            report.step(f"round {number + 1} of {rounds}")
            for each in comparisons:
                turns = [(ours, each.ours), (theirs, each.theirs)]
                for tree, figures in turns if number % 2 else reversed(turns):
                    figures.append(tree.measure(each.load, seconds, report))
                report.event(f"  {each.load}: {each.ours[-1]:,.2f} and {each.theirs[-1]:,.2f}")
    return comparisons


def run(other: Path, rounds: int, seconds: float, directory: Path, report: Report, protection: str = "open") -> int:
    """Print the comparison with `other` and its result; return the exit status."""
    try:
        comparisons = compare(other.absolute(), rounds, seconds, directory, report, protection)
    except BesideError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    rows, result = [], {}
    for each in comparisons:
        ours, theirs = statistics.median(each.ours), statistics.median(each.theirs)
        median, least, most = statistics.median(each.ratios), min(each.ratios), max(each.ratios)
        rows.append((each.load, f"{ours:,.2f}", f"{theirs:,.2f}", f"{median:.2f}", f"{least:.2f} to {most:.2f}"))
        figures = {"ours": ours, "other": theirs, "ratio": median}
        result[each.load] = {name: float(f"{figure:.4g}") for name, figure in figures.items()}
    mine = "this tree" if protection == "open" else f"this tree with {protection}"
    headings = ("load", mine, "the other", "ratio (above 1 is better)", "of the rounds")
    report.table(f"KeelMQ beside {other}", headings, rows)
    report.result({"other": str(other), "protection": protection, "rounds": rounds, "figures": result})
    return 0
