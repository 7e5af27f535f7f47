"""Broken ways to agree on the time, and broken care while the time is in doubt."""

import raft.health.clock_agreement
import store.state.machine
from cluster.core.core import Core
from raft.health.clock import ReplicatedClock
from raft.health.clock_agreement import Agreement, ClockAgreement, agreement
from tests.sim.variant import Swap, mutant

_now_ms = ReplicatedClock.__call__


def stamps_its_own_wall_clock(clocks: ClockAgreement) -> float | None:
    """A leader stamps what its own wall clock says, as far as the replicated clock does not fall."""
    return float(clocks.wall_ms())


def holds_on_to_its_own_wall_clock(clock: ReplicatedClock) -> int:
    """A node that was asked for the time before it knew the time goes on from its own answer, and stamps it as
    leader.
    """
    now_ms = _now_ms(clock)
    if not clock._anchor_ms:
        clock._anchor_ms, clock._anchored_at_s = float(now_ms), clock._clock.steady_s()
    return now_ms


def takes_the_latest_clock(known: dict[int, float], voters: set[int], max_skew_ms: int) -> Agreement:
    """The time is that of the wall clock that is ahead of all others."""
    found = agreement(known, voters, max_skew_ms)
    return found if found.agreed_ms is None else found._replace(agreed_ms=max(known.values()))


def takes_the_median_of_those_heard(known: dict[int, float], voters: set[int], max_skew_ms: int) -> Agreement:
    """A leader that knows two of three clocks believes the later one."""
    heard = sorted(ahead_ms for node_id, ahead_ms in known.items() if node_id in voters)
    found = agreement(known, voters, max_skew_ms)
    return found if found.agreed_ms is None else found._replace(agreed_ms=heard[len(heard) // 2])


def asks_one_clock(known: dict[int, float], voters: set[int], max_skew_ms: int) -> Agreement:
    """One reading is enough, whoever is not heard: a node that sees only itself goes by its own clock."""
    first = next(iter(known))
    return agreement({first: known[first]}, {first}, max_skew_ms)


def does_in_doubt_what_cannot_be_undone(core: Core) -> bool:
    """Messages expire, timers fire and transactions are discarded while the clocks do not agree."""
    return True


MUTANTS = (
    mutant(20, Swap(ClockAgreement, "time_ms", stamps_its_own_wall_clock)),
    mutant(
        20,
        Swap(ReplicatedClock, "__call__", holds_on_to_its_own_wall_clock),
        only_kinds=("wall_clock_jump", "wipe", "kill_leader"),
    ),
    mutant(20, Swap(raft.health.clock_agreement, "agreement", takes_the_latest_clock)),
    mutant(20, Swap(raft.health.clock_agreement, "agreement", takes_the_median_of_those_heard)),
    mutant(20, Swap(raft.health.clock_agreement, "agreement", asks_one_clock)),
    mutant(
        20,
        Swap(Core, "clock_is_sure", does_in_doubt_what_cannot_be_undone),
        Swap(store.state.machine, "IRREVERSIBLE", ()),
    ),
)
