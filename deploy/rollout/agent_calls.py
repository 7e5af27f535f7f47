"""Calls of agents on hosts. Within a run of the tool, a call takes a process that has answered an earlier one: each new
one costs a start of Python and, over ssh, a connection, a key exchange and a login before that.
"""

import contextlib
import json
import os
import select
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

SERVE: Final = json.dumps({"action": "serve", "arguments": {}}).encode() + b"\n"
THERE: Final = b'{"there": true}\n'
"""Line with which an agent answers an empty one."""
THERE_S_MAX: Final = 10.0
"""Longest wait for that line of a process that has answered before: then its connection is taken for dead."""
END_S_MAX: Final = 5.0
READ_BYTES: Final = 1 << 16


class Answer(NamedTuple):
    """Output of a call; code and errors are those of its process, if that has ended."""

    code: int
    output: bytes
    errors: bytes


class _Lost(Exception):
    """A process that has answered before is not there any more. It was sent no request since."""


class _Agent:
    """One process that carries out requests one after the other."""

    def __init__(self, command: Sequence[str]) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `end`)
        pipe = subprocess.PIPE
        try:
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self._errors)  # noqa: S603
        except OSError:
            self._errors.close()
            raise
        self._read = b""
        self._is_new = True

    def ask(self, request: bytes, deadline_s: float | None) -> Answer:
        """Have the request carried out. Raises TimeoutError at the deadline, and _Lost, with nothing sent, when a
        process that has answered before is not there.
        """
        if not self._is_new:
            self._require_there()
        self._write((SERVE if self._is_new else b"") + request)
        self._is_new = False
        line = self._line(deadline_s)
        if line.endswith(b"\n") and line.startswith(b"{"):
            return Answer(0, line, b"")
        return self._ended(line, deadline_s)

    def _require_there(self) -> None:
        """Raise _Lost unless the process answers. What is sent over a connection that is dead for a while may arrive
        later than what is sent over the next one.
        """
        self._write(b"\n")
        try:
            line = self._line(time.monotonic() + THERE_S_MAX)
        except TimeoutError:
            raise _Lost from None
        if line != THERE:
            raise _Lost

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def end(self) -> int:
        """Return its exit code. Without its input it ends by itself; one that does not answer any more is killed."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        self._errors.close()
        try:
            return self._process.wait(END_S_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def kill(self) -> None:
        self._process.kill()
        self.end()

    def _write(self, content: bytes) -> None:
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # it has ended: what it has printed says why
                self._process.stdin.write(content)
                self._process.stdin.flush()

    def _line(self, deadline_s: float | None) -> bytes:
        """Return the next line with its end, or what there is when the process has closed its output."""
        if self._process.stdout is None:
            return b""
        handle = self._process.stdout.fileno()
        waiter = select.poll()
        waiter.register(handle, select.POLLIN)
        while b"\n" not in self._read:
            left_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
            if not waiter.poll(None if left_s is None else 1000 * left_s):
                raise TimeoutError
            if not (content := os.read(handle, READ_BYTES)):
                rest, self._read = self._read, b""
                return rest
            self._read += content
        line, _, self._read = self._read.partition(b"\n")
        return line + b"\n"

    def _ended(self, output: bytes, deadline_s: float | None) -> Answer:
        """Wait for the end of a process that gives no answer of ours, and return what it has said."""
        try:
            self._process.communicate(timeout=None if deadline_s is None else max(0.0, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise TimeoutError from None
        self._errors.seek(0)
        return Answer(self._process.returncode, output, self._errors.read())


class AgentCalls:
    """Keeps the processes that wait for the next request, by their command. Threads may call it at the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[tuple[str, ...], list[_Agent]] | None = None

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Keep processes within the block, and end them with it."""
        self._idle = {}
        try:
            yield
        finally:
            with self._lock:
                idle, self._idle = self._idle, None
            for agents in idle.values():
                for agent in agents:
                    agent.kill()  # it waits for a request, or has lost its connection

    def call(self, command: Sequence[str], request: bytes, longest_s: float | None) -> Answer:
        """Have the request carried out. Raises OSError, TimeoutError among them."""
        deadline_s = None if longest_s is None else time.monotonic() + longest_s
        while True:
            agent = self._taken(tuple(command)) or _Agent(command)
            try:
                answer = agent.ask(request, deadline_s)
            except _Lost:
                agent.kill()
                continue
            except BaseException:
                agent.kill()
                raise
            self._put_back(tuple(command), agent)
            return answer

    def _taken(self, command: tuple[str, ...]) -> _Agent | None:
        with self._lock:
            agents = (self._idle or {}).get(command)
            return agents.pop() if agents else None

    def _put_back(self, command: tuple[str, ...], agent: _Agent) -> None:
        with self._lock:
            if self._idle is not None and not agent.has_ended():
                self._idle.setdefault(command, []).append(agent)
                return
        agent.end()


def call_alone(command: Sequence[str], request: bytes, longest_s: float | None) -> Answer:
    """Have the request carried out by a process of its own: a content behind it goes to the end of the input. Raises
    OSError, TimeoutError among them.
    """
    try:
        done = subprocess.run(command, input=request, capture_output=True, timeout=longest_s)  # noqa: S603
    except subprocess.TimeoutExpired:
        raise TimeoutError from None
    return Answer(done.returncode, done.stdout, done.stderr)


AGENT_CALLS: Final = AgentCalls()
"""The calls of this process."""
