"""Recovery from any damaged byte, and from power loss at any step. These checks are shown to fail when they should."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from store.log import recovery
from store.log.commit_log import CommitLog
from store.log.errors import LogError
from store.log.record import HEADER_BYTES, Header, parse_header
from store.log.recovery import RecoveryCase
from store.log.segment import start_of
from tests.simdisk import PowerLost, SimDisk
from tests.unit.store.logs import (
    DIRECTORY,
    append_to,
    assert_holds,
    killed_with_unsynced,
    open_log,
    path_of,
    position_of,
    segment_paths,
    sim_disk,
    synced_log,
)


def damage_somewhere(disk: SimDisk, seed: int) -> None:
    """Flip bits of one synced byte of a log of 20 records that was closed or killed."""
    log = synced_log(disk, 20)
    end = log.end_position
    disk.kill_process()
    position = (seed * 7919) % end
    path = max(p for p in segment_paths(disk) if p <= path_of(position))
    offset = position - (start_of(path.removeprefix(f"{DIRECTORY}/"), ".log") or 0)
    disk.damage(path, offset, bytes([disk.read_bytes(path)[offset] ^ (1 + seed % 255)]))


def undetected(seeds: range) -> list[int]:
    """Return the seeds for which the log opened and read to its end as if nothing had happened, or lost a synced
    record.
    """
    missed = []
    for seed in seeds:
        disk = sim_disk(seed)
        damage_somewhere(disk, seed)
        try:
            log = open_log(disk)
            log.entries(1, 1 << 20)
        except LogError:
            continue
        missed.append(seed)
    return missed


def test_no_damaged_byte_of_what_was_synced_goes_undetected() -> None:
    assert undetected(range(300)) == []


def test_a_recovery_without_the_synced_mark_is_found_guilty(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checker above can fail: without evidence of what was synced, damage is cut off as if it were a torn tail."""
    monkeypatch.setattr(recovery, "_evidence", lambda *_: None)
    assert undetected(range(300))


@pytest.mark.parametrize("seed", range(4))
def test_power_loss_at_every_step_of_a_rollover(seed: int) -> None:
    survived_at_every_step(seed, lambda log: append_to(log, 14), 12)


@pytest.mark.parametrize("seed", range(4))
def test_power_loss_at_every_step_of_a_truncation_over_segments(seed: int) -> None:
    """The log goes from 40 records in four segments back to 5. At every step it is shorter or not, and never has a
    gap.
    """
    survived_at_every_step(seed, lambda log: log.truncate_from(6), 40, promised=5)


def survived_at_every_step(
    seed: int, action: Callable[[CommitLog], object], last_index: int, promised: int | None = None
) -> None:
    """Repeat `action` on a fresh log of `last_index` records, each time losing power one operation later."""
    step = 0
    finished = False
    while not finished:
        disk = sim_disk(seed * 1000 + step)
        log = synced_log(disk, last_index)
        disk.lose_power_at(disk.operations + step)
        try:
            action(log)
            finished = True
            disk.on_operation = None
        except PowerLost:
            pass
        disk.lose_power()
        log = open_log(disk)
        assert log.last_index >= (promised or last_index)
        assert_holds(log, log.last_index)
        log.close()
        step += 1
    assert step > 5


def test_header_says_what_was_synced() -> None:
    """The `synced_position` of a record is the position that had been synced when it was written."""
    disk = sim_disk()
    log = synced_log(disk, 3)
    append_to(log, 5)
    data = disk.read_bytes(path_of(0))
    headers = [parse_header(data, position_of(index)) for index in range(2, 6)]
    assert [h.synced_position for h in headers if isinstance(h, Header)] == [HEADER_BYTES] * 2 + [position_of(4)] * 2


def test_opening_twice_changes_nothing() -> None:
    disk = sim_disk()
    killed_with_unsynced(disk, 5, 8)
    disk.damage(path_of(0), position_of(7), b"\x00")
    first: CommitLog = open_log(disk)
    first.close()
    before = disk.read_bytes(path_of(0))
    second = open_log(disk)
    assert second.recovery.case is RecoveryCase.CLEAN_END
    assert disk.read_bytes(path_of(0)) == before
