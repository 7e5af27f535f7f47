"""Deliberately broken nodes: a simulation that misses them would miss the same mistake made by accident.

Each is one mistake in one part; `python -m tests.sim.mutants` says which checker catches it, and after how many seeds.
"""

from . import (
    applying,
    clocks,
    dedupe,
    durability,
    election,
    groups,
    knowledge,
    log_files,
    membership,
    operators,
    pops,
    recovery,
    replication,
    retention,
    services,
    snapshots,
    timers,
    transactions,
)

AREAS = (
    *(election, membership, knowledge, replication, durability, log_files, recovery, clocks),
    *(applying, dedupe, transactions, operators, timers, groups, pops, services, retention, snapshots),
)
MUTANTS = {variant.name: variant for area in AREAS for variant in area.MUTANTS}
