"""The decisions of a seed before anything runs: configuration, links, load, and every fault with its moment.

The plan is a function of the seed. Each fault has a number and a generator of its own, so that leaving one out changes
nothing about the others. `Edits` make a failing plan smaller; a shrunk failure is repeated with them.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from random import Random
from unittest import mock

import raft.entries.applier
import raft.replication.progress
import raft.snapshots.sender
import store.snapshots.snapshot

from .log_cuts import CutSettings, draw_cuts
from .network import LinkProfile
from .purge_settings import PurgeSettings, draw_purges
from .service_settings import draw_service_settings
from .settings import Settings
from .world import MICROSECONDS_PER_SECOND, World

KIB, MIB = 1024, 1024 * 1024
TAKES_BACK_PROBABILITY = 0.25
QUIET_US = 1 * MICROSECONDS_PER_SECOND
THIN_PROBABILITY = 0.15
THIN_BYTES_PER_S = 1_000_000
THIN_PEACE_PROBABILITY = 0.6
ROCKSDB_PROBABILITY = 0.125  # it takes a third of a run's time
LOAD_US = 9 * MICROSECONDS_PER_SECOND

FEW_DESCRIPTORS_PROBABILITY = 0.15
FULL_LEADER_PROBABILITY = 0.1
FULL_LEADER_US, CALM_FROM_US = 3_500_000, 3_000_000
"""Time at which the leader's disk fills up for the rest of the load, in some seeds, and time from which these seeds
have no other fault.
"""

DRAWN_KINDS = (
    *("kill", "kill_leader", "power_loss", "power_loss_leader", "power_loss_all", "crash_in_operation"),
    *("graceful_stop", "freeze", "wipe", "put_back"),
    *("isolate", "halves", "one_way", "bridge", "ring", "flap", "slow_link", "reset", "stranger"),
    *("slow_sync", "sync_failure", "hard_state_failure", "read_failure", "disk_full", "leader_disk_full"),
    *("bit_flip", "file_damage"),
    *("wall_clock_jump", "wall_clock_strobe", "clock_jump"),
)
FAULT_KINDS = (*DRAWN_KINDS, "no_descriptors")
"""The last one is added to what was drawn, so that the plans of most seeds stay what they were."""

_WEIGHTS = {"crash_in_operation": 4, "bit_flip": 2, "file_damage": 2, "put_back": 4}  # those that come in many forms


@dataclass(frozen=True)
class PlannedFault:
    number: int
    at_us: int
    kind: str


@dataclass(frozen=True)
class Edits:
    """Changes of a plan, most of which take parts out. A field with None changes nothing."""

    only_faults: tuple[int, ...] | None = None
    until_ms: int | None = None
    """The load and the faults end at this simulated time."""
    actions: int | None = None
    """Clients do no more than so many things."""
    nodes: int | None = None
    calm_links: bool = False
    """Links delay, and do nothing worse."""
    no_purges: bool = False
    """Nothing is purged, and no topic is deleted: the plan of the seed as it was before the simulation had purges."""
    only_kinds: tuple[str, ...] | None = None
    """All faults are of these kinds, and there are as many of them as of all kinds otherwise: the way to what needs
    several faults of few kinds.
    """

    def arguments(self) -> str:
        """Return the edits as arguments of `python -m tests.sim`."""
        found = []
        if self.only_faults is not None:
            found.append(f"--only-faults {','.join(map(str, self.only_faults)) or 'none'}")
        for flag, value in (("until-ms", self.until_ms), ("actions", self.actions), ("nodes", self.nodes)):
            if value is not None:
                found.append(f"--{flag} {value}")
        if self.calm_links:
            found.append("--calm-links")
        if self.no_purges:
            found.append("--no-purges")
        if self.only_kinds is not None:
            found.append(f"--only-kinds {','.join(self.only_kinds)}")
        return " ".join(found)


NO_EDITS = Edits()


@dataclass(frozen=True)
class Windows:
    """Limits on the data that travels at once. They are constants of the product, so small here that their edges are
    met.
    """

    append_bytes: int
    apply_bytes: int
    window_messages: int
    window_bytes: int
    cuts: CutSettings | None = None

    @property
    def apply_budget_ms(self) -> int:
        """0 where entries are applied one by one: then they pause wherever they may, and not only at random."""
        return 0 if self.apply_bytes == 1 else raft.entries.applier.APPLY_BUDGET_MS

    @contextmanager
    def installed(self) -> Iterator[None]:
        with ExitStack() as stack:
            for module, name, value in (
                (raft.replication.replication, "APPEND_BYTES", self.append_bytes),
                (raft.replication.replication, "CATCH_UP_BYTES", self.append_bytes),
                (raft.replication.replication, "BEHIND_BYTES", self.window_bytes),
                (raft.entries.applier, "APPLY_BYTES", self.apply_bytes),
                (raft.entries.applier, "APPLY_BUDGET_MS", self.apply_budget_ms),
                (raft.replication.progress, "WINDOW_MESSAGES", self.window_messages),
                (raft.replication.progress, "WINDOW_BYTES", self.window_bytes),
            ):
                stack.enter_context(mock.patch.object(module, name, value))
            if self.cuts is not None:
                stack.enter_context(
                    mock.patch.object(store.snapshots.snapshot, "PORTION_BYTES", self.cuts.portion_bytes)
                )
                stack.enter_context(
                    mock.patch.object(raft.snapshots.sender, "WINDOW_MESSAGES", self.cuts.window_messages)
                )
            yield


@dataclass(frozen=True)
class Plan:
    settings: Settings
    windows: Windows
    links: LinkProfile
    pause_us: int
    """Mean time between two actions of the clients is this."""
    load_us: int
    actions_max: int | None
    rocksdb: bool
    """The indexes are real ones."""
    faults: tuple[PlannedFault, ...]
    purges: PurgeSettings | None = None
    takes_back: bool = False
    """Clients take delayed messages back."""


def draw_plan(world: World, edits: Edits) -> Plan:
    """Draw the plan of the world's seed, less the parts that the edits take out."""
    random = world.random_of("configuration")
    cuts = draw_cuts(world.random_of("cuts"))
    settings = replace(
        _draw_settings(random),
        services=draw_service_settings(world.random_of("services")),
        apply_cost_us=world.random_of("apply cost").choice((0, 0, 0, 200, 1_000)),
        cuts=cuts,
        spare_count=world.random_of("spare nodes").choice((0, 0, 0, 0, 1, 2, 3)),
    )
    if settings.node_count > 1 and not settings.spare_count:
        # A lone voter would take a leap of its monotonic clock for one of its wall clock, until it is restarted.
        settings = replace(settings, max_clock_skew_ms=world.random_of("clocks").choice((1_000, 10_000)))
    if cuts is not None:
        settings = replace(settings, segment_bytes=4 * KIB)
    plan = Plan(
        settings=settings,
        windows=replace(_draw_windows(random), cuts=cuts),
        links=_draw_links(world.random_of("links")),
        pause_us=random.choice((6_000, 12_000, 25_000)),
        load_us=LOAD_US,
        actions_max=None,
        rocksdb=random.random() < ROCKSDB_PROBABILITY,
        faults=_draw_faults(world.random_of("faults"), edits.only_kinds, random.choice((120_000, 300_000, 800_000))),
    )
    plan = _thinned(plan, world.random_of("thin links"))
    purges = None if edits.no_purges else draw_purges(world.random_of("purges"))
    if purges is not None:
        services = replace(plan.settings.services, purges=True)
        plan = replace(plan, purges=purges, settings=replace(plan.settings, services=services))
    plan = replace(plan, takes_back=world.random_of("delayers").random() < TAKES_BACK_PROBABILITY)
    may_fill = not plan.links.bytes_per_s and settings.node_count > 1 and edits.only_kinds is None
    if may_fill and world.random_of("full disk").random() < FULL_LEADER_PROBABILITY:
        plan = replace(plan, faults=_with_full_leader(plan.faults))
    if edits.only_kinds is None:
        plan = replace(plan, faults=_with_few_descriptors(plan.faults, world.random_of("descriptors")))
    return _edited(plan, edits)


