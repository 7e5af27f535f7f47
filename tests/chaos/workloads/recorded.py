"""A group whose members are processes that record all they do: they join, leave, crash and are stopped."""

import asyncio
import contextlib
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Final

import msgspec

import keelmq
from tests.chaos.broken import BROKEN_VARIABLE
from tests.chaos.group_member import MemberPlan, open_database
from tests.chaos.group_records import SUFFIX, Recorder, Stood
from tests.chaos.node import REPOSITORY, die_with_parent
from tests.chaos.violations import Kind
from tests.chaos.workloads.consume import SESSION_TIMEOUT_MS
from tests.chaos.workloads.returns import MAX_ATTEMPTS, RETRY_DELAYS_MS
from tests.chaos.workloads.worker import DELAYED_TOPIC, TRANSACTION_TOPICS, Field
from tests.patience import PATIENCE_S

RECORDED_GROUP: Final = "chaos-recorded"
RECORDED_TOPICS: Final = (*TRANSACTION_TOPICS, DELAYED_TOPIC)
RECORDED_RETRY_TOPIC: Final = f"%RETRY%{RECORDED_GROUP}"
LIFE_S: Final = (2.0, 8.0)
PAUSE_S: Final = (0.3, 6.0)
FATES: Final = ("crash", "leave", "pause", "pause")
STAYING_FATES: Final = ("pause",)
LOG_TAIL_BYTES: Final = 1_000


class RecordedGroup:
    """Runs `members` processes at a time; the first one is paused at times, but never ends before the run does.

    `records` is the directory of the members' records, `database` holds the effects. `broken` names the members'
    defect.
    """

    def __init__(self, field: Field, members: int, directory: Path, broken: str | None = None) -> None:
        self.records = directory / "members"
        self.database = str(self.records / "effects.sqlite")
        self.lives = 0
        self._field = field
        self._members = members
        self._broken = broken
        self._rng = field.rng("recorded")
        self._calm = asyncio.Event()

    async def prepare(self) -> None:
        """Set the group's limits, on a cluster that is ready. Idempotent."""
        self.records.mkdir(exist_ok=True)
        open_database(self.database).dispose()  # two members that make the tables at once would meet
        connection = keelmq.Connection(self._field.urls)
        try:
            await keelmq.Admin(connection).put_group(
                RECORDED_GROUP, retry_max_attempts=MAX_ATTEMPTS, retry_delays_ms=RETRY_DELAYS_MS
            )
        finally:
            connection.close()

    async def run(self, stop: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as tasks:
            for number in range(self._members):
                rng = random.Random(self._rng.random())
                tasks.create_task(self._one_after_the_other(stop, rng, STAYING_FATES if number == 0 else FATES))

    def calm(self) -> None:
        """Kill and stop no member from now on."""
        self._calm.set()

    async def _one_after_the_other(self, stop: asyncio.Event, rng: random.Random, fates: tuple[str, ...]) -> None:
        while not stop.is_set():
            self.lives += 1
            name = f"m-{self.lives}"
            process = await self._start(name, rng)
            try:
                await self._live(process, name, stop, rng, fates)
            finally:
                _signal(process, signal.SIGKILL)
                await process.wait()

    async def _start(self, name: str, rng: random.Random) -> asyncio.subprocess.Process:
        plan = MemberPlan(
            name=name,
            urls=list(self._field.urls),
            group=RECORDED_GROUP,
            topics=list(RECORDED_TOPICS),
            session_timeout_ms=SESSION_TIMEOUT_MS,
            records=str(self.records / f"{name}{SUFFIX}"),
            database=self.database,
            seed=f"{self._field.seed} {name}",
            ordered=rng.random() < 0.5,
            plain=rng.random() < 0.3,
            uvloop=rng.random() < 0.5,
        )
        command = [sys.executable, "-m", "tests.chaos.group_member", msgspec.json.encode(plan).decode()]
        environment = dict(os.environ) if self._broken is None else {**os.environ, BROKEN_VARIABLE: self._broken}
        with (self.records / f"{name}.log").open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *die_with_parent(),
                *command,
                cwd=REPOSITORY,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )

    async def _live(
        self,
        process: asyncio.subprocess.Process,
        name: str,
        stop: asyncio.Event,
        rng: random.Random,
        fates: tuple[str, ...],
    ) -> None:
        """Run one life of a member, until it has left or is killed."""
        while await self._stays_calm_or_ends(process, stop, rng.uniform(*LIFE_S)):
            fate = rng.choice(fates)
            self._field.history.write("member", name=name, fate=fate)
            if fate == "pause":
                await self._pause(process, name, rng.uniform(*PAUSE_S))
            elif fate == "crash":
                _signal(process, signal.SIGKILL)
                return
            else:
                break
        _signal(process, signal.SIGTERM)
        await self._ended(process, name)

    async def _stays_calm_or_ends(
        self, process: asyncio.subprocess.Process, stop: asyncio.Event, life_s: float
    ) -> bool:
        """Return True after `life_s`; False when the member is to end or has ended. In calm times only the latter ends
        the wait.
        """
        watched = [asyncio.create_task(stop.wait()), asyncio.create_task(process.wait())]
        calm = asyncio.create_task(self._calm.wait())
        try:
            await asyncio.wait([*watched, calm], timeout=life_s, return_when=asyncio.FIRST_COMPLETED)
            if self._calm.is_set():
                await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
            return not any(task.done() for task in watched)
        finally:
            for task in (*watched, calm):
                task.cancel()

    async def _pause(self, process: asyncio.subprocess.Process, name: str, pause_s: float) -> None:
        recorder = Recorder(self.records / f"{name}{SUFFIX}")
        try:
            from_s = time.monotonic()
            _signal(process, signal.SIGSTOP)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._calm.wait()
            _signal(process, signal.SIGCONT)
            recorder.write(Stood(member=name, at_s=time.monotonic(), from_s=from_s, stopped=True))
        finally:
            recorder.close()

    async def _ended(self, process: asyncio.subprocess.Process, name: str) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                code = await process.wait()
        except TimeoutError:
            self._violate(name, f"hangs, {PATIENCE_S:.0f} s after it was told to end")
            return
        if code not in (0, -signal.SIGTERM):  # -SIGTERM: the signal came before the program had begun
            self._violate(name, f"ended with {code}")

    def _violate(self, name: str, what: str) -> None:
        tail = (self.records / f"{name}.log").read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")
        self._field.violations.add(Kind.CONTRACT, f"member {name} {what}: {tail}")


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """Send a signal; do nothing if the process has ended."""
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)
