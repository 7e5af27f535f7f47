"""Deliberately broken nodes: a simulation that misses them would miss the same mistake made by accident.

Each is one mistake in one part; `python -m tests.sim.mutants` says which checker catches it, and after how many seeds.
"""

from . import (
    applying,
    clocks,
    dedupe,
    durability,
    election,
    fitness,
    groups,
    knowledge,
    links,
    log_files,
    membership,
    operators,
    pauses,
    pops,
    purges,
    reads,
    recovery,
    replicas,
    replication,
    retention,
    retries,
    services,
    snapshots,
    strangers,
    timers,
    transactions,
)

AREAS = (
    *(election, membership, knowledge, strangers, fitness, replication, durability, log_files, recovery, clocks),
    *(
        applying,
        pauses,
        dedupe,
        transactions,
        operators,
        timers,
        groups,
        retries,
        pops,
        services,
        reads,
        retention,
        purges,
        snapshots,
        replicas,
        links,
    ),
)
MUTANTS = {variant.name: variant for area in AREAS for variant in area.MUTANTS}
