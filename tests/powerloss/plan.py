"""The plan of a cycle, drawn from the seed: which nodes lose power, at which moment, and how else the disks are
damaged.

A seed repeats the choices, not the microseconds: processes and disks keep their own time.
"""

import random
from collections.abc import Callable
from typing import Final, Literal, NamedTuple

import msgspec

from store.log.base import FILE_NAME as BASE_NAME
from store.log.base import TEMPORARY_NAME as BASE_TEMPORARY_NAME
from store.log.segment import PENDING_NAME, SEGMENT_SUFFIX, SIDECAR_SUFFIX
from store.log.synced_mark import FILE_NAME as SYNCED_MARK_NAME
from tests.powerloss.file_events import CREATED, DELETED, RENAMED_TO, WRITTEN, FileEvent
from tests.powerloss.images import Filesystem

NODES: Final = (1, 2, 3)
SEGMENT_BYTES: Final = (64 << 10, 128 << 10, 256 << 10)  # small: new segments all the time
KEPT_MS: Final = (200, 500, 1_000)
RETENTION_CHECK_MS: Final = 50
RETAIN_BEHIND_BYTES: Final = (64 << 10, 1 << 20, 64 << 20)  # with less, nodes that were away are sent snapshots

Scope = Literal["one", "majority", "all"]
Trigger = Literal["load", "first_start", "graceful_stop", "leader_change", "recovery"]
Tear = Literal["prefix", "hole", "header_only", "garbage"]

_SCOPES: Final[dict[Scope, tuple[int, int]]] = {"one": (1, 45), "majority": (2, 30), "all": (3, 25)}  # size, weight
_TEARS: Final[tuple[Tear, ...]] = ("prefix", "prefix", "hole", "header_only", "garbage")
_TEAR_PROBABILITY: Final = 0.4
_FLIP_PROBABILITY: Final = 0.3  # of the cycles in which one node loses power
_WIPE_PROBABILITY: Final = 0.15  # of the flips
_FLUSH_JOURNAL_PROBABILITY: Final = 0.2
_RUNNING_PROBABILITY: Final = 0.15


class Moment(NamedTuple):
    """The moment of a power loss: after `trigger`, at the first event that is `wanted` in `directory` of a victim (if
    any), and up to `delay_s` later.
    """

    trigger: Trigger
    weight: int
    delay_s: float
    directory: str = ""
    wanted: Callable[[FileEvent], bool] | None = None


def _made(suffix: str, kind: int = CREATED) -> Callable[[FileEvent], bool]:
    return lambda event: bool(event.kind & kind) and event.name.endswith(suffix)


MOMENTS: Final[dict[str, Moment]] = {
    "under load": Moment("load", 6, 0.3),
    "a sync": Moment("load", 4, 0.003, "log", _made(SYNCED_MARK_NAME, WRITTEN)),
    "next segment being allocated": Moment("load", 4, 0.002, "log", _made(PENDING_NAME)),
    "segment being sealed": Moment("load", 4, 0.002, "log", _made(SIDECAR_SUFFIX)),
    "segment just named": Moment("load", 4, 0.002, "log", _made(SEGMENT_SUFFIX, RENAMED_TO)),
    "leader change": Moment("leader_change", 4, 0.003, "", _made("hard_state", RENAMED_TO)),
    "graceful stop": Moment("graceful_stop", 3, 0.4),
    "index flush of a graceful stop": Moment("graceful_stop", 3, 0.002, "index", _made(".sst")),
    "recovery": Moment("recovery", 4, 0.7),
    "recovery: index being opened": Moment("recovery", 3, 0.002, "index", _made(".dbtmp", CREATED)),
    "recovery: log being opened": Moment("recovery", 4, 0.003, "log", _made(SYNCED_MARK_NAME, WRITTEN)),
}
REMOVALS: Final[dict[str, Moment]] = {
    "index flush before segments are removed": Moment("load", 6, 0.003, "index", _made(".sst")),
    "base of the log being written": Moment("load", 4, 0.001, "log", _made(BASE_TEMPORARY_NAME)),
    "base of the log just named": Moment("load", 6, 0.001, "log", _made(BASE_NAME, RENAMED_TO)),
    "segment being removed": Moment("load", 6, 0.001, "log", _made(SEGMENT_SUFFIX, DELETED)),
}
"""Moments that occur only where messages are kept for a short time."""
_ALL_MOMENTS: Final = MOMENTS | REMOVALS
FIRST_START: Final = "first start"
_FIRST_START_MOMENT: Final = Moment("first_start", 0, 1.6)
EVENT_TIMEOUT_S: Final = 4.0


