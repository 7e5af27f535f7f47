"""The part of the state space that some runs went through, and the part that none of them did."""

from collections.abc import Iterable, Mapping
from typing import get_args

from store.commands.entry import Result
from store.commands.users import UserDeleted, UserPut
from store.log.recovery import RecoveryCase

from .checkers.corruption import HARD_STATE_CASE
from .plan import FAULT_KINDS

SEEDS_MIN, RARE_SEEDS_MIN = 200, 4_000
"""Numbers of seeds after which every expected event must have been met, and every rare one too."""

UNREACHABLE = {
    *(RecoveryCase.DAMAGED_BASE, RecoveryCase.INDEX_BEHIND_BASE),  # no damage is done to the base: unit tests do
    RecoveryCase.OUT_OF_SEQUENCE,  # an intact record in the wrong place: no damage makes one, so unit tests do
}
UNASKED = {UserPut, UserDeleted}  # by the clients of the simulation; unit tests ask them
EXPECTED: Mapping[str, tuple[str, ...]] = {
    "fault": FAULT_KINDS,
    "message": ("lost", "duplicated", "reordered", "slow"),
    "client": ("lost", "duplicated", "reset", "unreachable node"),
    "recovery": (*(case.value for case in RecoveryCase if case not in UNREACHABLE), HARD_STATE_CASE),
    "role": ("follower to candidate", "candidate to leader", "candidate to follower", "leader to follower"),
    "step-down": ("higher term", "no quorum", "slow disk"),
    "election": ("pre-vote refused", "vote refused", "leadership transfer"),
    "nodes": (
        *("configuration", "configuration taken back", "the leader is to be removed"),
        *("started with an override", "override", "move: done"),
        *("add: done", "promote: done", "remove: done", "promote: not_caught_up", "remove: quorum_at_risk"),
    ),
    "log": ("truncation", "rollover", "append refused", "cut"),
    "sync": ("by the kernel", "by the kernel while the loop stood", "by a thread"),
    "snapshot": ("begun", "refused", "given up for a later term", "received", "installed"),
    "alarm": ("clock_skew", "clock_in_doubt"),
    "disk": ("found out that it was put back",),
    "stop": ("failed sync", "failed read"),
    "crash": (
        *("pwrite segment", "fdatasync segment", "truncate segment", "rename segment", "open segment"),
        *("pwrite synced", "fdatasync synced", "allocate next-segment", "fdatasync next-segment"),
        *("pwrite sidecar", "pwrite hard_state", "fdatasync hard_state", "rename hard_state"),
        *("sync_directory log", "sync_directory data", "pread segment"),
        *("pread segment in recovery", "pwrite segment in recovery", "fdatasync segment in recovery"),
        *("fdatasync synced in recovery", "sync_directory log in recovery", "read_bytes hard_state in recovery"),
    ),
    "applied": (*(kind.__name__ for kind in get_args(Result) if kind not in UNASKED), "duplicate recognised"),
    "refused": (
        *("transaction_conflict", "stale_generation", "offset_moves_back", "transaction_not_found"),
        *("transactions_rejected", "group_is_popped", "handle_expired", "not_scheduled"),
    ),
}
RARE = {
    "recovery: zero_filled_tail",
    "recovery: empty_last_segment",
    "step-down: slow disk",
    "crash: pwrite segment in recovery",
    "crash: pread segment",
    "crash: rename segment",
    "crash: allocate next-segment",
    "crash: sync_directory log",
}


def coverage_table(counts: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """Return the `area: name` counts by area, with a 0 for every expected name that was not met."""
    table = {area: dict.fromkeys(names, 0) for area, names in EXPECTED.items()}
    for key, count in counts.items():
        area, _, name = key.partition(": ")
        table.setdefault(area, {})[name] = count
    return {area: dict(sorted(names.items())) for area, names in sorted(table.items())}


def not_met(counts: Mapping[str, int]) -> list[str]:
    """Return the expected events that never happened, as `area: name`."""
    expected: Iterable[str] = (f"{area}: {name}" for area, names in EXPECTED.items() for name in names)
    return [key for key in expected if not counts.get(key)]


def overdue(missing: Iterable[str], seeds: int) -> bool:
    """Return whether `seeds` seeds should have met one of the missing events."""
    return any(seeds >= (RARE_SEEDS_MIN if key in RARE else SEEDS_MIN) for key in missing)
