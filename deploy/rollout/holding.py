"""One run of the tool at a time for each cluster, whichever machine it is on: the hosts know which run works on them.

Two runs that each stop another node at the same moment would find the others healthy, both of them. So a host is
changed by the run that holds it alone: one that was silent for too long (its network, its machine, Ctrl-Z) has lost its
hosts, which refuse its calls from then on, whether another run has begun or not.
"""

import contextlib
import json
import subprocess
import threading
from collections.abc import Iterator, Sequence
from typing import Final

from deploy.rollout.side_by_side import AT_ONCE, side_by_side
from deploy.rollout.transport import RUN, Host, HostError

SIGN_EVERY_S: Final = 10.0
SILENCE_S: Final = 60.0
"""Time without a sign of life after which a run is taken as gone, with its machine or the network."""
END_S_MAX: Final = 5.0


@contextlib.contextmanager
def held(hosts: Sequence[Host], who: str, *, claims: bool = False, at_once: int = AT_ONCE) -> Iterator[None]:
    """Keep other runs out of the hosts within the block, except those that are not reached or, unless this run `claims`
    them, have no node yet. Raises HostError when one works there.

    Calls within the block that change a host raise HostError once a host is not held any more.
    """
    over = threading.Event()
    with RUN.named() as name:
        holds = _Holds(who, name, claims)
        signs = threading.Thread(target=_show_life, args=(holds.begun, over), daemon=True)
        signs.start()  # to hold all of them may take longer than the first one waits for a sign
        try:
            silent = holds.hold(hosts, at_once)
            # A host that refuses one connection (MaxStartups of sshd) and takes the next is there, and has to be held.
            there = side_by_side(_answers, silent, at_once)
            for host in holds.hold([host for host, answers in zip(silent, there, strict=True) if answers], 1):
                raise HostError(host.node, "it answers, and cannot be held for this run; run the same command again")
            yield
        finally:
            over.set()
            signs.join()
            for process in holds.begun:
                _end(process)


class _Holds:
    """The processes that keep other runs out of hosts."""

    def __init__(self, who: str, name: str, claims: bool) -> None:
        self._who = who
        self._name = name
        self._claims = claims
        self._is_held = False
        self.begun: list[subprocess.Popen[bytes]] = []

    def hold(self, hosts: Sequence[Host], at_once: int) -> list[Host]:
        """Hold the hosts, and return those that said nothing. Raises HostError when another run works on one."""
        # One after the other until one is held: of two runs that begin, the one that has it goes on. Then the others,
        # `at_once` at a time: sshd drops connections when many are not logged in yet, and nodes may share a host.
        left, silent = list(hosts), []
        while left:
            count = at_once if self._is_held else 1
            some, left = left[:count], left[count:]
            processes = []
            for host in some:
                processes.append(host.begin_hold(self._who, SILENCE_S, claims=self._claims, name=self._name))
                self.begun.append(processes[-1])
            for host, process in zip(some, processes, strict=True):
                line = _first_line(host, process)
                if not line:
                    silent.append(host)
                elif _is_held(host, line):
                    RUN.holds(host.node, process)
                    self._is_held = True
        return silent


def _answers(host: Host) -> bool:
    try:
        host.facts()
    except HostError:
        return False
    return True


def _first_line(host: Host, process: subprocess.Popen[bytes]) -> bytes:
    with host.awaited("hold", None):
        return b"" if process.stdout is None else process.stdout.readline()


def _is_held(host: Host, line: bytes) -> bool:
    """Return whether the host says that it is held now. Raises HostError when another run works there."""
    try:
        answer = json.loads(line)
    except ValueError:
        return False  # what the host says is no answer of ours: the verb names that when it calls it
    if (busy := answer.get("busy")) is not None:
        raise HostError(host.node, f"another keelmq-deploy works on this cluster: {busy}; wait for its end")
    return bool(answer.get("held"))


def _show_life(processes: Sequence[subprocess.Popen[bytes]], over: threading.Event) -> None:
    while not over.wait(SIGN_EVERY_S):
        for each in processes:
            with contextlib.suppress(OSError, ValueError):  # it has ended: the next call that changes a host says so
                if each.stdin is not None:
                    each.stdin.write(b"\n")
                    each.stdin.flush()


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(OSError):
        if process.stdin is not None:
            process.stdin.close()
    try:
        process.wait(END_S_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()