class CyclePlan(msgspec.Struct, frozen=True):
    scope: Scope
    victims: tuple[int, ...]
    moment: str
    delay_s: float
    down_s: float
    """Seconds for which the others go on without the victims."""
    flush_journal: bool
    freeze_first: bool
    """True when the victims are stopped before their power goes; otherwise it goes while they run."""
    tears: tuple[Tear | None, ...]
    flip: bool
    wipe: bool

    @property
    def when(self) -> Moment:
        return _ALL_MOMENTS.get(self.moment, _FIRST_START_MOMENT)


class EpochPlan(msgspec.Struct, frozen=True):
    """The plan of one cluster on new disks. `kept_ms` is its retention in ms, None for ever."""

    filesystems: dict[int, Filesystem]
    segment_bytes: int
    retain_behind_bytes: int
    kept_ms: int | None

    @property
    def options(self) -> tuple[str, ...]:
        """The options of its nodes."""
        return (
            *("--segment-bytes", str(self.segment_bytes)),
            *("--retain-behind-bytes", str(self.retain_behind_bytes)),
            *("--retention-check-ms", str(RETENTION_CHECK_MS)),
        )


def draw_epoch(rng: random.Random, usable: list[Filesystem], *, retention: bool) -> EpochPlan:
    """Draw an epoch's plan. With retention, messages are gone soon after they are sent, and the log with them."""
    kept_ms, retain_behind_bytes = rng.choice(KEPT_MS), rng.choice(RETAIN_BEHIND_BYTES)
    return EpochPlan(
        draw_filesystems(rng, usable), rng.choice(SEGMENT_BYTES), retain_behind_bytes, kept_ms if retention else None
    )


def draw_cycle(rng: random.Random, *, first: bool, retention: bool) -> CyclePlan:
    """Draw the next cycle; the `first` of an epoch has new, empty disks."""
    scope: Scope = "all" if first else rng.choices(list(_SCOPES), [weight for _, weight in _SCOPES.values()])[0]
    victims = tuple(rng.sample(NODES, _SCOPES[scope][0]))
    moments = _ALL_MOMENTS if retention else MOMENTS
    moment = FIRST_START if first else rng.choices(list(moments), [each.weight for each in moments.values()])[0]
    delay_s = rng.uniform(0, moments.get(moment, _FIRST_START_MOMENT).delay_s) * (rng.random() < 0.8)
    flip = scope == "one" and rng.random() < _FLIP_PROBABILITY
    return CyclePlan(
        scope,
        victims,
        moment,
        delay_s,
        down_s=rng.uniform(0, 0.3),
        flush_journal=rng.random() < _FLUSH_JOURNAL_PROBABILITY,
        freeze_first=rng.random() >= _RUNNING_PROBABILITY,
        tears=tuple(rng.choice(_TEARS) if rng.random() < _TEAR_PROBABILITY else None for _ in victims),
        flip=flip,
        wipe=flip and rng.random() < _WIPE_PROBABILITY,
    )


def draw_filesystems(rng: random.Random, usable: list[Filesystem]) -> dict[int, Filesystem]:
    """Draw a file system for each node, so that every usable one occurs."""
    kinds = [*usable, *rng.choices(usable, k=len(NODES) - len(usable))]
    rng.shuffle(kinds)
    return dict(zip(NODES, kinds, strict=True))
