"""Scrubbing a sealed segment finds damage that a CRC shows, and damage that only the chain shows."""

from collections.abc import Callable

import pytest
from crc32c import crc32c

from store.log.record import HEADER_BYTES, encode_header, parse_header
from store.log.scrub import Damage, SealedSegment, SegmentScrub
from tests.simdisk import SimDisk
from tests.unit.store.logs import open_log, sim_disk, synced_log

RECORDS = 60


def scrub(disk: SimDisk, segments: list[SealedSegment]) -> list[Damage | None]:
    found, before = [], None
    for segment in segments:
        one = SegmentScrub(disk, segment, before)
        assert sum(one.steps(1000)) <= segment.length
        found.append(one.damage)
        before = one.after
    return found


def flip(disk: SimDisk, path: str, at: int) -> None:
    file = disk.open(path)
    file.pwrite(bytes([file.pread(1, at)[0] ^ 1]), at)
    file.close()


def rewrite(disk: SimDisk, path: str, at: int) -> None:
    """Flip one bit of the record's payload and make its CRCs fit."""
    file = disk.open(path)
    header = parse_header(file.pread(HEADER_BYTES, at))
    assert header is not None
    payload = bytearray(file.pread(header.payload_length, at + HEADER_BYTES))
    payload[-1] ^= 1
    new = encode_header(
        header.kind,
        len(payload),
        crc32c(bytes(payload)),
        header.index,
        header.term,
        header.position,
        header.synced_position,
    )
    file.pwrite(new + bytes(payload), at)
    file.close()


def test_sound_segments_are_all_read_and_their_chains_meet() -> None:
    disk = sim_disk()
    log = synced_log(disk, RECORDS)
    segments = log.chain.sealed()
    assert len(segments) > 2
    assert scrub(disk, segments) == [None] * len(segments)
    last = SegmentScrub(disk, segments[-1], None)
    list(last.steps(1 << 20))
    assert last.after is not None
    assert last.after == log.chain.at(log._segments.active.first_index - 1)


@pytest.mark.parametrize("break_it", [flip, rewrite])
def test_a_damaged_record_is_named(break_it: Callable[[SimDisk, str, int], None]) -> None:
    disk = sim_disk()
    log = synced_log(disk, RECORDS)
    segment = log.chain.sealed()[1]
    index = segment.first_index + 3
    position = log.position_of(index)
    break_it(disk, segment.path, position - segment.start)
    found = scrub(disk, log.chain.sealed())
    assert [damage is not None for damage in found] == [False, True, *[False] * (len(found) - 2)]
    damage = found[1]
    assert damage is not None
    assert (damage.path, damage.position, damage.raft_index) == (segment.path, position, index)


def test_a_record_that_was_changed_with_its_crc_and_its_sidecar_is_seen_at_the_next_segment() -> None:
    disk = sim_disk()
    log = synced_log(disk, RECORDS)
    first, second = log.chain.sealed()[:2]
    rewrite(disk, first.path, log.position_of(first.first_index + 2) - first.start)
    disk.unlink(first.path.replace(".log", ".idx"))
    log.close()
    log = open_log(disk)
    log.term_at(first.first_index + 1)  # makes the sidecar anew, of what is there
    found = scrub(disk, log.chain.sealed())
    assert found[0] is None
    assert found[1] is not None
    assert found[1].raft_index == second.first_index


def test_the_chain_is_the_same_after_a_restart_and_in_a_log_of_other_segments() -> None:
    disk, other = sim_disk(), sim_disk(2)
    log, twin = synced_log(disk, RECORDS), synced_log(other, RECORDS)
    links = [log.chain.at(index) for index in range(log.last_index + 1)]
    assert links == [twin.chain.at(index) for index in range(log.last_index + 1)]
    assert None not in links
    assert len(set(links)) == len(links)
    log.close()
    again = open_log(disk)
    assert [again.chain.at(index) for index in range(again.last_index + 1)] == links
    again.truncate_from(20)
    assert again.chain.last == links[19]
    again.drop_before(15)
    assert again.chain.at(again.base.index) == links[again.base.index]
    again.close()
    once_more = open_log(disk, applied_index=15)
    assert once_more.chain.last == links[19]
