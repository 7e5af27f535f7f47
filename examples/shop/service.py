"""A service of the shop as a process with a log; it may die on purpose and be restarted."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

STOP_TIMEOUT_S: Final = 10.0
LOG_TAIL_LINES: Final = 15


class Service:
    def __init__(self, module: str, arguments: Sequence[str], log_file: Path) -> None:
        self.log_file = log_file
        self._command = [sys.executable, "-m", module, *arguments]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, crash_at: str = "") -> None:
        """Start the process; with `crash_at` it kills itself at that point (crash_point.py)."""
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=os.environ | {"SHOP_CRASH_AT": crash_at},
            )

    def ended(self) -> int | None:
        """Return the exit status, negative for a signal; None while the process runs or before it was started."""
        return None if self._process is None else self._process.poll()

    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self) -> int:
        """Send SIGTERM, and SIGKILL after STOP_TIMEOUT_S; return the exit status."""
        if self._process is None:
            return 0
        if self.running():
            self._process.terminate()
        try:
            return self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            return self._process.wait()

    def kill(self) -> None:
        """Send SIGKILL to the process and its children, and wait until it is gone."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                if self.running():
                    os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def log_tail(self) -> str:
        lines = self.log_file.read_text(errors="replace").splitlines() if self.log_file.exists() else []
        return "\n".join(f"  {line}" for line in lines[-LOG_TAIL_LINES:]) or "  (nothing)"
