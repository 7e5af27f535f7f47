"""Group commit: at most one sync is under way, and what is appended meanwhile shares the next one."""

import asyncio
from collections.abc import Callable

from raft.syncing.syncers import OnEnd, Syncer
from store.log.commit_log import CommitLog
from store.log.disk import File
from store.log.errors import DiskError
from store.log.watermarks import Watermarks


class LogSync:
    """Syncs the log in the background of the loop, and the watermarks after it when that is wanted. Loop only.

    `on_synced(took_s)` is called after each sync of the log, with None when there was nothing to sync, and
    `on_failed(error)` after the first failure, which is the last sync: a failed fsync is never repeated, since the
    kernel may have dropped the pages (invariant 2).
    """

    def __init__(
        self,
        log: CommitLog,
        watermarks: Watermarks,
        syncer: Syncer,
        on_synced: Callable[[float | None], object],
        on_failed: Callable[[BaseException], object],
    ) -> None:
        self._log = log
        self._watermarks = watermarks
        self._syncer = syncer
        self._on_synced = on_synced
        self._on_failed = on_failed
        self._loop = asyncio.get_running_loop()
        self._is_running = False
        self._is_wanted = False
        self._has_failed = False
        self._stopped: asyncio.Future[None] | None = None

    def request(self) -> None:
        """Make everything appended so far durable: by the sync under way, by one that begins now, or by the next."""
        if self._is_running:
            self._is_wanted = self._is_wanted or not self._log.sync_covers_all
        elif self._stopped is None:
            self._begin()

    async def stop(self) -> None:
        """Return when the sync under way has ended. Nothing is called back and nothing is synced afterwards."""
        self._stopped = self._loop.create_future()
        if self._is_running and not self._has_failed:
            await self._stopped
        self._syncer.close()

    def _begin(self) -> None:
        self._is_wanted = False
        self._is_running = True
        try:
            run = self._log.begin_sync()
        except Exception as error:
            self._fail(error)
            return
        if run is None:
            self._loop.call_soon(self._go_on, None)
        else:
            self._start(run.file, self._end_log)

    def _start(self, file: File, on_end: OnEnd) -> None:
        try:
            self._syncer.start(file, on_end)
        except DiskError as error:
            on_end(error, 0.0)

    def _end_log(self, error: BaseException | None, took_s: float) -> None:
        try:
            self._log.end_sync(error)
        except Exception as failure:  # whatever it is: without an end there is no other sync
            self._fail(failure)
            return
        self._go_on(took_s)

    def _go_on(self, took_s: float | None) -> None:
        """Begin the next sync, so that the disk works while the end of the last one is told."""
        if self._watermarks.sync_wanted and (file := self._watermarks.begin_sync()) is not None:
            self._start(file, self._end_watermarks)
        else:
            self._next()
        if self._stopped is None:
            self._on_synced(took_s)

    def _end_watermarks(self, error: BaseException | None, took_s: float) -> None:
        if error is None:
            self._next()
        else:
            self._fail(error)

    def _next(self) -> None:
        self._is_running = False
        if self._stopped is not None:
            self._tell_stopped()
        elif self._is_wanted:
            self._begin()

    def _tell_stopped(self) -> None:
        if self._stopped is not None and not self._stopped.done():
            self._stopped.set_result(None)

    def _fail(self, error: BaseException) -> None:
        """Leave the sync under way for ever, so that there is no other one."""
        if self._stopped is None:
            self._has_failed = True
            self._on_failed(error)
        else:
            self._tell_stopped()
