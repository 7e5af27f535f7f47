"""`keelmqd supervise`: runs a node where there is no systemd, by the rules of deploy/systemd/keelmqd@.service.

The node is told of it as of systemd (NOTIFY_SOCKET), so a loop that stands ends it, and it is started anew.
"""

import contextlib
import os
import secrets
import selectors
import signal
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Final

from cluster.process.exit_codes import ExitCode
from cluster.service_manager.rotated_file import RotatedFile

FINAL_CODES: Final = frozenset(
    (ExitCode.STOPPED, ExitCode.BAD_CONFIG, ExitCode.DATA_DIR_UNUSABLE, ExitCode.LOG_CORRUPT, ExitCode.WRONG_VERSION)
)
"""Exit codes after which another start cannot help."""
FINAL_SIGNALS: Final = frozenset((signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE))
"""Signals that mean a wanted end."""
RESTART_PAUSE_S: Final = 2.0
STARTS_MAX: Final = 10
STARTS_WITHIN_S: Final = 600.0
"""Time in which STARTS_MAX starts are made at most."""
START_S_MAX: Final = 600.0
"""Longest time until the node is ready, unless it asks for more."""
STOP_S_MAX: Final = 60.0
"""Longest time between SIGTERM, or SIGABRT, and the end; then it is killed."""
WATCHDOG_S: Final = 30.0
MESSAGE_BYTES_MAX: Final = 4096
BLOCK_BYTES: Final = 1 << 16
_CREDENTIALS: Final = struct.Struct("3i")


