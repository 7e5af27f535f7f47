"""Group commit: one thread syncs the log while the loop goes on appending to it."""

import queue
import threading
from collections.abc import Callable

from raft.library import now
from store.log.commit_log import CommitLog
from store.log.watermarks import Watermarks


class SyncThread:
    """Owns the thread that syncs the log. `request()` makes everything appended before it durable; requests made while
    a sync runs share the next one. The watermarks are synced after the log, when that is wanted.

    `on_synced(took_s)` and `on_failed(error)` are called in this thread; `took_s` is None when there was nothing to
    sync. After a failure the thread has ended: a failed fsync is never retried, since the kernel may have dropped the
    pages (invariant 2).
    """

    def __init__(
        self,
        log: CommitLog,
        watermarks: Watermarks,
        on_synced: Callable[[float | None], object],
        on_failed: Callable[[BaseException], object],
    ) -> None:
        self._log = log
        self._watermarks = watermarks
        self._on_synced = on_synced
        self._on_failed = on_failed
        self._requests: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._requested = False
        self._thread = threading.Thread(target=self._run, name="commit-log-sync", daemon=True)
        self._thread.start()

    def request(self) -> None:
        """Ask for a sync; called on the loop, and cheap while a request is already waiting."""
        if not self._requested:
            self._requested = True
            self._requests.put(True)

    def stop(self) -> None:
        """Stop the thread. Returns when a sync under way has ended; no callback is called afterwards."""
        self._requests.put(False)
        self._thread.join()

    def _run(self) -> None:
        while self._requests.get():
            self._requested = False  # before the sync: later appends ask again
            synced_before, begun_s = self._log.synced_index, now()
            try:
                synced = self._log.sync()
            except BaseException as error:
                self._on_failed(error)
                return
            self._on_synced(now() - begun_s if synced > synced_before else None)
            if self._watermarks.sync_wanted:
                try:
                    self._watermarks.sync()
                except BaseException as error:
                    self._on_failed(error)
                    return
