"""Mutants of guards that cost no message, only time or words, so that no checker of the simulation accuses them.

Each guard is broken, and a test of what it guards has to fail.
"""

from collections.abc import Callable

import pytest

from raft.election.leadership import Leadership
from raft.election.vacancy import Vacancy
from raft.health.disk_health import DiskHealth
from raft.health.presence import Presence
from raft.replication.replication import Replication
from tests.sim.variant import Swap, Variant, mutant
from tests.unit.raft import test_catching_up, test_disk_health, test_vacancy
from tests.unit.raft.test_disk_health import Time, time
from tests.unit.raft.test_joining import advance

__all__ = ["advance", "time"]


def names_nobody_who_is_missed(_: Vacancy) -> None:
    """A node without a leader does not say whom an election waits for."""


def takes_the_open_connection_for_life(presence: Presence, peer: int) -> bool:
    """A node that was ever heard counts as present, also when it is stopped."""
    return presence.silent_s(peer) is not None


def knows_no_full_disks(_: Leadership) -> list[int]:
    """A leader takes writes that no majority has room for."""
    return []


def takes_no_disk_for_slow(_: DiskHealth) -> set[int]:
    """A leader whose syncs take many times as long as the others' goes on to lead."""
    return set()


def spares_others_that_wait_for_it(*_: object) -> bool:
    """A follower that the others need for a majority is sent its entries little at a time."""
    return True


MUTANTS = (
    (mutant(0, Swap(Vacancy, "waits_for", names_nobody_who_is_missed)), test_vacancy.test_silent_voters_come_first),
    (
        mutant(0, Swap(Presence, "is_present", takes_the_open_connection_for_life)),
        test_disk_health.test_who_is_waited_for_is_named_with_the_rule,
    ),
    (
        mutant(0, Swap(Leadership, "full_disks", knows_no_full_disks)),
        test_disk_health.test_writes_are_refused_only_while_no_majority_has_room,
    ),
    (
        mutant(0, Swap(DiskHealth, "slow", takes_no_disk_for_slow)),
        test_disk_health.test_a_disk_is_slow_that_needs_many_times_as_long_as_a_majority,
    ),
)


@pytest.mark.parametrize(("variant", "test"), MUTANTS, ids=lambda each: getattr(each, "name", None))
def test_a_guard_that_is_lost_is_missed(variant: Variant, test: Callable[[Time], None], time: Time) -> None:
    with variant.installed(), pytest.raises(AssertionError):
        test(time)


def test_sparing_others_that_wait_is_missed(advance: Callable[[float], None], monkeypatch: pytest.MonkeyPatch) -> None:
    broken = mutant(0, Swap(Replication, "_others_commit_without", spares_others_that_wait_for_it))
    with broken.installed(), pytest.raises(AssertionError):
        test_catching_up.test_one_that_the_others_need_for_a_majority_is_sent_what_there_is(advance, monkeypatch)
