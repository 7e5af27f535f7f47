"""Determines the time from the wall clocks of a majority, and which wall clocks are wrong.

Fault model: at most a minority of the voters' wall clocks is wrong within READING_INTERVALS intervals. A wrong clock
may leap by any amount, in both directions, at any moment. Monotonic clocks run at about the right pace.

Every node tells every other node its wall clock once an interval (`Vitals`). A reading is kept as the distance between
the other's wall clock and this node's *monotonic* clock, so no leap of this node's wall clock changes it.

The agreed time is the m-th largest of the known readings of voters, m being a majority: a majority of the voters has
reached it. At least one of the m largest readings is right, so the agreed time is never ahead of all right clocks,
whichever minority is wrong and whichever nodes are not heard. With all readings of an odd number of voters the agreed
time is their median. The clocks are *sure* when a majority of readings lies within `max_skew_ms` of the agreed time.
"""

from collections.abc import Callable, Collection
from typing import Final, NamedTuple, Self

from raft.config import RaftConfig
from raft.health.clock import Clock
from raft.membership import Membership
from raft.messages import DiskVitals, ReplicaState, Vitals

READING_INTERVALS: Final = 5
"""Number of intervals for which a reading counts."""

STAMP_MS: Final = 1
"""Resolution of the stamps: they are whole milliseconds."""


class Reading(NamedTuple):
    ahead_ms: float
    """The other node's wall clock when it sent the reading, minus this node's monotonic clock when the reading arrived.
    The true distance is larger by the travel time, so a slow network never makes time pass faster.
    """
    taken_at_ms: float
    """Monotonic time of this node at the earliest moment at which the other node can have sent the reading."""


class Echo(NamedTuple):
    """The last monotonic stamp of another node, which is sent back to that node, and the time it arrived here."""

    steady_ms: int
    heard_at_ms: float


class Agreement(NamedTuple):
    """The agreed time and the offsets that follow from the readings of one moment."""

    agreed_ms: float | None
    """The agreed time minus this node's monotonic clock; None while fewer than a majority of the voters are known."""
    is_sure: bool
    offsets_ms: dict[int, float]
    """Lead of each node's wall clock over the agreed time, for this node and the nodes heard lately; empty
    while no time is agreed.
    """


