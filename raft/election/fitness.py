"""Compares which node should rather lead (docs/decisions.md, 30). Only service depends on it, never safety: no node is
barred from leading.
"""

from typing import Final, NamedTuple

HINDRANCES: Final = (
    "it has much to apply",
    "its disk has no room",
    "it is drained",
    "its disk is slow",
    "its wall clock is wrong",
)


class Fitness(NamedTuple):
    """The hindrances of a node as a leader, the worst first: of two nodes the one that compares less is fitter."""

    has_backlog: bool = False
    disk_is_low: bool = False
    is_drained: bool = False
    disk_is_slow: bool = False
    clock_is_wrong: bool = False

    def __str__(self) -> str:
        """Return text such as `its disk is slow and its wall clock is wrong`; empty when nothing hinders the node."""
        return " and ".join(text for text, holds in zip(HINDRANCES, self, strict=True) if holds)


FIT: Final = Fitness()
