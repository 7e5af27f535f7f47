"""Keeps processes of one user from choosing the same free port before either of them listens on it."""

import atexit
import contextlib
import fcntl
import os
from pathlib import Path
from typing import Final

# In the folder of all processes: one with a TMPDIR of its own chooses among the same ports.
CLAIMS: Final = Path(f"/tmp/keelmq-ports-{os.getuid()}")  # noqa: S108


class ClaimedPorts:
    """Ports that this process has chosen. Its claims end with it, however it ends, and children do not have them.

    A claim is a lock on one byte of a file that all share. The last process that ends by itself removes the file; one
    that is killed leaves it to the next. A process has one instance for a file: its locks are those of the process.
    """

    def __init__(self, path: Path = CLAIMS) -> None:
        self._path = path
        self._own: set[int] = set()
        self._locked: set[int] = set()
        self._owner: int | None = None
        """Process id that the claims are of: a fork has none."""
        self._ends_with: int | None = None
        """Process id at whose end the claims are given up."""
        self._file: int | None = None

    def claim(self, port: int) -> bool:
        """Claim a port; False if this process has claimed it before, or another one that lives has."""
        if self._owner != os.getpid():
            self._begin()
        if port in self._own or not self._lock(port):
            return False
        self._own.add(port)
        return True

    def forget(self) -> None:
        """Let this process claim its ports once more, when it has used up all; other processes still cannot."""
        self._own.clear()

    def end(self) -> None:
        """Give the claims up, and remove the file if no other process has a claim."""
        if self._owner != os.getpid():
            return
        self._owner = None
        if self._file is None:
            return
        with contextlib.suppress(OSError):  # another process has claims, or the directory is gone
            fcntl.lockf(self._file, fcntl.LOCK_UN)  # two that end at once would keep each other from removing it
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(self._file).st_nlink:
                self._path.unlink()
        os.close(self._file)
        self._file = None

    def _begin(self) -> None:
        self._owner = os.getpid()
        if self._ends_with != self._owner:
            atexit.register(self.end)
            self._ends_with = self._owner
        self._own.clear()
        self._locked.clear()
        self._file = self._open()  # after a fork, the descriptor of before is the parent's

    def _lock(self, port: int) -> bool:
        """Lock the byte of a port. True also where there can be no file: then only own choices are told apart."""
        while self._file is not None:
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
            except OSError:
                return False
            if os.fstat(self._file).st_nlink:
                break
            self._open_anew()  # it was removed by a process that saw no lock of ours, or by hand
        self._locked.add(port)
        return True

    def _open_anew(self) -> None:
        assert self._file is not None
        os.close(self._file)
        self._file = file = self._open()
        if file is None:
            return
        for port in self._locked:
            with contextlib.suppress(OSError):  # claimed by another process meanwhile
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)

    def _open(self) -> int | None:
        try:
            return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError:
            return None