class Supervisor:
    """Runs one node after the other until one ends as it should, or SIGTERM or SIGINT comes, which it passes on, as
    SIGHUP. Use in the main thread.
    """

    def __init__(self, command: Sequence[str], output: RotatedFile | None = None) -> None:
        """`command` runs the node. Without `output` it writes where this process writes."""
        self._command = list(command)
        self._output = output
        self._starts: deque[float] = deque(maxlen=STARTS_MAX)
        self._process: subprocess.Popen[bytes] | None = None
        self._is_stopping = self._is_ready = self._has_spoken = False
        self._watchdog_s = WATCHDOG_S
        self._deadline = 0.0
        self._last_signal: int = signal.SIGABRT
        """What comes when the deadline has passed."""

    def run(self) -> int:
        """Return the exit code of the last node, 128 and the signal that ended it."""
        name = f"keelmq-supervise-{os.getpid()}-{secrets.token_hex(8)}"
        with self._signals() as wakeup, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(f"\0{name}")
            manager.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            manager.setblocking(False)
            while True:
                self._starts.append(time.monotonic())
                code = self._run_once(name, manager, wakeup)
                shown = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
                code = 128 - code if code < 0 else code
                if self._is_stopping or self._is_final(code):
                    self._say(f"the node has ended with {shown}: it is not started again")
                    return code
                if self._has_started_too_often():
                    often = f"{STARTS_MAX} starts within {STARTS_WITHIN_S:.0f} s"
                    self._say(f"the node has ended with {shown}, after {often}: it is not started again")
                    return code
                self._say(f"the node has ended with {shown}: it is started again in {RESTART_PAUSE_S:.0f} s")
                if self._is_stopped_in_pause(wakeup):
                    return code

    def _run_once(self, name: str, manager: socket.socket, wakeup: socket.socket) -> int:
        pipe = None if self._output is None else subprocess.PIPE
        environment = {**os.environ, "NOTIFY_SOCKET": f"@{name}", "WATCHDOG_USEC": str(int(WATCHDOG_S * 1_000_000))}
        environment.pop("WATCHDOG_PID", None)
        self._is_ready = self._has_spoken = False
        self._watchdog_s, self._last_signal = WATCHDOG_S, signal.SIGABRT
        self._deadline = time.monotonic() + START_S_MAX
        self._process = process = subprocess.Popen(  # noqa: S603
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=pipe,
            stderr=None if pipe is None else subprocess.STDOUT,
            bufsize=0,
            env=environment,
            process_group=0,  # Ctrl-C in a terminal comes by way of this process
        )
        self._say(f"the node is process {process.pid}")
        if self._is_stopping:  # the signal came before there was a process
            self._end_node()
        if process.stdout is not None:
            os.set_blocking(process.stdout.fileno(), False)
        ended = os.pidfd_open(process.pid)
        try:
            with selectors.DefaultSelector() as selector:
                acts: dict[int, Callable[[], object]] = {
                    manager.fileno(): lambda: self._hear(manager),
                    wakeup.fileno(): lambda: wakeup.recv(MESSAGE_BYTES_MAX),
                }
                if process.stdout is not None:
                    acts[process.stdout.fileno()] = lambda: self._copy(selector, process)
                for handle in (ended, *acts):
                    selector.register(handle, selectors.EVENT_READ)
                while not self._step(selector, acts, ended):
                    pass
            code = process.wait()
            while process.stdout is not None and (block := process.stdout.read(BLOCK_BYTES)):
                self._write(block)
            return code
        finally:
            os.close(ended)
            self._process = None
            if process.stdout is not None:
                process.stdout.close()

    def _step(self, selector: selectors.BaseSelector, acts: dict[int, Callable[[], object]], ended: int) -> bool:
        """Do what is due, and return whether the node has ended."""
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            self._end_late_node()
            left_s = STOP_S_MAX
        for key, _ in selector.select(left_s):
            if key.fd == ended:
                return True
            acts[key.fd]()
        return False

    def _end_late_node(self) -> None:
        late = "not become ready in time" if not self._is_ready else "given no sign of life in time"
        if self._last_signal == signal.SIGKILL:
            late = "not ended in time"
        self._say(f"the node has {late}: {signal.Signals(self._last_signal).name}")
        self._send(self._last_signal)
        self._last_signal, self._deadline = signal.SIGKILL, time.monotonic() + STOP_S_MAX

    def _end_node(self) -> None:
        self._last_signal, self._deadline = signal.SIGKILL, time.monotonic() + STOP_S_MAX
        self._send(signal.SIGTERM)

    def _send(self, number: int) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, number)

    # --- what the node says ----------------------------------------------------------------------------------------

    def _hear(self, manager: socket.socket) -> None:
        """Take over one message of the node. Those of other processes count nowhere: anybody may send one."""
        try:
            content, ancillary, _, _ = manager.recvmsg(MESSAGE_BYTES_MAX, socket.CMSG_SPACE(_CREDENTIALS.size))
        except BlockingIOError:
            return
        senders = [
            _CREDENTIALS.unpack(data)[0]
            for level, kind, data in ancillary
            if (level, kind, len(data)) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS, _CREDENTIALS.size)
        ]
        if self._process is None or senders != [self._process.pid] or self._last_signal == signal.SIGKILL:
            return
        self._has_spoken, now = True, time.monotonic()
        for line in content.decode(errors="replace").splitlines():
            key, _, value = line.partition("=")
            if key == "READY":
                self._is_ready, self._deadline = True, now + self._watchdog_s
            elif key == "WATCHDOG_USEC" and value.isdecimal():
                self._watchdog_s = int(value) / 1_000_000
            elif key == "WATCHDOG" and self._is_ready:
                self._deadline = now + self._watchdog_s
            elif key == "EXTEND_TIMEOUT_USEC" and value.isdecimal() and not self._is_ready:
                self._deadline = max(self._deadline, now + int(value) / 1_000_000)
            elif key == "STOPPING":
                self._last_signal, self._deadline = signal.SIGKILL, now + STOP_S_MAX

    def _copy(self, selector: selectors.BaseSelector, process: subprocess.Popen[bytes]) -> None:
        if process.stdout is None:
            return
        block = process.stdout.read(BLOCK_BYTES)
        if block:
            self._write(block)
        elif block is not None:  # the node has closed it
            selector.unregister(process.stdout)

    def _write(self, block: bytes) -> None:
        if self._output is not None:
            self._output.write(block)

    def _say(self, text: str) -> None:
        line = f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} keelmqd supervise: {text}\n"
        if self._output is not None:
            self._output.write(line.encode())
            return
        with contextlib.suppress(OSError):
            sys.stderr.write(line)
            sys.stderr.flush()

    # --- rules -----------------------------------------------------------------------------------------------------

    def _is_final(self, code: int) -> bool:
        return code in FINAL_CODES or code in [128 + number for number in FINAL_SIGNALS]

    def _has_started_too_often(self) -> bool:
        return len(self._starts) == STARTS_MAX and time.monotonic() - self._starts[0] < STARTS_WITHIN_S

    def _is_stopped_in_pause(self, wakeup: socket.socket) -> bool:
        until = time.monotonic() + RESTART_PAUSE_S
        with selectors.DefaultSelector() as selector:
            selector.register(wakeup, selectors.EVENT_READ)
            while not self._is_stopping and (left_s := until - time.monotonic()) > 0:
                if selector.select(left_s):
                    wakeup.recv(MESSAGE_BYTES_MAX)
        return self._is_stopping

    @contextlib.contextmanager
    def _signals(self) -> Iterator[socket.socket]:
        """Have signals handled within the block; each also makes the socket readable."""

        def stop(_number: int, _frame: FrameType | None) -> None:
            self._is_stopping = True
            self._end_node()

        def hang_up(number: int, _frame: FrameType | None) -> None:
            if self._has_spoken:  # before, it would end the node
                self._send(number)

        wakeup, written = socket.socketpair()
        wakeup.setblocking(False)
        written.setblocking(False)
        handlers = {signal.SIGTERM: stop, signal.SIGINT: stop, signal.SIGHUP: hang_up}
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        old = signal.set_wakeup_fd(written.fileno())
        try:
            yield wakeup
        finally:
            signal.set_wakeup_fd(old)
            for number, handler in before.items():
                signal.signal(number, handler)
            wakeup.close()
            written.close()
