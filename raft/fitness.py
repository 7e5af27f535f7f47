"""Who should rather lead (docs/decisions.md, 30). A matter of service, never of safety: nobody is barred."""

from typing import Final, NamedTuple

HINDRANCES: Final = ("it has much to apply", "its disk has no room", "its disk is slow", "its wall clock is wrong")


class Fitness(NamedTuple):
    """What hinders a node from leading well, the worst first: of two nodes the lesser one is fitter."""

    has_backlog: bool = False
    disk_is_low: bool = False
    disk_is_slow: bool = False
    clock_is_wrong: bool = False

    def __str__(self) -> str:
        """`its disk is slow and its wall clock is wrong`; empty where nothing hinders."""
        return " and ".join(text for text, holds in zip(HINDRANCES, self, strict=True) if holds)


FIT: Final = Fitness()
