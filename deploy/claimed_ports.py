"""Keeps processes of one user from choosing the same free port before either of them listens on it."""

import fcntl
import os
import tempfile
from pathlib import Path


class ClaimedPorts:
    """Ports that this process has chosen. Its claims end with it, however it ends, and children do not have them."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path or Path(tempfile.gettempdir()) / f"keelmq-ports-{os.getuid()}"
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
        if self._file is not None:
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
            except OSError:
                return False
        self._own.add(port)
        return True

    def forget(self) -> None:
        """Let this process claim its ports once more, when it has used up all; other processes still cannot."""
        self._own.clear()

    def _begin(self) -> None:
        self._owner = os.getpid()
        self._own.clear()
        try:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError:  # without the file, only this process's own choices are told apart
            self._file = None