class ClockAgreement:
    """Owns the readings of the other nodes' wall clocks and derives the agreed time. Use it only on the event loop.

    A lone voter has no other node to compare with: its own wall clock counts from its start, and a leap of more than
    `max_skew_ms` is not followed while the process runs. An operator confirms such a leap by a restart.
    """

    def __init__(
        self,
        node_id: int,
        clock: Clock,
        voters: Callable[[], Collection[int]],
        *,
        max_skew_ms: int,
        interval_ms: int,
    ) -> None:
        self.node_id = node_id
        self.max_skew_ms = max_skew_ms
        self._clock = clock
        self._voters = voters
        self._interval_ms = interval_ms
        self._readings: dict[int, Reading] = {}
        self._echoes: dict[int, Echo] = {}
        self._followed_ms: float | None = None
        self._now = Agreement(None, False, {})
        self._due_ms = self._vitals_due_ms = float("-inf")

    @classmethod
    def of(cls, config: RaftConfig, clock: Clock, membership: Membership) -> Self:
        """Return the agreement for the node of `config` among the voters in force at each moment."""
        return cls(
            config.node_id,
            clock,
            lambda: membership.current.voters,
            max_skew_ms=config.max_clock_skew_ms,
            interval_ms=config.election_timeout_ms,
        )

    # --- what nodes tell each other ------------------------------------------------------------------------------

    def vitals_are_due(self) -> bool:
        """Return True once an interval, when it is time to send `Vitals` to all nodes."""
        now_ms = self.steady_ms()
        if now_ms < self._vitals_due_ms:
            return False
        self._vitals_due_ms = now_ms + self._interval_ms
        return True

    def vitals_for(
        self,
        peer: int,
        replica: ReplicaState | None = None,
        disk: DiskVitals | None = None,
        unapplied: int = 0,
        *,
        is_drained: bool = False,
    ) -> Vitals:
        """Return the `Vitals` for `peer`: the clock values, and the others as given."""
        now_ms = self.steady_ms()
        echo = self._echoes.get(peer)
        return Vitals(
            wall_ms=max(0, self._clock.wall_ms()),
            steady_ms=max(0, int(now_ms)),
            echo_ms=None if echo is None else echo.steady_ms,
            held_ms=0 if echo is None else max(0, int(now_ms - echo.heard_at_ms)),
            replica=replica,
            disk=disk,
            unapplied=unapplied,
            is_drained=is_drained,
        )

    def hear(self, peer: int, vitals: Vitals) -> None:
        """Take over a peer's reading. A reading whose round trip took more than half of `max_skew_ms` is too imprecise
        and is left out.
        """
        now_ms = self.steady_ms()
        self._echoes[peer] = Echo(vitals.steady_ms, now_ms)
        # The first `Vitals` of a peer has no echo; the next one is more precise.
        round_trip_ms = 0.0 if vitals.echo_ms is None else now_ms - vitals.echo_ms - vitals.held_ms
        if -STAMP_MS <= round_trip_ms <= self.max_skew_ms / 2:
            self._readings[peer] = Reading(vitals.wall_ms - now_ms, now_ms - max(0.0, round_trip_ms))
        self._look()

    # --- what comes of it ----------------------------------------------------------------------------------------

    def steady_ms(self) -> float:
        """Return this node's monotonic clock in ms."""
        return self._clock.steady_s() * 1000

    def wall_ms(self) -> int:
        """Return this node's own wall clock in ms since 1970."""
        return self._clock.wall_ms()

    @property
    def now(self) -> Agreement:
        """The agreement as of this moment; it may be up to a quarter of an interval old."""
        if self.steady_ms() >= self._due_ms:
            self._look()
        return self._now

    def time_ms(self) -> float | None:
        """Return the time in ms since 1970 that a majority of the clocks has reached; None while it is not known."""
        agreed_ms = self.now.agreed_ms
        return None if agreed_ms is None else agreed_ms + self.steady_ms()

    def is_sure(self) -> bool:
        """Return whether a majority of the voters' clocks agree on the time."""
        return self.now.is_sure

    def is_wrong(self, node_id: int) -> bool:
        """Return True when a majority agrees on the time and the node's wall clock is known to be off by more than
        `max_skew_ms`.
        """
        offset_ms = self.now.offsets_ms.get(node_id)
        return self._now.is_sure and offset_ms is not None and abs(offset_ms) > self.max_skew_ms

    @property
    def is_in_doubt(self) -> bool:
        """True when a majority agrees on the time and this node's own wall clock is wrong."""
        return self.is_wrong(self.node_id)

    def _look(self) -> None:
        now_ms = self.steady_ms()
        self._due_ms = now_ms + self._interval_ms / 4
        voters = set(self._voters())
        own_ms = self._clock.wall_ms() - now_ms
        if voters == {self.node_id}:
            self._now = self._alone(own_ms)
            return
        oldest_ms = now_ms - READING_INTERVALS * self._interval_ms
        self._readings = {peer: each for peer, each in self._readings.items() if each.taken_at_ms >= oldest_ms}
        known = {self.node_id: own_ms, **{peer: each.ahead_ms for peer, each in self._readings.items()}}
        self._now = agreement(known, voters, self.max_skew_ms)
        if self._now.is_sure:
            self._followed_ms = self._now.agreed_ms

    def _alone(self, own_ms: float) -> Agreement:
        if self._followed_ms is None or abs(own_ms - self._followed_ms) <= self.max_skew_ms:
            self._followed_ms = own_ms
            return Agreement(own_ms, True, {self.node_id: 0.0})
        return Agreement(None, False, {self.node_id: own_ms - self._followed_ms})


def agreement(known: dict[int, float], voters: Collection[int], max_skew_ms: int) -> Agreement:
    """Compute the agreement from readings on one scale. Nodes that do not vote get an offset but do not count."""
    counted = sorted((ahead_ms for node_id, ahead_ms in known.items() if node_id in voters), reverse=True)
    majority = len(voters) // 2 + 1
    if len(counted) < majority:
        return Agreement(None, False, {})
    agreed_ms = counted[majority - 1]
    agreeing = sum(abs(ahead_ms - agreed_ms) <= max_skew_ms for ahead_ms in counted)
    offsets_ms = {node_id: ahead_ms - agreed_ms for node_id, ahead_ms in known.items()}
    return Agreement(agreed_ms, agreeing >= majority, offsets_ms)
