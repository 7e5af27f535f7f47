"""Nodes with much data: how soon one is ready after a kill, and how soon a wiped follower is back under load."""

import asyncio
import os
import shutil
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from keelmq import Admin, Connection
from tests.bench import load as bench
from tests.deploy.trial import Trial, kill_and_wipe
from tests.e2e.cluster_process import wait_for
from tests.e2e.deployment import Deployment, load
from tests.patience import PATIENCE_S

GIB: Final = 1 << 30
TOPIC: Final = "large"
QUEUES: Final = 4
DEFAULTS: Final = {"segment_bytes": 128 << 20, "election_timeout_ms": 1_000, "heartbeat_ms": 100}
"""Options as a node has them by default, in place of those with which tests are fast."""
SENDS: Final = 2_000
"""Sends of which the 99th percentile is taken before the host is lost."""
POLL_S: Final = 0.01
READY_GOAL_S: Final = 3.0
COPIES_GOAL: Final = 3.0
"""A wiped follower should be back within this many times the time of copying its log."""
SENDS_GOAL: Final = 2.0
"""The 99th percentile of sends should stay within this many times what it was."""


class Large(Trial):
    """One node is killed with a long log, and started; then one of three is wiped, and replaced under load. A missed
    goal is reported and fails nothing: it is about this machine, which all nodes and clients share.
    """

    name = "large"

    async def run(self) -> dict[str, object]:
        restarted = await self._restart()
        return {**restarted, **await self._replace()}

    async def _restart(self) -> dict[str, object]:
        deployment = self._hosts.deployment("restarted", {1: 1})
        await self._begin(deployment)
        short_s = await self._start_again(deployment)
        await self._fill(deployment, self._sizes.restart_gib)
        gib = _bytes_of(deployment.root(1) / "data" / "log") / GIB
        ready_s = await self._start_again(deployment)
        await self._destroy(at=deployment)
        return {
            "restart_log_gib": round(gib, 2),
            "restart_ready_s": round(ready_s, 2),
            "restart_empty_ready_s": round(short_s, 2),
            "restart_goal_met": ready_s <= READY_GOAL_S,
            "restart_load_average": round(os.getloadavg()[0], 1),
        }

    async def _start_again(self, deployment: Deployment) -> float:
        """Kill the one node, and return the seconds in which it is ready, with nothing of its data in memory."""
        os.kill(deployment.pids()[1], signal.SIGKILL)
        wait_for(lambda: not deployment.pids(), "the node to be gone")
        await asyncio.to_thread(_forget_pages, deployment.root(1) / "data")
        starting = asyncio.create_task(self._done("bootstrap", at=deployment))
        ready_s = await asyncio.to_thread(_ready_s, deployment, 1)
        await starting
        return ready_s

    async def _replace(self) -> dict[str, object]:
        deployment = self._deployment
        await self._begin(deployment)
        await self._fill(deployment, self._sizes.wiped_gib)
        follower = next(number for number in deployment.urls if number != deployment.leader())
        log = deployment.root(follower) / "data" / "log"
        gib = _bytes_of(log) / GIB
        self._report.step(f"copying {gib:.2f} GiB")
        copy_s = await asyncio.to_thread(_copy_s, log, deployment.directory / "copy")
        took_s: list[float] = []
        self._report.step(f"{SENDS} sends, one after the other")
        async with load(deployment, took_s):
            while len(took_s) < SENDS:
                await asyncio.sleep(POLL_S)
            before_s = took_s[:]
            await asyncio.to_thread(kill_and_wipe, deployment, [follower])
            arguments = ("--bundle", str(self._bundles.present), "--timeout-s", "1000")
            replacing = asyncio.create_task(self._done("replace", str(follower), *arguments))
            back_s = await asyncio.to_thread(_ready_s, deployment, follower)
            meanwhile_s = took_s[len(before_s) :]
            await replacing
        await self._done("status")
        await self._destroy()
        before_ms, meanwhile_ms = _p99_ms(before_s), _p99_ms(meanwhile_s)
        return {
            "wiped_gib": round(gib, 2),
            "copy_s": round(copy_s, 1),
            "back_s": round(back_s, 1),
            "back_goal_met": back_s <= COPIES_GOAL * copy_s,
            "p99_before_ms": before_ms,
            "p99_meanwhile_ms": meanwhile_ms,
            "sends_meanwhile": len(meanwhile_s),
            "p99_goal_met": meanwhile_ms <= SENDS_GOAL * before_ms,
            "wiped_load_average": round(os.getloadavg()[0], 1),
        }

    async def _begin(self, deployment: Deployment) -> None:
        for options in deployment.options.values():
            options |= DEFAULTS
        deployment.write()
        await self._done("bootstrap", "--bundle", str(self._bundles.present), at=deployment)

    async def _fill(self, deployment: Deployment, gib: float) -> None:
        """Send batches of 1,024 x 1 KiB until the log of each node has that many GiB."""
        self._report.step(f"filling the log to {gib:g} GiB")
        logs = [deployment.root(number) / "data" / "log" for number in deployment.urls]
        urls = list(deployment.urls.values())
        connection = Connection(urls)
        try:
            await Admin(connection).put_topic(TOPIC, queues=QUEUES)
        finally:
            connection.close()
        with self._report.live():
            await bench.fill(urls, TOPIC, lambda: min(map(_bytes_of, logs)) >= gib * GIB)


def _bytes_of(log: Path) -> int:
    """Return the length of a log up to the beginning of its newest segment, which is its name."""
    return max(int(segment.stem) for segment in log.glob("*.log"))


def _forget_pages(directory: Path) -> None:
    """Have the next reader of these files find them on the disk, and not in memory."""
    os.sync()
    for path in _files(directory):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)


def _copy_s(source: Path, target: Path) -> float:
    """Copy the files of a log that is being written and sync each; return the seconds that this took."""
    begun_s = time.monotonic()
    target.mkdir()
    for path in _files(source):
        copied = target / path.name
        shutil.copyfile(path, copied)
        handle = os.open(copied, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    taken_s = time.monotonic() - begun_s
    shutil.rmtree(target)
    return taken_s


def _files(directory: Path) -> Iterable[Path]:
    return (path for path in sorted(directory.rglob("*")) if path.is_file())


def _ready_s(deployment: Deployment, number: int) -> float:
    """Wait until the node, which somebody starts, is ready; return the seconds since the start of its process."""
    while not _is_ready(deployment.urls[number]):
        time.sleep(POLL_S)
    ready_s = time.clock_gettime(time.CLOCK_BOOTTIME)  # before the look through all processes
    pid = deployment.pids()[number]
    started = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])  # ticks since the boot
    return ready_s - started / os.sysconf("SC_CLK_TCK")


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=PATIENCE_S):
            return True
    except (urllib.error.URLError, OSError):
        return False


def _p99_ms(taken_s: list[float]) -> float:
    ordered = sorted(taken_s)
    return round(1_000 * ordered[len(ordered) * 99 // 100], 1)
