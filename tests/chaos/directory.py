"""The directory of a run: history, node logs, evidence. Removed after a clean run; leftovers of a crash at the next."""

import contextlib
import fcntl
import shutil
import tempfile
from pathlib import Path
from typing import IO, Final

PREFIX: Final = "keelmq-chaos-"
RUNNING: Final = "running"
"""Locked while the run goes on and removed at its end: one that is there and not locked is of a run that crashed."""


class RunDirectory:
    """A new directory below `parent`; those of runs that crashed are removed first."""

    def __init__(self, parent: Path) -> None:
        parent.mkdir(parents=True, exist_ok=True)
        for left in parent.glob(f"{PREFIX}*/{RUNNING}"):
            if not _is_locked(left):
                shutil.rmtree(left.parent, ignore_errors=True)
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        self._lock: IO[bytes] = (self.path / RUNNING).open("wb")
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def close(self, *, keep: bool) -> None:
        """The run is over."""
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
