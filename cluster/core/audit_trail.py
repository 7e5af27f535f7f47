"""Keeps the audit of this node in files, beside the lines on standard error, and reads it.

No call waits for it: records are handed to one thread, and what the disk does not take is counted and left out. The
next record that is written tells how many are missing before it.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

import msgspec
from aiohttp import web
from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric

from cluster.audit.page import Page, read_page
from cluster.audit.record import AuditFilter, AuditRecord, Outcome, cut
from cluster.audit.stream import DIRECTORY, FILES, NAMES, AuditStream, Name
from cluster.core.background import Background, BackgroundTask
from cluster.core.reader_threads import ReaderPool
from cluster.process.request_scope import current
from cluster.security.access_control import AccessControl, Denial
from store.log.disk import Disk
from store.log.errors import DiskError

logger = logging.getLogger(__name__)

WAITING_MAX: Final = 4_096
"""Maximum number of records that wait for the disk; further ones are lost."""
BATCH_RECORDS_MAX: Final = 64
"""Maximum number of records of one write. With the longest texts they are smaller than the smallest file."""
DENIALS_PER_ADDRESS_MAX: Final = 60
DENIALS_MAX: Final = 600
"""Maximum number of denied calls that are recorded in DENIAL_INTERVAL_S, of one client address and in all."""
DENIAL_INTERVAL_S: Final = 60.0
STOP_S_MAX: Final = 2.0
"""Maximum seconds that the end of the node waits for records that are not written yet."""


class DenialPace:
    """Bounds the records of denied calls, which anybody can cause. Use on the event loop only."""

    def __init__(self, steady_s: Callable[[], float]) -> None:
        self._steady_s = steady_s
        self._begun_s = float("-inf")
        self._by_address: dict[str, int] = {}
        self._all = 0

    def takes(self, address: str) -> bool:
        """Return whether to record a denied call from this address, and count it if so."""
        now_s = self._steady_s()
        if now_s - self._begun_s >= DENIAL_INTERVAL_S:
            self._begun_s, self._all = now_s, 0
            self._by_address.clear()
        of_address = self._by_address.get(address, 0)
        if self._all >= DENIALS_MAX or of_address >= DENIALS_PER_ADDRESS_MAX:
            return False
        self._all += 1
        self._by_address[address] = of_address + 1
        return True


class Said(Protocol):
    """Explanation that a request gives of itself: who wants it, and why."""

    @property
    def operator(self) -> str: ...

    @property
    def reason(self) -> str: ...


class AuditTrail:
    """The audit of one node. Use on the event loop only."""

    def __init__(
        self,
        streams: Mapping[Name, AuditStream],
        pool: ReaderPool,
        wall_ms: Callable[[], int],
        steady_s: Callable[[], float],
    ) -> None:
        """Create it. `pool` has one thread, to which the streams belong. Without streams nothing is kept."""
        self._streams = streams
        self._pool = pool
        self._wall_ms = wall_ms
        self._pace = DenialPace(steady_s)
        self._waiting: dict[Name, deque[AuditRecord]] = {name: deque() for name in NAMES}
        self._missing: dict[Name, int] = dict.fromkeys(NAMES, 0)
        """Number of records that are missing before the next one that is taken into the stream."""
        self._written: dict[Name, int] = dict.fromkeys(NAMES, 0)
        self._lost = {"not_written": 0, "queue_full": 0, "too_many_denials": 0}
        self._fails = False
        self._writer: BackgroundTask | None = None
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    def attach(self, access: AccessControl, background: Background) -> None:
        """Record the calls that `access` denies, and write records as one of the tasks of `background`."""
        access.on_denied = self.note_denial
        self._writer = background.task("audit", "write the audit", self._write)

    # --- records -----------------------------------------------------------------------------------------------

    def note(
        self,
        request: web.Request,
        principal: str,
        outcome: Outcome,
        *,
        code: str = "",
        action: str = "",
        detail: str = "",
        said: Said | None = None,
    ) -> None:
        """Record a call that was allowed; on return it is not on the disk yet. `said` is who wants it, and why."""
        if self._streams:
            record = self._record(
                request,
                principal,
                outcome,
                code=code,
                action=action,
                detail=cut(detail),
                operator="" if said is None else cut(said.operator),
                reason="" if said is None else cut(said.reason),
            )
            self._add("calls", record)

    def note_denial(self, request: web.Request, denial: Denial) -> None:
        """Record a denied call, unless there were too many of late."""
        if not self._streams:
            return
        if not self._pace.takes(request.remote or ""):
            self._leave_out("denied", "too_many_denials")
            return
        record = self._record(
            request,
            denial.principal,
            "denied",
            code=denial.code,
            action=denial.action,
            resource=cut(denial.resource),
            permitted=denial.permitted,
            detail=cut(denial.reason),
        )
        self._add("denied", record)

    def _record(self, request: web.Request, principal: str, outcome: Outcome, **more: Any) -> AuditRecord:
        scope, resource = current(), request.match_info.route.resource
        return AuditRecord(
            at_ms=self._wall_ms(),
            principal=cut(principal),
            address=request.remote or "",
            method=request.method,
            path=cut(request.path),
            route="" if resource is None else resource.canonical,
            outcome=outcome,
            request_id="" if scope is None else scope.id,
            trace_id="" if scope is None else scope.trace_id or "",
            raft_index=0 if scope is None else scope.raft_index,
            **more,
        )

    def _add(self, name: Name, record: AuditRecord) -> None:
        if sum(map(len, self._waiting.values())) >= WAITING_MAX:
            self._leave_out(name, "queue_full")
            return
        missing, self._missing[name] = self._missing[name], 0
        self._waiting[name].append(_after(missing, record))
        if self._writer is not None and self._is_idle.is_set():
            self._is_idle.clear()
            self._writer.spawn(self._write)

    async def _write(self) -> None:
        try:
            await self._write_all()
        finally:
            self._is_idle.set()

    async def _write_all(self) -> None:
        """Write all records that wait, as many at a time as came meanwhile."""
        streams = self._streams
        while (name := next((each for each in NAMES if self._waiting[each]), None)) is not None:
            waiting = self._waiting[name]
            batch = [waiting.popleft() for _ in range(min(len(waiting), BATCH_RECORDS_MAX))]
            try:
                await self._pool.run(partial(streams[name].append, batch))
            except Exception as error:
                self._lost["not_written"] += len(batch)
                missing = len(batch) + sum(each.missing_before for each in batch)
                if waiting:
                    waiting[0] = _after(missing, waiting[0])
                else:
                    self._missing[name] += missing
                if not isinstance(error, DiskError):  # a bug, which the background task reports
                    raise
                self._fail(error)
            else:
                self._written[name] += len(batch)
                if self._fails:
                    self._fails = False
                    logger.warning("the audit is written again; its next record tells how many are missing")

    def _leave_out(self, name: Name, reason: str) -> None:
        """Count a record that is not taken; the next one that is tells of it."""
        self._missing[name] += 1
        self._lost[reason] += 1

    def _fail(self, error: DiskError) -> None:
        if not self._fails:
            self._fails = True
            logger.warning(
                "the audit cannot be written: %s. Its lines go on to standard error; until it can be written again, "
                "keelmq_audit_records_lost_total counts what its files lack",
                error,
            )

    # --- reading -----------------------------------------------------------------------------------------------

    async def read(self, wanted: AuditFilter, limit: int, after: str | None) -> Page:
        """Return up to `limit` records that are wanted, the newest first, those before the cursor `after`. A page with
        fewer may have a next one: it has read as much as one page may.

        Raises ValueError when `after` is not a cursor.
        """
        if not self._streams:
            return Page([], None, 0)
        return await read_page(self._streams, wanted, limit, after, self._pool.run)

    # --- end and metrics ---------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Write the waiting records, close the files, and keep no more of them. A disk that hangs is not waited for."""
        streams, self._streams = list(self._streams.values()), {}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_S_MAX):
                await self._is_idle.wait()
                if streams:
                    await self._pool.run(partial(_close, streams))
        if self._writer is not None:
            await self._writer.stop()
        self._pool.stop()

    def counters(self) -> Iterator[Metric]:
        """Yield the numbers of written and of lost records."""
        written = CounterMetricFamily("keelmq_audit_records", "Records written to the audit's files", labels=["stream"])
        for name, count in self._written.items():
            written.add_metric([name], count)
        yield written
        lost = CounterMetricFamily(
            "keelmq_audit_records_lost", "Records that the audit's files lack, by reason", labels=["reason"]
        )
        for reason, count in self._lost.items():
            lost.add_metric([reason], count)
        yield lost


def streams_in(disk: Disk, data_directory: str, bytes_max: int) -> dict[Name, AuditStream]:
    """Return the streams in a data directory, whose files take up to `bytes_max` together."""
    file_bytes_max = bytes_max // (len(NAMES) * FILES)
    return {name: AuditStream(disk, f"{data_directory}/{DIRECTORY}", name, file_bytes_max) for name in NAMES}


def _close(streams: Sequence[AuditStream]) -> None:
    for each in streams:
        each.close()


def _after(missing: int, record: AuditRecord) -> AuditRecord:
    """Return the record, which tells how many more are missing before it."""
    return msgspec.structs.replace(record, missing_before=record.missing_before + missing) if missing else record
