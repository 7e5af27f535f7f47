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

    A claim is a lock on one byte of a file that all share. The last process that ends by itself removes the file;
    one that was killed leaves it to the next.
    """

    def __init__(self, path: Path = CLAIMS) -> None:
        self._path = path
        self._own: set[int] = set()
        self._owner: int | None = None
        """Process id that the claims are of: a fork has none."""
        self._file: int | None = None

    def claim(self, port: int) -> bool:
        """Claim a port; False if this process has claimed it before, or another one that lives has."""
        if self._owner != os.getpid():
            self._begin()
        if port in self._own:
            return False
        while self._file is not None:
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
            except OSError:
                return False
            if os.fstat(self._file).st_nlink:
                break
            self._open()  # the process that removed the file saw no lock of ours, and the next one would see none
        self._own.add(port)
        return True

    def forget(self) -> None:
        """Let this process claim its ports once more, when it has used up all; other processes still cannot."""
        self._own.clear()

    def end(self) -> None:
        """Give the claims up, and remove the file if no other process has a claim."""
        if self._file is None or self._owner != os.getpid():
            return
        with contextlib.suppress(OSError):  # another process has claims, or the directory is gone
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(self._file).st_nlink:
                self._path.unlink()
        os.close(self._file)
        self._file = None
        self._own.clear()

    def _begin(self) -> None:
        if self._owner is None:
            atexit.register(self.end)
        self._owner = os.getpid()
        self._own.clear()
        self._file = None  # the descriptor of the process that forked is its own
        self._open()

    def _open(self) -> None:
        """Open the file, a new one if it was removed; where none can be, only this process's choices are told apart."""
        if self._file is not None:
            os.close(self._file)
        try:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError:
            self._file = None
