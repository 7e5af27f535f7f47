"""The meaning of an acknowledgement: strace counts the syncs of each node while one sender waits for each message."""

import contextlib
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from tests.bench.peers.peer import NODES, Cluster
from tests.bench.peers.processes import in_sessions
from tests.bench.peers.rows import Row

CALLS: Final = ("fsync", "fdatasync", "sync_file_range", "msync")
ROW: Final = Row("one", 1024, 1)
ATTACH_TIMEOUT_S: Final = 20.0
POLL_S: Final = 0.02
SYNCED_SHARE: Final = 0.9
"""A node that makes at least this many syncs a message has synced each of them; fewer are syncs in the background."""


class SyncError(Exception):
    """The syncs cannot be counted here; the text says why."""


class Syncs(NamedTuple):
    """Syncs per message of each node, the most first."""

    per_message: list[float]

    @property
    def meaning(self) -> str:
        synced = sum(share >= SYNCED_SHARE for share in self.per_message)
        if synced > NODES // 2:
            return f"fsync on {'all' if synced == NODES else 'a majority'}"
        return "fsync on one node" if synced else "page cache"

    @property
    def replicated(self) -> bool:
        """Return whether a majority of the nodes has synced each acknowledged message."""
        return self.meaning.startswith("fsync on a")


def measure(cluster: Cluster, flavour: str, seconds: float) -> Syncs:
    """Count the syncs of a running cluster. Raises SyncError, and LoadError when the load fails."""
    with traced(cluster) as files:
        result = cluster.measure(ROW, flavour, 0.0, seconds).result
    if not result.all_messages:
        raise SyncError("no message was acknowledged under strace")
    counts = sorted((calls_of(file.read_text()) / result.all_messages for file in files), reverse=True)
    return Syncs(counts[:NODES])


@contextlib.contextmanager
def traced(cluster: Cluster) -> Iterator[list[Path]]:
    """Count the syncs of each server within the block; its summary is in the yielded files afterwards."""
    tracers, files, sessions = [], [], cluster.servers.numbers
    for session in sessions:
        pids = sorted(in_sessions({session}))
        file = cluster.directory / f"strace-{session}.txt"
        targets = [word for pid in pids for word in ("-p", str(pid))]
        command: list[str | Path] = ["strace", "-f", "-c", "-e", f"trace={','.join(CALLS)}", "-o", file, *targets]
        try:
            tracers.append(cluster.guard.start(command, cluster.directory / "strace.log"))
        except FileNotFoundError as error:
            raise SyncError("strace is not installed") from error
        files.append(file)
    try:
        _wait_attached(sessions)
        yield files
    finally:
        for tracer in tracers:
            tracer.send_signal(signal.SIGINT)
        for tracer in tracers:
            tracer.wait(ATTACH_TIMEOUT_S)
        cluster.guard.end({tracer.pid for tracer in tracers})


def calls_of(summary: str) -> int:
    """Return the sum of calls in the summary of `strace -c`: share, seconds, time per call, calls, errors, name."""
    total = 0
    for line in summary.splitlines():
        words = line.split()
        if words and words[-1] in CALLS:
            total += int(words[3])
    return total


def _wait_attached(sessions: set[int]) -> None:
    deadline = time.monotonic() + ATTACH_TIMEOUT_S
    while not all(_is_traced(pid) for pid in in_sessions(sessions)):
        if time.monotonic() > deadline:
            raise SyncError("strace may not trace the nodes")
        time.sleep(POLL_S)


def _is_traced(pid: int) -> bool:
    """Tell whether every thread of the process is traced; one that has ended counts as traced."""
    for task in Path(f"/proc/{pid}/task").glob("*/status"):
        with contextlib.suppress(OSError):
            if "\nTracerPid:\t0\n" in task.read_text():
                return False
    return True
