"""Rounds of faults, decided by the seed: one or two faults at a time, which hold, are healed, and are followed by
peace.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from tests.chaos.cluster import ChaosCluster
from tests.chaos.ledger import Book
from tests.chaos.nemeses.fault import Fault, FaultKind
from tests.chaos.violations import Kind

SECOND_FAULT_SHARE: Final = 0.35
STAGGER_S: Final = (0.0, 1.0)
HOLD_S: Final = (0.8, 5.0)
PEACE_S: Final = (0.3, 2.0)
PROGRESS_TIMEOUT_S: Final = 60.0
SLOW_HEAL_MS: Final = 3_000
"""A heal that takes longer is told with its time, so that it can be found in the logs of the nodes."""
# Space and network first: a node that is started needs both,
# and a node needs them to take part in a change of the members.
HEAL_ORDER: Final = ("disk", "network", "clock", "process", "stranger", "membership")


class Round(NamedTuple):
    """One round. `kinds[i]` begins `stagger_s` after the previous one; all are healed `hold_s` after the last began."""

    kinds: tuple[FaultKind, ...]
    stagger_s: float
    hold_s: float
    peace_s: float


def rounds(kinds: Sequence[FaultKind], rng: random.Random) -> Iterator[Round]:
    """Yield rounds for ever. Every kind comes up once before any comes up again."""
    while True:
        bag = rng.sample(kinds, len(kinds))
        while bag:
            chosen = [bag.pop()]
            if rng.random() < SECOND_FAULT_SHARE:
                others = [kind for kind in bag if kind.family != chosen[0].family]
                if others:
                    chosen.append(rng.choice(others))
                    bag.remove(chosen[1])
            yield Round(tuple(chosen), rng.uniform(*STAGGER_S), rng.uniform(*HOLD_S), rng.uniform(*PEACE_S))


class Heal(NamedTuple):
    """A heal. `ms` is the time from the beginning of the heal to the first acknowledged write."""

    ms: float
    faults: str


class Scheduler:
    """Plays rounds until the time is over, and leaves everything healed."""

    def __init__(
        self,
        cluster: ChaosCluster,
        book: Book,
        kinds: Sequence[FaultKind],
        seed: int,
        event: Callable[[str, str], None],
    ) -> None:
        self.fired: Counter[str] = Counter()
        self.heals: list[Heal] = []
        """The heals of the rounds that were followed by a write."""
        self.active: list[str] = []
        self._cluster = cluster
        self._book = book
        self._kinds = kinds
        self._rng = random.Random(f"rounds {seed}")
        self._event = event

    async def run(self, seconds: float) -> None:
        until_s = time.monotonic() + seconds
        for number, each in enumerate(rounds(self._kinds, self._rng)):
            if time.monotonic() >= until_s:
                return
            await self._play(each, random.Random(self._rng.random()), number)

    async def _play(self, each: Round, rng: random.Random, number: int) -> None:
        faults: list[tuple[FaultKind, Fault]] = []
        try:
            for kind in each.kinds:
                if faults:
                    await asyncio.sleep(each.stagger_s)
                fault = kind.make(self._cluster, rng)
                faults.append((kind, fault))
                self._note("fault", number, kind, await fault.start())
                self.fired[kind.name] += 1
                self.active.append(kind.name)
            await asyncio.sleep(each.hold_s)
        finally:
            progress = self._book.next_ack()
            begun_s = time.monotonic()
            for kind, fault in sorted(faults, key=lambda pair: HEAL_ORDER.index(pair[0].family)):
                self._note("recovery", number, kind, await fault.heal())
            self.active.clear()
        await self._await_progress(progress, begun_s, number, "+".join(kind.name for kind in each.kinds))
        self._cluster.may_end_late.clear()
        await asyncio.sleep(each.peace_s)

    async def _await_progress(self, progress: asyncio.Future[float], begun_s: float, number: int, faults: str) -> None:
        try:
            async with asyncio.timeout(PROGRESS_TIMEOUT_S):
                acked_s = await progress
        except TimeoutError:
            self._cluster.violations.add(
                Kind.NO_PROGRESS, f"round {number}: no write was acknowledged {PROGRESS_TIMEOUT_S:.0f} s after the heal"
            )
            return
        heal_ms = round((acked_s - begun_s) * 1000, 1)
        self.heals.append(Heal(heal_ms, faults))
        self._cluster.history.write("progress", round=number, heal_ms=heal_ms)
        if heal_ms > SLOW_HEAL_MS:
            self._event("recovery", f"round {number}: writes again, {heal_ms / 1000:.1f} s after {faults} was healed")

    def _note(self, what: str, number: int, kind: FaultKind, text: str) -> None:
        self._cluster.history.write(what, round=number, fault=kind.name, done=text)
        self._event(what, text)
