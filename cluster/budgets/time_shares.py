"""What one client address may take of everybody's time, while other addresses wait for writes.

Costly work is cut into slices with rests (cluster/budgets/pace.py), and a large body is one entry of the log that small
messages wait behind. Neither bounds what an address takes altogether: four clients that filter, or twenty that send
4 MiB, left others a tenth of their rate. So the time that an address uses is charged, and it rests until it has come to
its share. An address that is alone, or does nothing costly, never rests; nor do costly ones for each other.
"""

import asyncio
import time
import types
from collections.abc import Coroutine, Generator, Iterator
from contextvars import ContextVar
from typing import Any, Final, TypeVar

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric

WAITED_S: Final = 0.05
"""What other addresses have waited for small writes within a second, from which on there is somebody to be spared."""
REST_S_MAX: Final = 2.0
CHARGED_S_MIN: Final = 0.0005
"""A shorter step of a request is not costly."""
JOINED_S: Final = 0.005
"""So long after a window of an address has opened further work of it may begin in it."""
COUNTED_S: Final = 1.0
ADDRESSES_KEPT: Final = 1_000

Value = TypeVar("Value")


class _Window:
    """Work of one address that is under way."""

    def __init__(self, opened_s: float) -> None:
        self.opened_s = opened_s
        self.at_work = 0
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class TimeShares:
    """Loop-only. `percent` of the time is the share of an address."""

    def __init__(self, percent: int) -> None:
        self._rest = 100 / percent - 1
        """How much longer than the work the rest behind it is."""
        self._waits = _Recent()
        self._due_s: dict[str, float] = {}
        """When an address that has used more than its share may go on."""
        self._windows: dict[str, _Window] = {}
        self._rests = 0
        self._rested_s = 0.0

    def counters(self) -> Iterator[Metric]:
        rests = CounterMetricFamily(
            "keelmq_client_rests", "Times that costly work of a client address rested for others"
        )
        rests.add_metric([], self._rests)
        yield rests
        seconds = CounterMetricFamily("keelmq_client_rest_seconds", "How long these rests took")
        seconds.add_metric([], self._rested_s)
        yield seconds

    def count_wait(self, address: str, waited_s: float) -> None:
        """A write of the address that is not costly took so long."""
        self._waits.add(address, waited_s, asyncio.get_running_loop().time())

    def charge(self, address: str, worked_s: float) -> None:
        """The address has used so much of the time."""
        if not self._has_others(address):
            return
        now_s = asyncio.get_running_loop().time()
        if len(self._due_s) >= ADDRESSES_KEPT:
            self._due_s = {each: due_s for each, due_s in self._due_s.items() if due_s > now_s}
        due_s = max(self._due_s.get(address, now_s), now_s) + worked_s * self._rest
        self._due_s[address] = min(due_s, now_s + REST_S_MAX)

    async def rest(self, address: str) -> None:
        """Let the loop do everything else that waits, and until the address has come to its share."""
        await self._sleep(self.due_in_s(address))

    async def begin(self, address: str) -> None:
        """Wait until the address may begin something that others wait for while it lasts; `end` has to follow. Until
        then it has a window, which further work of its own shares if it comes when it opens.
        """
        loop = asyncio.get_running_loop()
        while self._has_others(address):
            window = self._windows.get(address)
            if window is None:
                due_in_s = self.due_in_s(address)
                if due_in_s <= 0:
                    break
                await self._sleep(due_in_s)
            elif loop.time() - window.opened_s <= JOINED_S:
                break
            else:
                await asyncio.shield(window.closed)
        if address not in self._windows:
            self._windows[address] = _Window(loop.time())
        self._windows[address].at_work += 1

    def end(self, address: str) -> None:
        window = self._windows[address]
        window.at_work -= 1
        if not window.at_work:
            del self._windows[address]
            window.closed.set_result(None)
            self.charge(address, asyncio.get_running_loop().time() - window.opened_s)

    async def _sleep(self, rest_s: float) -> None:
        if rest_s > 0:
            self._rests += 1
            self._rested_s += rest_s
        await asyncio.sleep(rest_s)

    def _has_others(self, address: str) -> bool:
        return self._waits.of_others(address, asyncio.get_running_loop().time()) >= WAITED_S

    def due_in_s(self, address: str) -> float:
        if address not in self._due_s or not self._has_others(address):
            return 0.0
        return max(self._due_s[address] - asyncio.get_running_loop().time(), 0.0)