def _with_few_descriptors(faults: tuple[PlannedFault, ...], random: Random) -> tuple[PlannedFault, ...]:
    """Have some seeds run out of file descriptors, too, beside the faults that they have anyway."""
    if not faults or random.random() >= FEW_DESCRIPTORS_PROBABILITY:
        return faults
    at_us = sorted(random.randint(QUIET_US, LOAD_US) for _ in range(random.randint(2, 12)))
    added = (PlannedFault(len(faults) + n, each_us, "no_descriptors") for n, each_us in enumerate(at_us, 1))
    return tuple(sorted((*faults, *added), key=lambda fault: fault.at_us))


def _thinned(plan: Plan, random: Random) -> Plan:
    """Give some seeds links of THIN_BYTES_PER_S, like TCP connections, and entries that fill them for long. Such a seed
    with no other faults has no reason to change its leader.
    """
    if random.random() >= THIN_PROBABILITY or plan.settings.node_count == 1:
        return plan
    timeout_ms = random.choice((300, 600, 1_000))
    settings = replace(plan.settings, election_timeout_ms=timeout_ms, heartbeat_ms=timeout_ms // 10)
    links = LinkProfile(plan.links.delay_us_min, plan.links.delay_us_max, bytes_per_s=THIN_BYTES_PER_S)
    if random.random() < THIN_PEACE_PROBABILITY:
        plan = replace(plan, faults=())
        settings = replace(settings, spare_count=0, apply_cost_us=0)
    return replace(plan, settings=settings, links=links)


def _with_full_leader(faults: tuple[PlannedFault, ...]) -> tuple[PlannedFault, ...]:
    before = tuple(fault for fault in faults if fault.at_us < CALM_FROM_US)
    return *before, PlannedFault(len(before) + 1, FULL_LEADER_US, "leader_disk_full")


def _draw_settings(random: Random) -> Settings:
    election_timeout_ms = random.choice((150, 300, 300, 600, 1_000))
    return Settings(
        node_count=random.choice((1, *(3,) * 9, *(5,) * 5)),
        election_timeout_ms=election_timeout_ms,
        heartbeat_ms=random.choice((election_timeout_ms // 10, election_timeout_ms // 6, election_timeout_ms // 4)),
        segment_bytes=random.choice((4 * KIB, 16 * KIB, 1 * MIB)),
        cache_bytes=random.choice((0, 4 * KIB, 1 * MIB)),
        flush_entries=random.choice((25, 100, 400)),
        max_entries_in_flight=random.choice((1, 2, 4, 8)),
        max_entry_bytes=random.choice((256, 2 * KIB, 64 * KIB)),
        max_in_flight_bytes=random.choice((6 * KIB, 64 * KIB, 64 * MIB)),
    )


def _draw_windows(random: Random) -> Windows:
    return Windows(
        append_bytes=random.choice((200, 2 * KIB, 4 * MIB)),
        apply_bytes=random.choice((1, 2 * KIB, 8 * MIB)),
        window_messages=random.choice((1, 3, 8)),
        window_bytes=random.choice((1 * KIB, 16 * MIB)),
    )


def _draw_links(random: Random) -> LinkProfile:
    """Draw each seed's own kind of network, from a rack to a bad one."""
    return LinkProfile(
        delay_us_min=50,
        delay_us_max=random.choice((300, 2_000, 10_000)),
        slow_probability=random.choice((0.0, 0.005, 0.03)),
        slow_us_max=random.choice((50_000, 600_000)),
        loss_probability=random.choice((0.0, 0.001, 0.01, 0.05)),
        duplicate_probability=random.choice((0.0, 0.01, 0.15)),
        reorder_probability=random.choice((0.0, 0.01, 0.1)),
    )


def _draw_faults(random: Random, only_kinds: Sequence[str] | None, mean_interval_us: int) -> tuple[PlannedFault, ...]:
    """Draw each seed's own subset of kinds: a mixture of everything hides bugs that need a quiet moment."""
    kinds = only_kinds or random.sample(DRAWN_KINDS, random.randint(2, len(DRAWN_KINDS)))
    faults: list[PlannedFault] = []
    at_us = QUIET_US
    while (at_us := at_us + random.randint(1, 2 * mean_interval_us)) < LOAD_US:
        kind = random.choices(kinds, [_WEIGHTS.get(kind, 1) for kind in kinds])[0]
        faults.append(PlannedFault(len(faults) + 1, at_us, kind))
    return tuple(faults)


def _edited(plan: Plan, edits: Edits) -> Plan:
    settings, links, faults, load_us = plan.settings, plan.links, plan.faults, plan.load_us
    if edits.nodes is not None:
        settings = replace(settings, node_count=edits.nodes)
    if edits.calm_links:
        links = LinkProfile(links.delay_us_min, links.delay_us_max, bytes_per_s=links.bytes_per_s)
    if edits.until_ms is not None:
        load_us = min(load_us, edits.until_ms * 1000)
    if edits.only_faults is not None:
        faults = tuple(fault for fault in faults if fault.number in edits.only_faults)
    faults = tuple(fault for fault in faults if fault.at_us < load_us)
    return replace(plan, settings=settings, links=links, faults=faults, load_us=load_us, actions_max=edits.actions)
