"""A loop that stands still is noticed from outside: where it stands, for how long, and that it did."""

import asyncio
import threading
import time
import weakref

import pytest

from cluster.health import loop_watch
from cluster.health.loop_watch import ALARM_S, BEAT_S, LoopWatch
from cluster.process.loop_steps import FRAMES_MAX, stack_of
from tests.unit.cluster.conftest import Node


@pytest.fixture(autouse=True)
def late_loop_is_ready() -> None:
    """Leave readiness as it is."""


class Watched:
    """A watch whose beats and looks the test makes, by a clock of its own."""

    def __init__(self, node: Node) -> None:
        self.now_s = 1_000.0
        node.broker._guards.loop.stop()
        node.core.metrics = type(node.core.metrics)()
        self.watch = LoopWatch(node.core, lambda: self.now_s)
        self.watch._loop_thread = threading.get_ident()
        self.watch._due_s = self.watch._looked_s = self.now_s
        self.beat()

    def beat(self) -> None:
        self.watch.beat()
        assert self.watch._timer is not None
        self.watch._timer.cancel()

    def stand(self, duration_s: float) -> None:
        """Let the loop miss its beats while the thread goes on looking."""
        for _ in range(round(duration_s / BEAT_S)):
            self.now_s += BEAT_S
            self.watch.look()


def stacks(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [text for record in caplog.records if "has stood" in (text := record.getMessage())]


async def test_a_loop_that_stands_is_shown_at_once_and_then_rarely(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    watched = Watched(node)
    watched.stand(2_000)
    after_s = [float(text.split(" s,")[0].rsplit(" ", 1)[1]) for text in stacks(caplog)]
    assert after_s == [1.0, 5.0, 30.0, 300.0, 600.0, 900.0, 1_200.0, 1_500.0, 1_800.0]
    assert all("test_loop_watch.py" in text and text.count("File ") <= FRAMES_MAX for text in stacks(caplog))
    caplog.clear()
    watched.beat()
    watched.stand(2.0)
    assert len(stacks(caplog)) == 1, "another stall is shown anew"


async def test_a_stall_is_counted_is_an_alarm_for_a_while_and_makes_the_node_unready(node: Node) -> None:
    watched = Watched(node)
    watched.now_s += BEAT_S + 0.5
    watched.beat()
    assert list(watched.watch.conditions()) == [], "late, and no stall"
    watched.now_s += BEAT_S + 7.0
    watched.beat()
    assert (await node.call("GET", "/readyz")).status == 503
    (condition,) = watched.watch.conditions()
    assert (condition.code, "1 times, up to 7.0 s" in condition.detail) == ("loop_stalled", True)
    assert "keelmq_loop_stalls_total 1.0" in node.core.metrics.text().decode()
    watched.now_s += BEAT_S
    watched.beat()
    assert (await node.call("GET", "/readyz")).status == 200
    watched.now_s += ALARM_S + 1
    assert list(watched.watch.conditions()) == []


async def test_a_process_that_was_frozen_is_not_blamed_on_the_loop(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    """The thread was away as long as the loop: a stack would show only the code that runs first after that."""
    watched = Watched(node)
    watched.now_s += 60.0
    watched.watch.look()
    assert stacks(caplog) == []
    watched.beat()
    assert len(list(watched.watch.conditions())) == 1


async def test_the_thread_of_a_running_node_sees_its_loop_stand(
    node: Node, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("BEAT_S", "STALL_S"):
        monkeypatch.setattr(loop_watch, name, 0.02)
    monkeypatch.setattr(loop_watch, "SHOWN_AFTER_S", (0.02,))
    watch = node.broker._guards.loop
    watch.stop()
    watch._ended.clear()
    watch.start()

    def stand() -> None:
        while not stacks(caplog):
            time.sleep(0.001)

    async with asyncio.timeout(60):
        asyncio.get_running_loop().call_soon(stand)
        while not stacks(caplog):
            await asyncio.sleep(0)
    assert "in stand" in stacks(caplog)[0]


async def test_a_beat_that_fails_is_followed_by_another(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(node)

    def broken(_: float) -> None:
        raise ValueError("no such bucket")

    monkeypatch.setattr(watched.watch._delay_seconds, "observe", broken)
    before = watched.watch._timer
    with pytest.raises(ValueError, match="no such bucket"):
        watched.beat()
    after = watched.watch._timer
    assert after is not before
    assert after is not None
    after.cancel()


def test_a_stack_that_was_looked_at_holds_nothing() -> None:
    """A frame that somebody holds keeps an iterator, and with it an index that was closed is open."""
    begun, goes_on, found = threading.Event(), threading.Event(), list[weakref.ref[set[int]]]()

    def work() -> None:
        iterator = {1}
        found.append(weakref.ref(iterator))
        begun.set()
        goes_on.wait()

    thread = threading.Thread(target=work)
    thread.start()
    begun.wait()
    assert thread.ident is not None
    assert "in work" in stack_of(thread.ident)
    goes_on.set()
    thread.join()
    assert found[0]() is None
