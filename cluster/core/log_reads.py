"""Reads the log for clients: from memory on the loop, from the disk in reader threads, at a limited rate.

The newest part of the log is in memory (`cache_bytes`). `ReaderThreads` read all older records, in steps of at most
`READ_STEP_BYTES`. While producers are at work, all readers of old messages share `cold_read_bytes_per_s`.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, NoReturn, TypeVar

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric

from cluster.core.block_damage import BlockDamages
from cluster.core.reader_threads import ReaderPool
from cluster.metrics import Metrics, gauge
from cluster.problems import Problem
from store.log.commit_log import CommitLog
from store.log.disk import Disk
from store.log.errors import DiskError, DiskFull, LogCorruption, LogError
from store.log.extents import PAGE_BYTES, BlockPlan, StoredBlock, is_missing, read_record, read_records

READ_STEP_BYTES: Final = 1024 * 1024
"""Maximum bytes that a reader thread reads in one step; a larger block or record is a step by itself."""
READ_BYTES_MAX: Final = 16 * 1024 * 1024
"""Maximum bytes read from disk for one request, which then answers with the records read so far."""
SIDECAR_BYTES: Final = READ_STEP_BYTES
"""Bytes counted for reading the sidecar of a segment."""
READ_WAIT_S_MAX: Final = 2.0
"""Maximum seconds that a request waits for its share of the disk; a longer wait is refused."""
SEGMENTS_PASSED_MAX: Final = 32
"""Maximum number of segments in which one request counts the bytes of records: each may have a sidecar to read."""
WRITES_SAMPLED_S: Final = 0.25
WRITES_BYTES_PER_S: Final = 64 * 1024
"""Growth of the log from which on producers count as being at work."""
CATCH_UP: Final = 2
"""Ratio of the rate at which old messages may always be read to the rate of new ones: slow readers catch up."""

T = TypeVar("T")


class ReadPace:
    """Limits the rate at which all readers of old messages together use the disk and the loop."""

    def __init__(self, log: CommitLog, bytes_per_s: int) -> None:
        self._log = log
        self._bytes_per_s = bytes_per_s
        self._sampled_s = float("-inf")
        self._sampled_position = log.end_position
        self._written_bytes_per_s = 0.0
        self._due_s = 0.0

    def wait_s(self, read_bytes: int, now_s: float, *, patient: bool = False) -> float:
        """Count `read_bytes` and return the seconds to wait before reading them.

        Raises Problem overloaded when the wait is longer than READ_WAIT_S_MAX and the reader is not `patient`; the
        bytes are not counted then.
        """
        self._sample(now_s)
        if not self._bytes_per_s or self._written_bytes_per_s < WRITES_BYTES_PER_S:
            self._due_s = now_s
            return 0.0
        begin_s = max(self._due_s, now_s)
        if begin_s - now_s > READ_WAIT_S_MAX and not patient:
            raise Problem("overloaded", "too many old messages are being read; send it again later")
        self._due_s = begin_s
        self.count(read_bytes)
        return begin_s - now_s

    def count(self, read_bytes: int) -> None:
        """Count bytes that were read already, so that the next reads wait for them."""
        if self._bytes_per_s:
            self._due_s += read_bytes / max(self._bytes_per_s, CATCH_UP * self._written_bytes_per_s)

    def _sample(self, now_s: float) -> None:
        passed_s = now_s - self._sampled_s
        if passed_s >= WRITES_SAMPLED_S:
            written = self._log.end_position - self._sampled_position
            self._written_bytes_per_s = max(written, 0) / passed_s  # negative when the log was cut
            self._sampled_s, self._sampled_position = now_s, self._log.end_position


class LogReads:
    """Reads blocks and records of the log for clients. Use on the event loop only. A log that cannot be read ends the
    process: other nodes have the data.
    """

    def __init__(
        self,
        log: CommitLog,
        disk: Disk,
        pool: ReaderPool,
        metrics: Metrics,
        *,
        bytes_per_s: int,
        on_fatal: Callable[[str], None],
    ) -> None:
        self._log = log
        self._disk = disk
        self._pool = pool
        self._pace = ReadPace(log, bytes_per_s)
        self._on_fatal = on_fatal
        self.damages = BlockDamages()
        self._steps = 0
        self._read_bytes = 0
        self._waiting = 0
        metrics.add_gauges(self._gauges)

    def stop(self) -> None:
        self._pool.stop()

    def cached(self, position: int) -> bytes | None:
        """Return the payload of the record at a log position if it is in memory, otherwise None.

        Raises LogTruncated when the record was removed.
        """
        payload = self._log.places.cached(position)
        if payload is None:
            self._log.places.require(position)
        return payload

    def stored_block(self, position: int, offset: int, length: int, checksum: int) -> StoredBlock:
        """Return the place of a block on the disk. Raises LogTruncated when its record was removed."""
        return self._log.places.block(position, offset, length, checksum)

    async def blocks(self, plan: BlockPlan, oldest: int, *, patient: bool = False) -> list[bytes | None]:
        """Read the blocks of the plan from disk. `oldest` is the position of the first record in the log that it needs.

        The result has None for a damaged block in a sound record. Raises LogTruncated when a record was removed, and
        Problem overloaded when the share of the disk does not come in time; a `patient` caller waits however long.
        """
        return await self._read(partial(plan.read, self._disk), plan.read_bytes, oldest, patient=patient)

    async def check(self, position: int) -> None:
        """Verify the record at a log position. This node stops when the record is damaged."""
        await self._stored_payload(position)

    async def payload(self, position: int) -> bytes:
        """Return the payload of the record at a log position, from memory or disk. Raises as `blocks` does."""
        cached = self.cached(position)
        return cached if cached is not None else await self._stored_payload(position)

    async def records(self, first: int, last: int, max_bytes: int) -> tuple[bytes, int]:
        """Return the records from index `first` up to `last` that fit `max_bytes`, at least one, as they are on disk,
        and the index that follows them. Raises as `blocks` does.
        """
        parts: list[bytes] = []
        index, left = first, min(max_bytes, READ_BYTES_MAX)
        while index <= last and left > 0:
            await self._know_segment(index)
            with self._fatal():
                records = self._log.places.records(index, last, min(left, READ_STEP_BYTES))
            if parts and records.extent.length > left:
                break
            read = partial(read_records, self._disk, records)
            parts.append(await self._read(read, records.extent.length, records.position))
            left -= records.extent.length
            index = records.last + 1
        return (parts[0] if len(parts) == 1 else b"".join(parts)), index

    async def index_after(self, first: int, last: int, max_bytes: int) -> int:
        """Return the index that follows the records from `first` up to `last` that fit `max_bytes`, at least one. Fewer
        are counted when they lie in more than SEGMENTS_PASSED_MAX segments. No record is read; raises as `blocks` does.
        """
        index, left = first, max_bytes
        for _ in range(SEGMENTS_PASSED_MAX):
            if index > last or left <= 0:
                break
            await self._know_segment(index)
            with self._fatal():
                records = self._log.places.records(index, last, left)
            if index > first and records.extent.length > left:
                break
            left -= records.extent.length
            index = records.last + 1
        return index

    async def index_at(self, position: int) -> int | None:
        """Return the index of the record at a log position; None if none begins there. No record is read; raises as
        `blocks` does.
        """
        await self._know_segment(self._log.places.segment_at(position))
        with self._fatal():
            return self._log.places.index_at(position)

    def bytes_from(self, index: int) -> int:
        """Return the bytes of the log from record `index` on, which must not lie before the first record. For a segment
        whose records are not known the whole of it counts.
        """
        known = self._log.places.place_of(index)
        return self._log.end_position - (self._log.places.start_of(index) if known is None else known[1])

    async def _know_segment(self, index: int) -> None:
        """Load the sidecar of the segment of `index` in a reader thread, if it is not in memory. The sidecar holds the
        positions of the segment's records, 8 bytes each.
        """
        ahead = self._log.places.load_ahead(index) if index >= self._log.first_index else None
        if ahead is not None:
            load, adopt = ahead
            known = await self._read(partial(load, self._disk), SIDECAR_BYTES, self._log.places.start_of(index))
            with self._fatal():
                adopt(known)

    def term_at(self, index: int) -> int:
        """Return the term of an applied entry, without reading a record."""
        with self._fatal():
            return self._log.term_at(index)

    async def _stored_payload(self, position: int) -> bytes:
        record = self._log.places.record(position)
        entry = await self._read(partial(read_record, self._disk, record), PAGE_BYTES, position)
        more_bytes = len(entry.payload)
        self._pace.count(more_bytes)  # its length is known only now, from the header
        self._read_bytes += more_bytes
        return entry.payload

    async def _read(self, step: Callable[[], T], read_bytes: int, oldest: int, *, patient: bool = False) -> T:
        """Run one step of a reader thread. `oldest` is the position of the first record that the step needs."""
        self._waiting += 1
        try:
            wait_s = self._pace.wait_s(read_bytes, asyncio.get_running_loop().time(), patient=patient)
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            with self._fatal():
                try:
                    found = await self._pool.run(step)
                except (DiskError, LogCorruption) as error:
                    if not isinstance(error, DiskError) or is_missing(error):
                        self._log.places.require(oldest)  # raises when it was removed meanwhile: the disk is sound then
                    raise
        except DiskFull as error:
            raise Problem("overloaded", str(error)) from error
        finally:
            self._waiting -= 1
        self._steps += 1
        self._read_bytes += read_bytes
        return found

    @contextlib.contextmanager
    def _fatal(self) -> Iterator[None]:
        try:
            yield
        except DiskFull:
            raise
        except LogError as error:
            self._end(str(error))

    def _end(self, reason: str) -> NoReturn:
        self._on_fatal(reason)
        raise RuntimeError(reason)

    def _gauges(self) -> Iterator[Metric]:
        steps = CounterMetricFamily("keelmq_log_reads", "Reads of the log's files for clients, made beside the loop")
        steps.add_metric([], self._steps)
        yield steps
        read = CounterMetricFamily("keelmq_log_read_bytes", "Bytes these reads took of the disk or of its cache")
        read.add_metric([], self._read_bytes)
        yield read
        yield gauge("keelmq_log_reads_waiting", "Such reads that wait or are under way", self._waiting)
