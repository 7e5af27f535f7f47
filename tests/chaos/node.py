"""One broker process of the chaos cluster: started, killed, paused, resumed and stopped by nemeses."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.chaos.skewed_node import CLOCK_VARIABLE

REPOSITORY: Final = Path(__file__).parents[2]
STOPPED_CLEANLY: Final = 0
SERVES: Final = b"keelmqd "  # beginning of the line that a node prints when it serves
LOG_TAIL_LINES: Final = 40


class ChaosNode:
    """Owns one broker process; addresses and data survive restarts. `prefix` runs it in the right network namespace.

    `exits_allowed` are the exit codes that an injected fault explains; a start clears them.
    """

    def __init__(
        self, node_id: int, host: str, http_port: int, peer_port: int, directory: Path, prefix: Sequence[str]
    ) -> None:
        self.node_id = node_id
        self.host = host
        self.http_port = http_port
        self.peer_port = peer_port
        self.data_dir = directory / "data" / f"node{node_id}"
        self.log_path = directory / f"node{node_id}.log"
        self.clock_file = directory / f"node{node_id}.clock"
        self.module = "cluster.main"
        self.arguments: list[str] = []
        self.environment = {CLOCK_VARIABLE: str(self.clock_file)}
        self.exits_allowed: set[int] = set()
        self.paused = False
        self.starts = 0
        self.disks_lost = 0
        self._prefix = list(prefix)
        self._log_start = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.http_port}"

    @property
    def peer(self) -> str:
        return f"{self.node_id}={self.host}:{self.peer_port}={self.url}"

    @property
    def pid(self) -> int:
        """Process id of the last start."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start the process; no-op while it runs. It is killed when this process dies, however it dies."""
        if self.running():
            return
        self.exits_allowed.clear()
        self.paused = False
        self.starts += 1
        command = [sys.executable, "-m", self.module, "run", *self.arguments]
        with self.log_path.open("ab") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                [*die_with_parent(), *self._prefix, *command],
                cwd=REPOSITORY,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.environment},
                start_new_session=True,  # Ctrl-C is for the run, which stops its nodes itself
            )

    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def exit_code(self) -> int | None:
        """Return the exit code: None while it runs or before a start, minus the signal if one killed it."""
        return self._process.poll() if self._process is not None else None

    def kill(self) -> None:
        """kill -9, and wait until the process is gone."""
        self.exits_allowed.add(-signal.SIGKILL)
        self._signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    def terminate(self) -> None:
        """Ask for a graceful stop; `exit_code` tells when the stop is over."""
        self.exits_allowed.add(STOPPED_CLEANLY)
        if not self._serves():  # it has no signal handler yet, and nothing to finish
            self.exits_allowed.add(-signal.SIGTERM)
        self.resume()
        self._signal(signal.SIGTERM)

    def pause(self) -> None:
        self.paused = True
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.paused = False
        self._signal(signal.SIGCONT)

    def log_tail(self) -> str:
        if not self.log_path.exists():
            return ""
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:])

    def _serves(self) -> bool:
        """Return whether the process of the last start has printed that it serves."""
        with self.log_path.open("rb") as log:
            log.seek(self._log_start)
            return any(line.startswith(SERVES) for line in log)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)


def die_with_parent() -> list[str]:
    """Return a command prefix that makes the kernel kill the process when this one is gone."""
    return ["setpriv", "--pdeathsig", "KILL"]
