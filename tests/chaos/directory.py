"""The directory of a run: history, node logs, evidence. It is removed after a clean run, or after a crash by the next
run.
"""

import contextlib
import fcntl
import shutil
import tempfile
from pathlib import Path
from typing import IO, Final

PREFIX: Final = "keelmq-chaos-"
RUNNING: Final = "running"
"""File that is locked while the run goes on and removed at its end: one that is not locked belongs to a crashed run."""


class RunDirectory:
    """Owns a new directory below `parent`; directories of crashed runs are removed first."""

    def __init__(self, parent: Path) -> None:
        parent.mkdir(parents=True, exist_ok=True)
        for left in parent.glob(f"{PREFIX}*/{RUNNING}"):
            if not _is_locked(left):
                shutil.rmtree(left.parent, ignore_errors=True)
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        self._lock: IO[bytes] = (self.path / RUNNING).open("wb")
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def close(self, *, keep: bool) -> None:
        """End the run: release the lock, and remove the directory unless `keep`."""
        (self.path / RUNNING).unlink(missing_ok=True)
        self._lock.close()
        if not keep:
            shutil.rmtree(self.path, ignore_errors=True)


def _is_locked(file: Path) -> bool:
    with contextlib.suppress(FileNotFoundError), file.open("rb") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
