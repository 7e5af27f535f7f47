"""Processes of the peers: their output goes to files, they are stopped outside their turn, and they end with this one.

Each process has a session of its own, so that everything it starts is found by the session's number. The guard, a
process beside this one, kills all sessions when this process is gone, however it ended.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Self

from deploy.broker_process import die_with_parent

ROOT: Final = Path(__file__).parents[3]
TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
# Fields of /proc/PID/stat after the name of the program, counted from the state (proc(5)).
_SESSION, _USER, _SYSTEM, _CHILDREN_USER, _CHILDREN_SYSTEM = 3, 11, 12, 13, 14
END_TIMEOUT_S: Final = 10.0


class ProcessStat(NamedTuple):
    session: int
    state: str
    cpu_s: float
    """Processor time of the process and of those of its children that have ended."""


def read_stat(pid: int) -> ProcessStat | None:
    """Return what the kernel says of the process; None when it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    ticks = sum(int(fields[n]) for n in (_USER, _SYSTEM, _CHILDREN_USER, _CHILDREN_SYSTEM))
    return ProcessStat(int(fields[_SESSION]), fields[0], ticks / TICKS_PER_S)


def in_sessions(sessions: set[int]) -> dict[int, ProcessStat]:
    """Return the processes of the sessions by id, without those that have ended and wait for their parent."""
    found = {}
    for entry in os.listdir("/proc"):
        stat = read_stat(int(entry)) if entry.isdigit() else None
        if stat is not None and stat.session in sessions and stat.state != "Z":
            found[int(entry)] = stat
    return found


def kill_sessions(sessions: set[int]) -> None:
    """Send SIGKILL to every process of the sessions until there is none."""
    while alive := in_sessions(sessions):
        for pid in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class Guard:
    """Kills the sessions it was told of when this process is gone. Use as a context manager; closing it kills too."""

    def __init__(self) -> None:
        self._sessions: set[int] = set()
        self._children: dict[int, subprocess.Popen[str]] = {}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.peers.guard"], cwd=ROOT, stdin=subprocess.PIPE, start_new_session=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end(self._sessions)
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait(END_TIMEOUT_S)

    @property
    def pid(self) -> int:
        return self._process.pid

    def adopt(self, session: int) -> None:
        """Kill that session with this process."""
        self._sessions.add(session)
        self._tell(f"+{session}\n")

    def end(self, sessions: set[int]) -> None:
        """Kill the sessions now."""
        ended = set(sessions)
        kill_sessions(ended)
        self._sessions -= ended
        for session in ended:
            self._tell(f"-{session}\n")
            child = self._children.pop(session, None)
            if child is not None:
                child.wait(END_TIMEOUT_S)
                for pipe in (child.stdin, child.stdout):
                    with contextlib.suppress(BrokenPipeError):
                        if pipe is not None:
                            pipe.close()

    def start(
        self,
        command: Sequence[str | Path],
        log: Path,
        environment: Mapping[str, str] | None = None,
        *,
        directory: Path | None = None,
        piped: bool = False,
    ) -> "subprocess.Popen[str]":
        """Start a process whose errors, and without `piped` its output, are appended to `log`."""
        log.parent.mkdir(parents=True, exist_ok=True)
        parent = os.getpid()
        with log.open("ab") as stream:
            process = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.PIPE if piped else subprocess.DEVNULL,
                stdout=subprocess.PIPE if piped else stream,
                stderr=stream,
                text=True,
                env={**os.environ, **(environment or {})},
                cwd=directory,
                start_new_session=True,
                preexec_fn=lambda: die_with_parent(parent),
            )
        self._children[process.pid] = process
        self.adopt(process.pid)
        return process

    def _tell(self, line: str) -> None:
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(line.encode())
                self._process.stdin.flush()


class Sessions:
    """The processes of one cluster or client, together."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self.numbers: set[int] = set()

    def add(self, session: int) -> None:
        self.numbers.add(session)

    def signal(self, number: int) -> None:
        for pid in in_sessions(self.numbers):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def pause(self) -> None:
        """Stop all processes: they take no processor time until `resume`."""
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    def cpu_s(self) -> float:
        """Processor time so far, in seconds, of all processes that run."""
        return sum(stat.cpu_s for stat in in_sessions(self.numbers).values())

    def end(self) -> None:
        self._guard.end(self.numbers)
        self.numbers.clear()
