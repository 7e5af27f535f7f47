"""One broker process of the chaos cluster. Nemeses start, kill, pause, resume and stop it."""

import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Final

from deploy.broker_process import BrokerProcess
from tests.chaos.skewed_node import CLOCK_VARIABLE

REPOSITORY: Final = Path(__file__).parents[2]
STOPPED_CLEANLY: Final = 0
SERVES: Final = b"keelmqd "  # beginning of the line that a node prints when it serves


class ChaosNode(BrokerProcess):
    """Owns one broker process; addresses and data survive restarts. `prefix` runs it in the right network namespace.

    `exits_allowed` are the exit codes that an injected fault explains; a start clears them.
    """

    OWN_SESSION: ClassVar[bool] = True  # Ctrl-C is for the run, which stops its nodes itself

    def __init__(
        self, node_id: int, host: str, http_port: int, peer_port: int, directory: Path, prefix: Sequence[str]
    ) -> None:
        data_dir, log_path = directory / "data" / f"node{node_id}", directory / f"node{node_id}.log"
        super().__init__(node_id, http_port, peer_port, data_dir, log_path, host)
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

    def start(self) -> None:
        """Start the process; no-op while it runs. It is killed when this process dies, however it dies."""
        if self.running():
            return
        self.exits_allowed.clear()
        self.paused = False
        self.starts += 1
        command = [sys.executable, "-m", self.module, "run", *self.arguments]
        self._log_start = self.log_path.stat().st_size if self.log_path.exists() else 0
        self.launch([*self._prefix, *command], self.environment, REPOSITORY)

    def kill(self) -> None:
        """Kill the process as kill -9 does, and wait until it is gone."""
        self.exits_allowed.add(-signal.SIGKILL)
        super().kill()

    def terminate(self) -> None:
        """Ask for a graceful stop; `exit_code` tells when the stop is over."""
        self.exits_allowed.add(STOPPED_CLEANLY)
        if not self._serves():  # it has no signal handler yet, and nothing to finish
            self.exits_allowed.add(-signal.SIGTERM)
        self.resume()
        self.send_signal(signal.SIGTERM)

    def pause(self) -> None:
        self.paused = True
        self.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.paused = False
        self.send_signal(signal.SIGCONT)

    def _serves(self) -> bool:
        """Return whether the process of the last start has printed that it serves."""
        with self.log_path.open("rb") as log:
            log.seek(self._log_start)
            return any(line.startswith(SERVES) for line in log)


def die_with_parent() -> list[str]:
    """Return a command prefix that makes the kernel kill the process when this one is gone."""
    return ["setpriv", "--pdeathsig", "KILL"]
