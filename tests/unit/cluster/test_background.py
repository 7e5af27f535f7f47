"""Background work of a node goes on with the next round, whatever a round meets, and reports failures."""

import asyncio
import gc
import logging
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import cluster
from cluster.core.background import (
    FAILING_ROUNDS,
    REPORT_INTERVAL_S,
    RETRY_S,
    SPAWNED_COUNTS_FOR_S,
    Background,
    BackgroundTask,
)
from cluster.groups.session_expiry import SessionExpiry
from raft.errors import NoLeader
from tests.unit.client.virtual_time import run_in_virtual_time
from tests.unit.cluster.conftest import Node

PAUSE_S = 10.0


class Rounds:
    """Rounds that end as `ends` says, one after the other, then for ever as its last item says."""

    def __init__(self, *ends: Exception | float | None) -> None:
        self._ends = list(ends)
        self.begun_s: list[float] = []
        self.background = Background()
        self.task = self.background.task("test", "test", self.do)

    async def do(self) -> float | None:
        self.begun_s.append(asyncio.get_running_loop().time())
        end = self._ends.pop(0) if len(self._ends) > 1 else self._ends[0]
        if isinstance(end, Exception):
            raise end
        return end

    def run(self, seconds: float, then: Callable[[], object] = lambda: None) -> list[float]:
        """Return the times when rounds began, in seconds from the start of the task."""

        async def scenario() -> None:
            start_s = asyncio.get_running_loop().time()
            self.task.start()
            await asyncio.sleep(seconds)
            then()
            await self.task.stop()
            self.begun_s = [begun_s - start_s for begun_s in self.begun_s]

        run_in_virtual_time(scenario())
        return self.begun_s

    def is_failing(self) -> bool:
        return list(self.background.failing()) == [self.task]


def test_rounds_follow_each_other_whatever_they_meet(caplog: pytest.LogCaptureFixture) -> None:
    rounds = Rounds(PAUSE_S, KeyError("a bug"), PAUSE_S, NoLeader("none"), PAUSE_S, None)
    begun_s = rounds.run(1_000)
    after_failure_s = PAUSE_S + RETRY_S
    assert begun_s == pytest.approx([0, PAUSE_S, after_failure_s, 2 * PAUSE_S + RETRY_S, 2 * after_failure_s, 31])
    assert rounds.task.failures == {"expected": 1, "unexpected": 1}
    assert [(record.levelname, record.exc_info is not None) for record in caplog.records] == [
        ("ERROR", True),
        ("WARNING", False),
    ]


def test_it_is_told_when_rounds_fail_again_and_again_and_when_that_is_over(caplog: pytest.LogCaptureFixture) -> None:
    few, many = (Rounds(*[KeyError("a bug")] * count, PAUSE_S) for count in (FAILING_ROUNDS - 1, FAILING_ROUNDS))
    told: list[bool] = []
    errors: list[str] = []

    def look() -> None:
        told.append(many.is_failing())
        errors.append(many.task.in_a_row.last_error)

    few.run(RETRY_S * (FAILING_ROUNDS - 0.5), lambda: told.append(few.is_failing()))
    many.run(RETRY_S * (FAILING_ROUNDS - 0.5), look)
    assert (told, errors) == ([False, True], ["KeyError: 'a bug'"])
    over = Rounds(*[KeyError("a bug")] * FAILING_ROUNDS, PAUSE_S)
    over.run(PAUSE_S, lambda: told.append(over.is_failing()))
    assert told[-1] is False
    caplog.clear()
    Rounds(KeyError("a bug")).run(2.5 * REPORT_INTERVAL_S)
    assert len(caplog.records) == 3, "a trace a minute"
    caplog.clear()
    Rounds(KeyError("a bug"), PAUSE_S, KeyError("a bug"), ValueError("another bug"), PAUSE_S).run(REPORT_INTERVAL_S)
    assert len(caplog.records) == 2, "a task that works now and then logs no more; what is new is told"


