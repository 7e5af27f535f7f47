"""Disk faults: no space left, a disk that syncs slowly, a sync that fails, a lost disk.

A node whose fdatasync failed must end with FATAL, because the kernel may have dropped the pages.
"""

import asyncio
import contextlib
import os
import random
import shutil
import signal
from pathlib import Path
from typing import Final

from cluster.process.exit_codes import ExitCode
from store.log.disk import PosixDisk
from store.log.hard_state import HardState
from tests.chaos.cluster import DISK_BYTES, EXITS_WHEN_FULL, ChaosCluster, syncs_by_thread
from tests.chaos.nemeses.fault import FaultKind, follower_or_any, joined, leader_or_any
from tests.chaos.node import die_with_parent
from tests.chaos.violations import Kind

SYNC_CALLS: Final = "fdatasync,fsync"
BACKGROUND_SYNC_CALL: Final = "io_submit"
ROOM_BYTES: Final = (0, 1 << 12, 1 << 16, 1 << 18)
RESIZE_ATTEMPTS: Final = 20
DELAY_MS: Final = (10, 300)
ATTACH_TIMEOUT_S: Final = 5.0
STOP_AFTER_ERROR_S: Final = 30.0
POLL_S: Final = 0.02


class Full:
    """The file systems of some nodes shrink to their content and a little more; healed by giving the room back."""

    def __init__(self, cluster: ChaosCluster, rng: random.Random) -> None:
        self._cluster, self._rng = cluster, rng
        self._chosen: list[int] = []

    async def start(self) -> str:
        ids = self._cluster.ids()
        self._chosen = sorted(self._rng.sample(ids, self._rng.randint(1, len(ids))))
        room = self._rng.choice(ROOM_BYTES)
        for node_id in self._chosen:
            # The index cannot be flushed without space: the node may end, and may not start again before the heal.
            self._cluster.full.add(node_id)
            self._cluster.allow_exit(node_id, EXITS_WHEN_FULL)
            await _leave_room(self._cluster.nodes[node_id].data_dir, room)
        return f"the disks of {joined(self._chosen)} have {room >> 10} KiB left"

    async def heal(self) -> str:
        used_up = 0
        for node_id in self._chosen:
            path = self._cluster.nodes[node_id].data_dir
            used_up += os.statvfs(path).f_bavail == 0
            await _resize(path, DISK_BYTES)
        ended = [node_id for node_id in self._chosen if not self._cluster.nodes[node_id].running()]
        if ended:
            self._cluster.start(ended)
        self._cluster.full.difference_update(self._chosen)
        self._cluster.may_end_late = {each: self._cluster.nodes[each].starts for each in self._chosen}
        restarted = f", {joined(ended)} started" if ended else ""
        return f"the disks of {joined(self._chosen)} have space ({used_up} had none left){restarted}"


class _Injection:
    """Owns strace attached to one node, which changes the effect of its calls to sync a file."""

    def __init__(self, cluster: ChaosCluster, node_id: int, calls: str, effect: str) -> None:
        self._pid = cluster.nodes[node_id].pid
        self._calls, self._effect = calls, effect
        self._trace = cluster.directory / f"node{node_id}.strace"
        self._process: asyncio.subprocess.Process | None = None

    async def attach(self) -> bool:
        """Attach strace; returns False when the process is gone before the first call could be changed."""
        calls = self._calls
        command = [*die_with_parent(), "strace", "-q", "-f", "-p", str(self._pid), "-o", str(self._trace)]
        command += ["-e", f"trace={calls}", "-e", f"inject={calls}:{self._effect}"]
        quiet = asyncio.subprocess.DEVNULL
        self._process = await asyncio.create_subprocess_exec(*command, stdin=quiet, stdout=quiet, stderr=quiet)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ATTACH_TIMEOUT_S):
                while self._process.returncode is None:
                    if _is_traced(self._pid):
                        return True
                    await asyncio.sleep(POLL_S)
        return False

    async def detach(self) -> int:
        """Detach, so that the process goes on undisturbed; returns how many calls were changed."""
        if self._process is not None:
            if self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    self._process.send_signal(signal.SIGTERM)
            await self._process.wait()
        if not self._trace.exists():
            return 0
        lines = self._trace.read_text(errors="replace").splitlines()
        return sum("(INJECTED)" in line or "(DELAYED)" in line for line in lines)


class SlowSync:
    """Each fdatasync of a node takes longer by a fixed time. The node syncs by a thread: strace would hold up the loop
    of a node that has the kernel sync.
    """

    def __init__(self, cluster: ChaosCluster, rng: random.Random) -> None:
        self._cluster, self._rng = cluster, rng
        self._injection: _Injection | None = None

    async def start(self) -> str:
        choose = leader_or_any if self._rng.random() < 0.6 else follower_or_any
        node_id = await choose(self._cluster, self._rng)
        if not syncs_by_thread(node_id):
            node_id = self._rng.choice([each for each in self._cluster.ids() if syncs_by_thread(each)])
        delay_ms = self._rng.randint(*DELAY_MS)
        self._injection = _Injection(self._cluster, node_id, SYNC_CALLS, f"delay_enter={delay_ms * 1000}")
        attached = await self._injection.attach()
        if not attached:
            return f"node {node_id} is down: its disk cannot be slow"
        return f"each sync of node {node_id} takes {delay_ms} ms longer"

    async def heal(self) -> str:
        slowed = await self._injection.detach() if self._injection is not None else 0
        return f"the disk is fast again, {slowed} syncs were slow"


