"""Lists all kinds of faults, and chooses those that a run can use."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from tests.chaos.isolation import Machine
from tests.chaos.nemeses import clock, disk, membership, network, packets, process, stranger
from tests.chaos.nemeses.fault import FaultKind

ALL_KINDS: Final = (
    *process.KINDS,
    *network.KINDS,
    *packets.KINDS,
    *clock.KINDS,
    *disk.KINDS,
    *membership.KINDS,
    *stranger.KINDS,
)
FAMILIES: Final = ("process", "network", "clock", "disk", "membership", "stranger")


class Choice(NamedTuple):
    """The kinds of a run. `skipped` holds kinds that were asked for and are impossible here, with the reason."""

    kinds: tuple[FaultKind, ...]
    skipped: dict[str, str]


def choose(wanted: str, machine: Machine, nodes: int) -> Choice:
    """Return the kinds named by `wanted`: `all`, or families and kinds with commas. Raises ValueError with unknown
    names.
    """
    names = [name.strip() for name in wanted.split(",") if name.strip()]
    known = {"all", *FAMILIES, *(kind.name for kind in ALL_KINDS)}
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise ValueError(f"unknown nemesis {', '.join(unknown) or '(none)'}; known: {', '.join(sorted(known))}")
    asked = [kind for kind in ALL_KINDS if "all" in names or kind.family in names or kind.name in names]
    skipped = {kind.name: reason for kind in asked if (reason := _why_not(kind, machine, nodes)) is not None}
    return Choice(tuple(kind for kind in asked if kind.name not in skipped), skipped)


def summary_of(skipped: dict[str, str]) -> Sequence[str]:
    """Return one line per reason."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in skipped.items():
        by_reason.setdefault(reason, []).append(name)
    return [f"skipped {', '.join(names)}: {reason}" for reason, names in by_reason.items()]


def _why_not(kind: FaultKind, machine: Machine, nodes: int) -> str | None:
    if nodes < kind.nodes_min:
        return f"needs {kind.nodes_min} nodes"
    if kind.family == "network" or kind.name == "disk-full":
        return machine.no_namespaces
    return machine.no_injection if kind.name in ("slow-sync", "sync-error") else None
