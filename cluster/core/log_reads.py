"""Reading the log for clients: from memory on the loop, from the disk beside it, never more of it than is due.

The newest part of the log is in memory (`cache_bytes`); all else is read by `ReaderThreads`, in steps of at most
`READ_STEP_BYTES`. While producers are at work, those who read old messages share `cold_read_bytes_per_s`.
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
"""Read of the disk in one step of a reader thread; one block or record that is larger makes a step of its own."""
READ_BYTES_MAX: Final = 16 * 1024 * 1024
"""Read of the disk for one request, which answers with what it has then."""
SIDECAR_BYTES: Final = READ_STEP_BYTES
"""What reading the sidecar of a segment counts for."""
READ_WAIT_S_MAX: Final = 2.0
"""A request that would have to wait longer for its share of the disk is refused."""
WRITES_SAMPLED_S: Final = 0.25
WRITES_BYTES_PER_S: Final = 64 * 1024
"""Producers are at work while the log grows as fast as this."""
CATCH_UP: Final = 2
"""Old messages may always be read this much faster than new ones come: whoever is behind catches up."""

T = TypeVar("T")


class ReadPace:
    """What readers of old messages may take of the disk, and of everybody's time, together."""

    def __init__(self, log: CommitLog, bytes_per_s: int) -> None:
        self._log = log
        self._bytes_per_s = bytes_per_s
        self._sampled_s = float("-inf")
        self._sampled_position = log.end_position
        self._written_bytes_per_s = 0.0
        self._due_s = 0.0

    def wait_s(self, read_bytes: int, now_s: float, *, patient: bool = False) -> float:
        """How long to wait before reading so many bytes, which are counted. Problem overloaded when that is too long,
        unless the reader is `patient`: then they are not.
        """
        self._sample(now_s)
        if not self._bytes_per_s or self._written_bytes_per_s < WRITES_BYTES_PER_S:
            self._due_s = now_s
            return 0.0
        begin_s = max(self._due_s, now_s)
        if begin_s - now_s > READ_WAIT_S_MAX and not patient:
            raise Problem("overloaded", "too many old messages are being read")
        self._due_s = begin_s
        self.count(read_bytes)
        return begin_s - now_s

    def count(self, read_bytes: int) -> None:
        """What was read already: it is the next ones that wait for it."""
        if self._bytes_per_s:
            self._due_s += read_bytes / max(self._bytes_per_s, CATCH_UP * self._written_bytes_per_s)

    def _sample(self, now_s: float) -> None:
        passed_s = now_s - self._sampled_s
        if passed_s >= WRITES_SAMPLED_S:
            written = self._log.end_position - self._sampled_position
            self._written_bytes_per_s = max(written, 0) / passed_s  # fewer: the log was cut
            self._sampled_s, self._sampled_position = now_s, self._log.end_position


class LogReads:
    """Loop-only. A log that cannot be read ends the process: other nodes have the data."""

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
        """The payload of the record at a log position if it is in memory. Raises `LogTruncated`."""
        payload = self._log.places.cached(position)
        if payload is None:
            self._log.places.require(position)
        return payload

    def stored_block(self, position: int, offset: int, length: int, checksum: int) -> StoredBlock:
        """Where a block is on the disk. Raises `LogTruncated`."""
        return self._log.places.block(position, offset, length, checksum)

    async def blocks(self, plan: BlockPlan, oldest: int, *, patient: bool = False) -> list[bytes | None]:
        """The blocks of the plan, of which the first in the log is of the record at `oldest`; None for one that is not
        what was produced, though its record is what was written. Raises `LogTruncated` when one was removed, Problem
        overloaded; who is `patient` waits for its share of the disk, however long.
        """
        return await self._read(partial(plan.read, self._disk), plan.read_bytes, oldest, patient=patient)

    async def check(self, position: int) -> None:
        """Whether the record there is what was written: if not, this node stops."""
        await self._stored_payload(position)

    async def payload(self, position: int) -> bytes:
        """The payload of the record at a log position, wherever it is; raises as `blocks` does."""
        cached = self.cached(position)
        return cached if cached is not None else await self._stored_payload(position)

    async def records(self, first: int, last: int, max_bytes: int) -> tuple[bytes, int]:
        """Records from `first` up to `last` that fit `max_bytes`, at least one, as they are on disk; and the index that
        follows them. Raises as `blocks` does.
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

    async def _know_segment(self, index: int) -> None:
        """Where the records of its segment begin is read beside the loop as well: 8 bytes for each of them."""
        ahead = self._log.places.load_ahead(index) if index >= self._log.first_index else None
        if ahead is not None:
            load, adopt = ahead
            known = await self._read(load, SIDECAR_BYTES, self._log.places.start_of(index))
            with self._fatal():
                adopt(known)

    def term_at(self, index: int) -> int:
        """Of an entry that is applied. It reads no record."""
        with self._fatal():
            return self._log.term_at(index)

    async def _stored_payload(self, position: int) -> bytes:
        record = self._log.places.record(position)
        entry = await self._read(partial(read_record, self._disk, record), PAGE_BYTES, position)
        more_bytes = len(entry.payload)
        self._pace.count(more_bytes)  # how long it is, only its header says
        self._read_bytes += more_bytes
        return entry.payload

    async def _read(self, step: Callable[[], T], read_bytes: int, oldest: int, *, patient: bool = False) -> T:
        """One step of a reader thread; `oldest` is the position of the first record it needs."""
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
                        self._log.places.require(oldest)  # removed meanwhile: nothing is wrong
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