def test_refusals_are_told_once_and_are_no_alarm(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    rounds = Rounds(NoLeader("none"))
    told: list[bool] = []
    rounds.run(100, lambda: told.append(rounds.is_failing()))
    assert (told, len(caplog.records)) == ([False], 1)
    assert rounds.task.failures["expected"] == len(rounds.begun_s) > 100


def test_what_a_round_spawns_ends_with_the_task_and_is_heard_of() -> None:
    ended: list[str] = []

    async def fails() -> None:
        raise KeyError("beside")

    async def lasts() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.append("lasts")

    async def do_round() -> float:
        return PAUSE_S

    async def scenario() -> BackgroundTask:
        task = Background().task("test", "test", do_round)
        task.start()
        task.spawn(fails)
        task.spawn(lasts)
        await asyncio.sleep(1)
        await task.stop()
        return task

    assert run_in_virtual_time(scenario()).failures["unexpected"] == 1
    assert ended == ["lasts"]


class Beside:
    """Work beside the rounds of a task: each piece ends as the next of `ends` says, and the alarm is looked at then."""

    def __init__(self, *ends: Exception | None) -> None:
        self._ends = ends
        self._end: Exception | None = None
        self.background = Background()
        self.task = self.background.task("test", "test", self._do_round)

    async def _do_round(self) -> float:
        return PAUSE_S

    async def _work(self) -> None:
        if self._end is not None:
            raise self._end

    def looks(self, *, with_rounds: bool) -> list[bool]:
        """Return after each piece whether the task is failing; a good round comes before each `with_rounds`."""

        async def scenario() -> list[bool]:
            if with_rounds:
                self.task.start()
            looks = []
            for end in self._ends:
                self._end = end
                await asyncio.sleep(PAUSE_S)
                self.task.spawn(self._work)
                await asyncio.sleep(1)
                looks.append(any(self.background.failing()))
            await self.task.stop()
            return looks

        return run_in_virtual_time(scenario())


@pytest.mark.parametrize("with_rounds", [True, False])
def test_spawned_work_that_fails_each_time_is_an_alarm_beside_good_rounds(*, with_rounds: bool) -> None:
    """A good round took the failures back, so that no delivery to a webhook needed to work."""
    beside = Beside(*[KeyError("a bug")] * FAILING_ROUNDS, None)
    assert beside.looks(with_rounds=with_rounds) == [False] * (FAILING_ROUNDS - 1) + [True, False]


@pytest.mark.parametrize("with_rounds", [True, False])
def test_spawned_work_that_fails_now_and_then_is_no_alarm(*, with_rounds: bool) -> None:
    """A task without rounds, as that of the audit, had an alarm for ever after three failures in months."""
    beside = Beside(*[KeyError("a bug"), None] * 2 * FAILING_ROUNDS)
    assert not any(beside.looks(with_rounds=with_rounds))


def test_refusals_of_spawned_work_are_told_once_until_it_is_done_again(caplog: pytest.LogCaptureFixture) -> None:
    """A good round between two refusals had each of them told; without rounds, only the first one ever was."""
    for with_rounds in (True, False):
        caplog.clear()
        refused = NoLeader("none")
        Beside(refused, refused, None, refused, refused).looks(with_rounds=with_rounds)
        assert len(caplog.records) == 2


def test_failures_of_work_that_is_spawned_no_more_are_forgotten() -> None:
    """A node that leads no more asks about no transactions: nothing there could succeed and end the alarm."""
    beside = Beside()
    told: list[bool] = []

    async def fails() -> None:
        raise KeyError("a bug")

    async def scenario() -> None:
        for _ in range(FAILING_ROUNDS):
            beside.task.spawn(fails)
            await asyncio.sleep(1)
        for wait_s in (0.0, SPAWNED_COUNTS_FOR_S):
            await asyncio.sleep(wait_s)
            told.append(any(beside.background.failing()))

    run_in_virtual_time(scenario())
    assert told == [True, False]


def test_one_kind_of_spawned_work_does_not_hide_that_another_fails() -> None:
    beside = Beside()

    async def fails() -> None:
        raise KeyError("a bug")

    async def works() -> None:
        return None

    async def scenario() -> bool:
        for _ in range(FAILING_ROUNDS):
            beside.task.spawn(fails)
            beside.task.spawn(works)
            await asyncio.sleep(1)
        return any(beside.background.failing())

    assert run_in_virtual_time(scenario())


def test_good_spawned_work_does_not_hide_that_rounds_fail() -> None:
    rounds = Rounds(KeyError("a bug"))
    told: list[bool] = []

    async def works() -> None:
        return None

    async def scenario() -> None:
        rounds.task.start()
        for _ in range(FAILING_ROUNDS):
            await asyncio.sleep(RETRY_S)
            rounds.task.spawn(works)
        await asyncio.sleep(0)
        told.append(rounds.is_failing())
        await rounds.task.stop()

    run_in_virtual_time(scenario())
    assert told == [True]


def test_work_that_is_stopped_before_it_begins_leaves_nothing_behind(recwarn: pytest.WarningsRecorder) -> None:
    """A check that was due when its node stopped was a coroutine that nobody awaited: a warning in the log."""

    async def never() -> None:
        pytest.fail("it has begun")

    async def do_round() -> float:
        return PAUSE_S

    async def scenario() -> None:
        task = Background().task("test", "test", do_round)
        task.spawn(never)
        await task.stop()

    run_in_virtual_time(scenario())
    gc.collect()
    assert not recwarn.list


async def test_work_that_fails_is_an_alarm_until_it_is_done_again(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Members expired no more when one look for them had failed; a KeyError shows it here."""

    async def fail(expiry: SessionExpiry) -> None:
        raise KeyError("a bug")

    async def alarms() -> list[str]:
        answer = await node.call("GET", "/v1/cluster")
        return [alarm["subject"] for alarm in answer.body["alarms"] if alarm["code"] == "background_task_failing"]

    async def is_over() -> bool:
        return not await alarms()

    with monkeypatch.context() as broken:
        broken.setattr(SessionExpiry, "_meet_members", fail)
        assert await node.wait(alarms) == ["group-expiry"]
        metrics = (await node.call("GET", "/metrics")).body.decode()
        failures = re.search(r'failures_total\{kind="unexpected",task="group-expiry"\} (\S+)', metrics)
        assert failures is not None
        assert float(failures[1]) >= FAILING_ROUNDS
    await node.wait(is_over)


def test_no_other_task_runs_for_ever() -> None:
    folder = Path(cluster.__file__).parent
    making = {path.name for path in folder.rglob("*.py") if "create_task(" in path.read_text()}
    assert making == {"background.py", "serving.py", "tls_listener.py"}, (
        "a handshake ends within TLS_HANDSHAKE_TIMEOUT_S, and SIGHUP is served on whatever a round raises"
    )
