"""One run of the tool at a time for each cluster, whichever machine it is on: the hosts know which run works on them.

Two runs that each stop another node at the same moment would find the others healthy, both of them.
"""

import contextlib
import json
import subprocess
import threading
from collections.abc import Iterator, Sequence
from typing import Final

from deploy.rollout.side_by_side import AT_ONCE
from deploy.rollout.transport import Host, HostError

SIGN_EVERY_S: Final = 10.0
SILENCE_S: Final = 60.0
"""Time without a sign of life after which a run is taken as gone, with its machine or the network."""
END_S_MAX: Final = 5.0


@contextlib.contextmanager
def held(hosts: Sequence[Host], who: str, *, claims: bool = False, at_once: int = AT_ONCE) -> Iterator[None]:
    """Keep other runs out of the hosts within the block, except those that are not reached or, unless this run `claims`
    them, have no node yet. Raises HostError when one works there.
    """
    over = threading.Event()
    begun: list[subprocess.Popen[bytes]] = []
    signs = threading.Thread(target=_show_life, args=(begun, over), daemon=True)
    try:
        # One after the other until one is held: of two runs that begin, the one that has it goes on. Then the others,
        # `at_once` at a time: sshd drops connections when many are not logged in yet, and nodes may share a host.
        left, is_held = list(hosts), False
        while left:
            count = at_once if is_held else 1
            some, left = left[:count], left[count:]
            processes = []
            for host in some:
                processes.append(host.begin_hold(who, SILENCE_S, claims=claims))
                begun.append(processes[-1])
            for host, process in zip(some, processes, strict=True):
                is_held |= _require_held(host, process)
        signs.start()
        yield
    finally:
        over.set()
        if signs.is_alive():
            signs.join()
        for process in begun:
            _end(process)


def _require_held(host: Host, process: subprocess.Popen[bytes]) -> bool:
    """Return whether the host is held now. Raises HostError when another run works there."""
    with host.awaited("hold", None):
        line = b"" if process.stdout is None else process.stdout.readline()
    try:
        answer = json.loads(line or b"{}")
    except ValueError:
        return False  # what the host says is no answer of ours: the verb names that when it calls it
    if (busy := answer.get("busy")) is not None:
        raise HostError(host.node, f"another keelmq-deploy works on this cluster: {busy}; wait for its end")
    return bool(answer.get("held"))


def _show_life(processes: Sequence[subprocess.Popen[bytes]], over: threading.Event) -> None:
    while not over.wait(SIGN_EVERY_S):
        for each in processes:
            with contextlib.suppress(OSError, ValueError):  # it has ended
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
