"""Shares of the event loop's time by client address and by principal, enforced while others wait for writes.

Costly work is cut into slices with rests (cluster/budgets/pace.py), and a large body is one entry of the log that small
messages wait behind. Neither bounds the total time of an address: four clients that filter, or twenty that send 4 MiB,
left others a tenth of their rate. So the time that an address uses is charged to it, and the address rests until its
use is down to its share. An address that is alone, or does nothing costly, never rests; nor do addresses with costly
work rest for each other.

A principal has an account of its own by the same rules, beside that of each address from which it comes: all its
addresses together get PRINCIPAL_ADDRESSES times the share of one, while other principals wait.
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
"""Seconds that other addresses have waited for small writes within one second, from which on an address must rest."""
REST_S_MAX: Final = 2.0
CHARGED_S_MIN: Final = 0.0005
"""Seconds of a step from which on it is charged; a shorter step is not costly."""
JOINED_S: Final = 0.005
"""Seconds after the opening of a window during which further work of its address may begin in the window."""
PRINCIPAL_ADDRESSES: Final = 4
"""Ratio of the share of a principal to the share of an address: as many of its addresses may use theirs in full."""
COUNTED_S: Final = 1.0
ADDRESSES_KEPT: Final = 1_000

Value = TypeVar("Value")


class _Window:
    """A period of costly work of one address, which is charged as a whole."""

    def __init__(self, opened_s: float) -> None:
        self.opened_s = opened_s
        self.at_work = 0
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class TimeShares:
    """Charges addresses for their time and makes them rest. Use on the event loop only. `percent` of the time is the
    share of one address.
    """

    def __init__(self, percent: int, of_principals: "TimeShares | None" = None) -> None:
        """Create the accounts of addresses, or of principals. Those of addresses have the others beside them, if
        principals have accounts at all.
        """
        self.of_principals = of_principals
        self._rest = 100 / percent - 1
        """Ratio of the rest after costly work to the time of the work."""
        self._waits = _Recent()
        self._due_s: dict[str, float] = {}
        """Loop time at which an address that has used more than its share may go on, by address."""
        self._windows: dict[str, _Window] = {}
        self._rests = 0
        self._rested_s = 0.0

    def counters(self) -> Iterator[Metric]:
        rests = CounterMetricFamily(
            "keelmq_client_rests", "Times that costly work of a client address or principal rested for others"
        )
        both = (self,) if self.of_principals is None else (self, self.of_principals)
        rests.add_metric([], sum(each._rests for each in both))
        yield rests
        seconds = CounterMetricFamily("keelmq_client_rest_seconds", "How long these rests took")
        seconds.add_metric([], sum(each._rested_s for each in both))
        yield seconds

    def count_wait(self, address: str, waited_s: float) -> None:
        """Count the waiting time of a write of the address that was not costly."""
        self._waits.add(address, waited_s, asyncio.get_running_loop().time())

    def charge(self, address: str, worked_s: float) -> None:
        """Charge the address for `worked_s` seconds of work, if other addresses wait."""
        if not self._has_others(address):
            return
        now_s = asyncio.get_running_loop().time()
        if len(self._due_s) >= ADDRESSES_KEPT:
            self._due_s = {each: due_s for each, due_s in self._due_s.items() if due_s > now_s}
        due_s = max(self._due_s.get(address, now_s), now_s) + worked_s * self._rest
        self._due_s[address] = min(due_s, now_s + REST_S_MAX)

    async def rest(self, address: str) -> None:
        """Let the loop run everything else that waits, until the use of the address is down to its share."""
        await self._sleep(self.due_in_s(address))

    async def begin(self, address: str) -> None:
        """Wait until the address may begin costly work, during which others wait; `end` has to follow.

        Between the two calls the address has a window. Further work of the address joins the window if it comes within
        JOINED_S of the opening, and otherwise waits for its end.
        """
        await self.until_free(address)
        self.open(address)

    async def until_free(self, address: str) -> bool:
        """Wait until the address may begin costly work, and return whether it had to."""
        loop, waited = asyncio.get_running_loop(), False
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
            waited = True
        return waited

    def open(self, address: str) -> None:
        """Begin costly work, whether the address may or not; `end` has to follow."""
        if address not in self._windows:
            self._windows[address] = _Window(asyncio.get_running_loop().time())
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


def time_shares_of(address_percent: int) -> TimeShares:
    """Return the accounts of addresses and of principals for a share of one address."""
    return TimeShares(address_percent, TimeShares(min(PRINCIPAL_ADDRESSES * address_percent, 100)))


class Client:
    """The client of the current request. Each step of the request is charged to the client's address, and to its
    principal once it is known.
    """

    __slots__ = ("_accounts", "_begun", "_open", "_resumed_s", "_shares", "sender", "worked_s")

    def __init__(self, shares: TimeShares, address: str) -> None:
        self._shares = shares
        self._accounts: tuple[tuple[TimeShares, str], ...] = ((shares, address),)
        """Accounts that are charged, each with the name of its holder."""
        self.sender = address
        """Who takes turns with others in front of the log, and holds what the request holds: the address, or the
        principal once it is known."""
        self.worked_s = 0.0
        """Seconds of all steps up to the last `await` that waited."""
        self._begun = 0
        self._open: tuple[tuple[TimeShares, str], ...] = ()
        """Accounts with a window of this request, while one is open."""
        self._resumed_s: float | None = None
        """Time up to which the present step is charged. None between two steps."""

    def becomes(self, name: str) -> None:
        """Note the principal who sends the request."""
        self.sender = PRINCIPAL_SENDER + name
        if self._shares.of_principals is not None and len(self._accounts) == 1:
            self._accounts = (*self._accounts, (self._shares.of_principals, name))

    def resume(self) -> None:
        """Note that a step begins."""
        self._resumed_s = time.perf_counter()

    def pause(self) -> None:
        """Charge the step that ends, at an `await` that waits."""
        self._settle()
        self._resumed_s = None

    async def rest(self, worked_s: float = 0.0) -> None:
        """Rest until the client is down to its share. `worked_s` is charged only in a separate task, which has no
        steps.
        """
        if self._resumed_s is None:
            self._charge(worked_s)
        else:
            self._settle()
        shares, holder = max(self._accounts, key=_due_in_s)
        await shares.rest(holder)

    async def rest_for(self, worked_s: float) -> None:
        """Charge `worked_s` of work that was not part of a step, then rest."""
        self._charge(worked_s)
        await self.rest()

    def waited(self, waited_s: float) -> None:
        """Count the waiting time of a write, unless the write was costly itself."""
        if self._begun:
            return
        (shares, address), *_ = self._accounts
        shares.count_wait(address, waited_s)
        if shares.of_principals is not None:  # where those without a principal wait beside the others
            shares.of_principals.count_wait(self._accounts[-1][1], waited_s)

    async def come_to_share(self) -> None:
        """Rest if the client has used more than its share; otherwise return at once."""
        account = max(self._accounts, key=_due_in_s)
        if _due_in_s(account) > 0:
            await account[0].rest(account[1])

    async def begin(self) -> None:
        """Begin costly work as `TimeShares.begin` does. A request that has begun already does not wait for itself."""
        if not self._begun:
            self._open = self._accounts
            while True:  # an account may be used while this waits for the other one
                waited = [await shares.until_free(holder) for shares, holder in self._open]
                if not any(waited[1:]):
                    break
            for shares, holder in self._open:
                shares.open(holder)
        self._begun += 1

    def end(self) -> None:
        self._begun -= 1
        if not self._begun:
            for shares, holder in self._open:
                shares.end(holder)

    def settled_s(self) -> float:
        """Return the seconds of all steps so far, the present one included."""
        if self._resumed_s is not None:
            self._settle()
        return self.worked_s

    def _settle(self) -> None:
        now_s = time.perf_counter()
        worked_s = now_s - (now_s if self._resumed_s is None else self._resumed_s)
        self._resumed_s = now_s
        self.worked_s += worked_s
        if worked_s >= CHARGED_S_MIN:
            self._charge(worked_s)

    def _charge(self, worked_s: float) -> None:
        """Charge the accounts, unless a window of this request is open: a window is charged as a whole."""
        if not self._begun:
            for shares, holder in self._accounts:
                shares.charge(holder, worked_s)


def _due_in_s(account: tuple[TimeShares, str]) -> float:
    shares, holder = account
    return shares.due_in_s(holder)


PRINCIPAL_SENDER: Final = "principal "
"""Begins the sender that is a principal, who may be called like an address."""

_client: ContextVar[Client | None] = ContextVar("client", default=None)


def begin(shares: TimeShares, address: str) -> Client:
    """Note that this task handles a request of `address` from now on, and return its client."""
    client = Client(shares, address)
    _client.set(client)
    return client


def current() -> Client | None:
    """Return the client whose request this task handles; None in a task without a request."""
    return _client.get()


def send_as(name: str) -> None:
    """Note the principal whose request this task handles."""
    client = _client.get()
    if client is not None:
        client.becomes(name)


def sender() -> str:
    """Return the sender of the proposals of this task; empty for work of the node itself."""
    client = _client.get()
    return "" if client is None else client.sender


@types.coroutine
def charged(client: Client, work: Coroutine[Any, Any, Value]) -> Generator[Any, None, Value]:
    """Await `work`, and charge each of its steps to the client."""
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
    """Let the loop run everything else that waits, after `worked_s` of work. A client that uses more than its share
    rests longer.
    """
    client = _client.get()
    if client is None:
        await asyncio.sleep(0)
    else:
        await client.rest(worked_s)


class _Recent:
    """Sums amounts by address, for the last full second and the present one. The larger sum counts."""

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