class SyncError:
    """The next sync of a node fails with EIO: the node must stop with FATAL and not acknowledge what it wrote."""

    def __init__(self, cluster: ChaosCluster, rng: random.Random) -> None:
        self._cluster, self._rng = cluster, rng
        self._injection: _Injection | None = None
        self._node = self._pid = 0

    async def start(self) -> str:
        choose = leader_or_any if self._rng.random() < 0.6 else follower_or_any
        self._node = await choose(self._cluster, self._rng)
        if not self._cluster.nodes[self._node].running():
            return f"node {self._node} is down: its syncs cannot fail"
        # A node that another fault starts meanwhile meets the error while it opens its files.
        self._cluster.allow_exit(self._node, (ExitCode.FATAL, ExitCode.DISK_REFUSES))
        self._pid = self._cluster.nodes[self._node].pid
        self._injection = _Injection(self._cluster, self._node, f"{SYNC_CALLS},{BACKGROUND_SYNC_CALL}", "error=EIO")
        attached = await self._injection.attach()
        return f"syncs of node {self._node} fail with EIO{'' if attached else ', and it ended at once'}"

    async def heal(self) -> str:
        if self._injection is None:
            return "nothing was begun"
        node = self._cluster.nodes[self._node]
        failed = await self._injection.detach()
        if failed and not await self._ended(self._pid):
            self._cluster.violations.add(
                Kind.SYNC_ERROR_IGNORED, f"node {self._node} runs on after {failed} failed syncs:\n{node.log_tail()}"
            )
        code = node.exit_code()
        self._cluster.start([self._node])
        return f"{failed} syncs of node {self._node} failed, it ended with {code}; started"

    async def _ended(self, pid: int) -> bool:
        """Return whether the process that met the error is gone in time. A frozen process cannot end, and counts as
        gone.
        """
        node = self._cluster.nodes[self._node]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_AFTER_ERROR_S):
                while node.pid == pid and node.running():
                    await asyncio.sleep(POLL_S)
        return node.pid != pid or not node.running() or node.paused


class Wipe:
    """A node loses its disk and comes back with an empty one, which the others fill.

    The broker's promise covers one lost disk at a time: while a node that was wiped earlier has not caught up, its
    disk is the one that is lost again.
    """

    def __init__(self, cluster: ChaosCluster, rng: random.Random) -> None:
        self._cluster, self._rng = cluster, rng
        self._node = 0

    async def start(self) -> str:
        choose = leader_or_any if self._rng.random() < 0.5 else follower_or_any
        chosen = await choose(self._cluster, self._rng)
        behind = disks_behind(self._cluster)
        if len(behind) > 1 or self._cluster.removed:
            return f"{joined(behind or list(self._cluster.removed))} cannot replace another: no disk is lost"
        self._node = behind[0] if behind else chosen
        node = self._cluster.nodes[self._node]
        node.kill()
        node.disks_lost += 1
        for path in node.data_dir.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        self._cluster.configure(node)
        return f"node {self._node} lost its disk"

    async def heal(self) -> str:
        if self._node:
            self._cluster.start([self._node])
        return f"node {self._node} started with an empty disk" if self._node else "no disk was lost"


def disks_behind(cluster: ChaosCluster) -> list[int]:
    """Return the nodes whose disks do not hold everything that they ever acknowledged."""
    return [node_id for node_id, node in cluster.nodes.items() if not _is_voter(node.data_dir)]


def _is_voter(data_dir: Path) -> bool:
    """Return whether the node's disk holds everything that it ever acknowledged (docs/log-format.md)."""
    path = str(data_dir / "hard_state")
    return HardState(PosixDisk(), path).voter


async def _leave_room(path: Path, room: int) -> None:
    """Shrink a file system, with retries: a size below its content is refused, and its node keeps writing."""
    for attempt in range(RESIZE_ATTEMPTS):
        found = os.statvfs(path)
        try:
            return await _resize(path, (found.f_blocks - found.f_bfree) * found.f_frsize + room)
        except RuntimeError:
            if attempt == RESIZE_ATTEMPTS - 1:
                raise


async def _resize(path: Path, size: int) -> None:
    command = ("mount", "-o", f"remount,size={max(size, 1 << 16)}", str(path))
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    _, errors = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)}: {errors.decode(errors='replace').strip()}")


def _is_traced(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    return "TracerPid:\t0\n" not in status


KINDS = (
    FaultKind("disk-full", "disk", Full),
    FaultKind("slow-sync", "disk", SlowSync),
    FaultKind("sync-error", "disk", SyncError),
    FaultKind("wipe", "disk", Wipe),
)
