"""Starts and ends one broker process, for local clusters, demos, benchmarks and tests."""

import contextlib
import ctypes
import http.client
import os
import signal
import ssl
import subprocess
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO, ClassVar, Final, Protocol

HOST: Final = "127.0.0.1"
PROBE_TIMEOUT_S: Final = 2.0
LOG_TAIL_LINES: Final = 40
_REASON_BYTES_MAX: Final = 1_000
_PR_SET_PDEATHSIG: Final = 1


class RunningProcess(Protocol):
    """A process as `subprocess.Popen` shows it."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int, /) -> None: ...


class BrokerProcess:
    """Owns one broker process. Addresses, data and log file survive its end; the next `launch` uses them again."""

    DIES_WITH_PARENT: ClassVar[bool] = True
    """Tells whether the kernel kills the process when this one is gone, however it ended."""
    OWN_SESSION: ClassVar[bool] = False
    """Tells whether Ctrl-C in the terminal spares the process."""
    EXIT_TIMEOUT_S: ClassVar[float | None] = None
    """Longest wait in seconds for the end of the process; None waits without a limit."""

    def __init__(
        self, node_id: int, http_port: int, peer_port: int, data_dir: Path, log_path: Path, host: str = HOST
    ) -> None:
        self.node_id = node_id
        self.host = host
        self.http_port = http_port
        self.peer_port = peer_port
        self.data_dir = data_dir
        self.log_path = log_path
        self.process: RunningProcess | None = None
        self.tls: ssl.SSLContext | None = None
        """Context for calls of its HTTP API; None for a node that serves it without TLS."""

    @property
    def url(self) -> str:
        return f"{'http' if self.tls is None else 'https'}://{self.host}:{self.http_port}"

    @property
    def peer_option(self) -> str:
        """Value of `--peer` that names this node to the nodes of its cluster."""
        return f"{self.node_id}={self.host}:{self.peer_port}={self.url}"

    @property
    def pid(self) -> int:
        """Process id of the last launch."""
        assert self.process is not None
        return self.process.pid

    def launch(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None, directory: Path | None = None
    ) -> None:
        """Start the process and return at once; its output is appended to the log file.

        `environment` is added to this process's own. `directory` is the working directory, this process's by default.
        """
        assert not self.running(), f"node {self.node_id} runs already"
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            self.process = self.spawn(command, {**os.environ, **(environment or {})}, directory, log)

    def spawn(
        self, command: Sequence[str], environment: Mapping[str, str], directory: Path | None, log: BinaryIO
    ) -> RunningProcess:
        """Start the command with exactly this environment; its output is appended to `log`."""
        return subprocess.Popen(  # noqa: S603 - the broker of this checkout
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            cwd=directory,
            start_new_session=self.OWN_SESSION,
            preexec_fn=partial(die_with_parent, os.getpid()) if self.DIES_WITH_PARENT else None,
        )

    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def exit_code(self) -> int | None:
        """Return the exit code: None while it runs or before a launch, minus the signal if one killed it."""
        return self.process.poll() if self.process is not None else None

    def wait_exit(self) -> int:
        """Return the exit code of the last launch. Raises subprocess.TimeoutExpired after EXIT_TIMEOUT_S."""
        assert self.process is not None
        return self.process.wait(self.EXIT_TIMEOUT_S)

    def send_signal(self, number: int) -> None:
        """Send a signal; does nothing when the process does not run."""
        if self.process is not None and self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)

    def kill(self) -> None:
        """Send SIGKILL, and wait until the process is gone."""
        self.send_signal(signal.SIGKILL)
        if self.process is not None:
            self.wait_exit()

    def connection(self, timeout_s: float) -> http.client.HTTPConnection:
        """Return a connection to its HTTP API, not opened yet; each step on it may take `timeout_s`."""
        if self.tls is None:
            return http.client.HTTPConnection(self.host, self.http_port, timeout=timeout_s)
        return http.client.HTTPSConnection(self.host, self.http_port, timeout=timeout_s, context=self.tls)

    def not_ready(self) -> str | None:
        """Return why the node is not ready, or None when it is."""
        connection = self.connection(PROBE_TIMEOUT_S)
        try:
            connection.request("GET", "/readyz")
            response = connection.getresponse()
            reason = response.read(_REASON_BYTES_MAX).decode(errors="replace")
        except (OSError, http.client.HTTPException) as error:
            return str(error) or repr(error)
        finally:
            connection.close()
        return None if response.status == http.HTTPStatus.OK else reason or f"status {response.status}"

    def output(self) -> str:
        """Return everything that the node printed, over all its launches."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def log_tail(self, lines: int = LOG_TAIL_LINES) -> str:
        return "\n".join(self.output().splitlines()[-lines:])


def die_with_parent(parent: int) -> None:
    """Make the kernel kill this process when `parent` is gone; runs in its child between fork and exec."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was gone before the kernel knew
        os.kill(os.getpid(), signal.SIGKILL)
