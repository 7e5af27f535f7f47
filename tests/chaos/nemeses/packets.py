"""Faults of single packets between a node and everybody else: late, duplicated, out of order, or with a wrong bit."""

import random
from collections.abc import Callable
from functools import partial
from typing import Final

from tests.chaos.cable import BadCables
from tests.chaos.cluster import ChaosCluster
from tests.chaos.nemeses.fault import FaultKind, follower_or_any, joined, leader_or_any
from tests.chaos.relay import Trouble

ALL_NODES_SHARE: Final = 0.4
DELAY_MS: Final = (5.0, 250.0)
JITTER: Final = 0.5
HELD_PERCENT: Final = (2.0, 30.0)
HELD_MS: Final = (1.0, 60.0)
TWICE_PERCENT: Final = (10.0, 100.0)
TWICE_MS: Final = (0.0, 40.0)
FLIPPED_PERCENT: Final = (0.5, 15.0)

Draw = Callable[[random.Random], Trouble]


class Packets:
    """The cables of one node, or of all, are bad; `draw` chooses how bad."""

    def __init__(self, draw: Draw, cluster: ChaosCluster, rng: random.Random) -> None:
        self._draw, self._cluster, self._rng = draw, cluster, rng
        self._cables: BadCables | None = None

    async def start(self) -> str:
        rng, cluster = self._rng, self._cluster
        one = await (leader_or_any if rng.random() < 0.6 else follower_or_any)(cluster, rng)
        chosen = cluster.ids() if rng.random() < ALL_NODES_SHARE else [one]
        trouble = self._draw(rng)
        self._cables = BadCables(chosen)
        await self._cables.lay(trouble, f"{rng.random()}")
        return f"at {joined(chosen)}: {_described(trouble)}"

    async def heal(self) -> str:
        if self._cables is None:
            return "the cables are good"
        counts = await self._cables.remove()
        return (
            f"the cables are good again: of {counts.frames} packets {counts.held} came late, {counts.twice} twice, "
            f"{counts.flipped} with a wrong bit"
        )


def delay(rng: random.Random) -> Trouble:
    """Draw a delay; short delays of some milliseconds are as likely as long ones of some hundred."""
    least, most = DELAY_MS
    base_ms = least * (most / least) ** rng.random()
    return Trouble(delay_ms=(base_ms, base_ms * (1 + rng.uniform(0, JITTER))))


def duplicate(rng: random.Random) -> Trouble:
    return Trouble(twice_percent=rng.uniform(*TWICE_PERCENT), twice_ms=TWICE_MS)


def reorder(rng: random.Random) -> Trouble:
    return Trouble(held_percent=rng.uniform(*HELD_PERCENT), held_ms=HELD_MS)


def corrupt(rng: random.Random) -> Trouble:
    return Trouble(flipped_percent=rng.uniform(*FLIPPED_PERCENT))


def all_at_once(rng: random.Random) -> Trouble:
    return Trouble(
        delay_ms=delay(rng).delay_ms,
        held_percent=rng.uniform(*HELD_PERCENT),
        held_ms=HELD_MS,
        twice_percent=rng.uniform(*TWICE_PERCENT),
        twice_ms=TWICE_MS,
        flipped_percent=rng.uniform(*FLIPPED_PERCENT) / 10,
    )


def _described(trouble: Trouble) -> str:
    parts = []
    if trouble.delay_ms[1]:
        parts.append("packets are {:.0f} to {:.0f} ms late".format(*trouble.delay_ms))
    if trouble.held_percent:
        parts.append(f"{trouble.held_percent:.0f} % are overtaken")
    if trouble.twice_percent:
        parts.append(f"{trouble.twice_percent:.0f} % come twice")
    if trouble.flipped_percent:
        parts.append(f"{trouble.flipped_percent:.1f} % have a wrong bit")
    return ", ".join(parts)


def _kind(name: str, draw: Draw) -> FaultKind:
    return FaultKind(name, "network", partial(Packets, draw))


KINDS = (
    _kind("delay-link", delay),
    _kind("duplicate", duplicate),
    _kind("reorder", reorder),
    _kind("corrupt", corrupt),
    _kind("bad-cable", all_at_once),
)
