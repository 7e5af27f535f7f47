"""Damage to synced data: its effects on the disk, and the findings that a node may report."""

from random import Random

import pytest

from store.log.commit_log import CommitLog
from store.log.errors import LogCorruption

from .checkers import Violation
from .checkers.corruption import check_corruption, corruption_case
from .checkers.durable_log import RECORD_HEADER_BYTES, DurableLog
from .disk import Damage, TimedDisk
from .replica import HARD_STATE, LOG
from .world import World

SEGMENT = f"{LOG}/{0:020}.log"


def disk_with_records(count: int) -> TimedDisk:
    disk = TimedDisk(World(0), Random(0))
    log = CommitLog.open(disk, LOG, segment_bytes=4096, cache_bytes=0)
    for index in range(2, count + 2):
        log.append(index, 1, 1, b"x" * 50)
        log.sync()
    log.close()
    disk.sync_directory(LOG)
    return disk


def reopened(disk: TimedDisk) -> CommitLog:
    return CommitLog.open(disk, LOG, segment_bytes=4096, cache_bytes=0)


def damage_record(disk: TimedDisk, durable: DurableLog, index: int) -> Damage:
    record = durable.at(index)
    assert record is not None
    disk.flip(SEGMENT, record.offset + RECORD_HEADER_BYTES + 3, 0x10)
    damage = Damage("payload", SEGMENT, record.position, index, is_flip=True)
    disk.damages.append(damage)
    return damage


def test_readers_see_a_flipped_bit_and_the_checkers_what_was_synced() -> None:
    disk = disk_with_records(4)
    durable = DurableLog(disk, LOG, HARD_STATE)
    damage_record(disk, durable, 3)
    with pytest.raises(LogCorruption):
        reopened(disk)
    assert durable.last_index == 5
    disk.lose_power()
    assert durable.last_index == 5
    with pytest.raises(LogCorruption):
        reopened(disk)
    assert disk.is_damaged


def test_a_flipped_bit_is_gone_when_it_is_written_over() -> None:
    disk = disk_with_records(4)
    durable = DurableLog(disk, LOG, HARD_STATE)
    damage_record(disk, durable, 3)
    file = disk.open(SEGMENT)
    file.pwrite(bytes(4096), 0)
    assert disk.flipped() == [SEGMENT], "not before it is synced"
    file.fdatasync()
    assert not disk.is_damaged
    assert disk.pristine(SEGMENT) == bytearray(4096) + (disk.pristine(SEGMENT) or b"")[4096:]


def test_a_corruption_that_is_there_is_named() -> None:
    disk = disk_with_records(4)
    damage = damage_record(disk, DurableLog(disk, LOG, HARD_STATE), 3)
    with pytest.raises(LogCorruption) as caught:
        reopened(disk)
    reason = f"LogCorruption: {caught.value}"
    assert corruption_case(reason) == "corrupt_synced_record"
    check_corruption(1, reason, [damage])
    elsewhere = Damage("payload", SEGMENT, 10_000, 9, is_flip=True)
    for damages in ([], [elsewhere], [Damage("hard_state", HARD_STATE, is_flip=True)]):
        with pytest.raises(Violation, match="corruption"):
            check_corruption(1, reason, damages)


def test_a_damaged_hard_state_is_named() -> None:
    reason = "hard state /data/hard_state is damaged: its CRC does not match. ..."
    assert corruption_case(reason) == "hard_state_damaged"
    check_corruption(1, reason, [Damage("hard_state", HARD_STATE, is_flip=True)])
    with pytest.raises(Violation, match="corruption"):
        check_corruption(1, reason, [])
    assert corruption_case("pread /data/log: Input/output error") is None


def test_hooks_are_called_in_turn_and_can_be_removed() -> None:
    disk = disk_with_records(1)
    seen: list[str] = []

    def once(operation: str, path: str) -> None:
        seen.append(f"once {operation}")
        disk.remove_hook(once)

    disk.add_hook(once)
    disk.add_hook(lambda operation, path: seen.append(operation))
    disk.read_bytes(SEGMENT)
    disk.list(LOG)
    assert seen == ["once read_bytes", "read_bytes", "list"]
    disk.clear_hooks()
    disk.list(LOG)
    assert len(seen) == 3
