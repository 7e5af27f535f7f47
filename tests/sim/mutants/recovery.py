"""Broken ways to recover the log at a start."""

from collections.abc import Iterator
from typing import Any

import store.log.commit_log
import store.log.recovery
from store.log.disk import Disk, File
from store.log.errors import LogCorruption
from store.log.record import HEADER_BYTES, Header, parse_header
from store.log.recovery import Recovered, RecoveryCase, _Known, _Tail, recover
from store.log.scan import later_headers, scan_records
from tests.sim.variant import Swap, mutant

from .log_files import CarelessDisk

_classify, _settle = store.log.recovery._classify, store.log.recovery._settle


def takes_a_torn_tail_for_damage(tail: _Tail, known: _Known) -> RecoveryCase:
    """A tail that was never synced, and is torn, stops the node."""
    case = _classify(tail, known)
    if case in (RecoveryCase.TORN_TAIL, RecoveryCase.HOLE_IN_UNSYNCED_TAIL, RecoveryCase.ZERO_FILLED_TAIL):
        raise LogCorruption(case.value, tail.segment.name, tail.end_position, tail.records.next_index, "damaged")
    return case


def believes_the_page_cache(tail: _Tail, mark_position: int) -> int:
    """The data read when a log is opened counts as being on disk, also data that a failed fsync has dropped."""
    return _settle(tail, tail.end_position)


def opens_without_sync(tail: _Tail, mark_position: int) -> int:
    """The data found when a log is opened counts as synced; nobody syncs it."""
    if tail.surplus_bytes:
        tail.file.truncate(tail.records.length)
    return 0


def leaves_what_follows_a_torn_record(tail: _Tail, mark_position: int) -> int:
    """The remains behind a torn record are not cut; new records are written over them."""
    return _settle(tail._replace(surplus_bytes=0), mark_position)


def believes_headers(file: File, start: int, offset: int = 0) -> Iterator[tuple[Header, memoryview]]:
    """A record whose header is intact counts, whatever its payload is."""
    while True:
        header = parse_header(file.pread(HEADER_BYTES, offset))
        if header is None or header.position != start + offset:
            return
        size = HEADER_BYTES + header.payload_length
        payload = memoryview(file.pread(header.payload_length, offset + HEADER_BYTES))
        if len(payload) < header.payload_length:
            return
        yield header, payload
        offset += size


def goes_on_behind_a_hole(file: File, start: int, offset: int = 0) -> Iterator[tuple[Header, memoryview]]:
    """The records behind a torn record are read as if the torn one had never been there."""
    for header, payload in scan_records(file, start, offset):
        yield header, payload
        offset = header.end_position - start
    for header in later_headers(file, start, offset):
        yield header, memoryview(file.pread(header.payload_length, header.position - start + HEADER_BYTES))


def uses_a_name_that_may_vanish(disk: Disk, *arguments: Any) -> Recovered:
    """A segment that its process did not live to make durable is used when it is found; its name is not synced."""
    careless: Any = CarelessDisk(disk)
    return recover(careless, *arguments)


MUTANTS = (
    mutant(10, Swap(store.log.recovery, "_classify", takes_a_torn_tail_for_damage), rare=True),
    mutant(2, Swap(store.log.recovery, "_settle", believes_the_page_cache), rare=True),
    mutant(2, Swap(store.log.recovery, "_settle", opens_without_sync)),
    mutant(10, Swap(store.log.recovery, "_settle", leaves_what_follows_a_torn_record), rare=True),
    mutant(10, Swap(store.log.recovery, "scan_records", believes_headers), rare=True),
    mutant(10, Swap(store.log.recovery, "scan_records", goes_on_behind_a_hole)),
    mutant(2, Swap(store.log.commit_log, "recover", uses_a_name_that_may_vanish)),
)