class Client:
    """Whoever sent the request that is handled: each step that is done for it is charged to its address."""

    __slots__ = ("_address", "_begun", "_resumed_s", "_shares")

    def __init__(self, shares: TimeShares, address: str) -> None:
        self._shares = shares
        self._address = address
        self._begun = 0
        self._resumed_s: float | None = None
        """Since when the step that is under way is not charged. None between two steps."""

    def resume(self) -> None:
        """A step begins."""
        self._resumed_s = time.perf_counter()

    def pause(self) -> None:
        """The step ends, at the next `await` that waits."""
        self._settle()
        self._resumed_s = None

    async def rest(self, worked_s: float = 0.0) -> None:
        """`worked_s` counts if this is asked for in a task of its own, which has no steps."""
        if self._resumed_s is None:
            self._charge(worked_s)
        else:
            self._settle()
        await self._shares.rest(self._address)

    async def rest_for(self, worked_s: float) -> None:
        """Rest after `worked_s` of work that was no step of the request."""
        self._charge(worked_s)
        await self.rest()

    def waited(self, waited_s: float) -> None:
        """For a write, which counts unless it was costly itself."""
        if not self._begun:
            self._shares.count_wait(self._address, waited_s)

    async def come_to_share(self) -> None:
        """At once, unless the address has used more than its share."""
        if self._shares.due_in_s(self._address) > 0:
            await self._shares.rest(self._address)

    async def begin(self) -> None:
        """As that of the shares; a request that has begun does not wait for itself."""
        if not self._begun:
            await self._shares.begin(self._address)
        self._begun += 1

    def end(self) -> None:
        self._begun -= 1
        if not self._begun:
            self._shares.end(self._address)

    def _settle(self) -> None:
        now_s = time.perf_counter()
        worked_s = now_s - (now_s if self._resumed_s is None else self._resumed_s)
        self._resumed_s = now_s
        if worked_s >= CHARGED_S_MIN:
            self._charge(worked_s)

    def _charge(self, worked_s: float) -> None:
        """Charge the address, unless a window is open: that is charged as a whole."""
        if not self._begun:
            self._shares.charge(self._address, worked_s)


_client: ContextVar[Client | None] = ContextVar("client", default=None)


def begin(shares: TimeShares, address: str) -> Client:
    """A request of that address is handled from now on, in this task."""
    client = Client(shares, address)
    _client.set(client)
    return client


def current() -> Client | None:
    """Whose request is handled in this task; None where no client's is."""
    return _client.get()


@types.coroutine
def charged(client: Client, work: Coroutine[Any, Any, Value]) -> Generator[Any, None, Value]:
    """Await `work`; each of its steps is charged to the client."""
    error: BaseException | None = None
    while True:
        client.resume()
        try:
            awaited = work.send(None) if error is None else work.throw(error)
        except StopIteration as ended:
            value: Value = ended.value
            return value
        finally:
            error = None  # it refers to this frame
            client.pause()
        try:
            yield awaited
        except BaseException as raised:
            error = raised


async def rest(worked_s: float) -> None:
    """After work of that long: let the loop do everything else that waits. For a client that uses more than its share
    this takes longer.
    """
    client = _client.get()
    if client is None:
        await asyncio.sleep(0)
    else:
        await client.rest(worked_s)


class _Recent:
    """Sums by address: of the second that is over or of the one that runs, whichever is more."""

    def __init__(self) -> None:
        self._before: dict[str, float] = {}
        self._now: dict[str, float] = {}
        self._began_s = float("-inf")

    def add(self, address: str, amount: float, now_s: float) -> None:
        self._turn_over(now_s)
        self._now[address] = self._now.get(address, 0.0) + amount

    def of_others(self, address: str, now_s: float) -> float:
        self._turn_over(now_s)
        return max(sum(each.values()) - each.get(address, 0.0) for each in (self._before, self._now))

    def _turn_over(self, now_s: float) -> None:
        passed_s = now_s - self._began_s
        if passed_s >= COUNTED_S:
            self._before = self._now if passed_s < 2 * COUNTED_S else {}
            self._now, self._began_s = {}, now_s
