"""Settings of a seed whose topics are purged, limited in bytes and deleted while everything else goes on."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from unittest import mock

from raft.feature_levels import FeatureLevels

PROBABILITY = 0.3


@dataclass(frozen=True)
class PurgeSettings:
    """`raised_at_us` is the time at which operators raise the feature level of a cluster that an earlier version has
    founded; None if the cluster is new, and has the highest level from the start.
    """

    raised_at_us: int | None
    pause_us: int
    """Mean pause between two actions of the operators and clients of the purged topics."""
    deletes: int
    """Weight of the deletion of a topic among rare actions."""

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Let new clusters stay at the first feature level until operators raise it, if this is such a seed."""
        if self.raised_at_us is None:
            yield
        else:
            with mock.patch.object(FeatureLevels, "_is_new", return_value=False):
                yield


def draw_purges(random: Random) -> PurgeSettings | None:
    """Draw the settings; None in most seeds, which are as they were before there were purges."""
    if random.random() >= PROBABILITY:
        return None
    raised_at_us = random.choice((None, random.randint(1_500_000, 6_000_000)))
    return PurgeSettings(raised_at_us, random.choice((50_000, 150_000, 500_000)), random.choice((1, 1, 8)))
