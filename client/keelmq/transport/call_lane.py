"""Lanes of calls: calls made in the same loop iteration share one request, as sends do (producing/lane.py).

A single call is sent alone, at once. While `IN_FLIGHT_MAX` requests are in flight, new calls collect into the next
request. A call with less time left than answers take is not sent (answer_time.py).
"""

import asyncio
import math
from collections import deque
from collections.abc import Sequence
from typing import Final, Generic, Protocol, TypeVar

from keelmq.errors import (
    BrokerFault,
    Closed,
    Corrupt,
    KeelMQError,
    SendTimeout,
    Unavailable,
    closed_in_flight,
    error_from_problem,
)
from keelmq.transport.answer_time import AnswerTime
from keelmq.transport.connection import Connection, Unfinished
from keelmq.transport.http1 import HttpResponse
from keelmq.transport.retry import Deadline
from keelmq.wire import MSGPACK, PartResult

IN_FLIGHT_MAX: Final = 2
EXPIRY_GRACE_S: Final = 0.1
"""Extra seconds that an expired call waits for its request, whose error is more precise."""

EXPIRY_STEP_S: Final = 0.02
"""Least seconds between two looks for expired calls: many that expire one by one cost no look each."""

Item = TypeVar("Item")
Asked = TypeVar("Asked", contravariant=True)
Result = TypeVar("Result", bound=PartResult)


class CallLike(Protocol[Asked, Result]):
    """Sends and decodes calls of one kind."""

    async def send_one(self, item: Asked, deadline: Deadline, answers: AnswerTime) -> Result:
        """Send one call by itself and report its answer time to `answers`. Raises what Connection.call raises."""
        ...

    def encode_all(self, items: Sequence[Asked]) -> bytes:
        """Encode the body of one request for all items."""
        ...

    def decode_all(self, response: HttpResponse) -> Sequence[Result]:
        """Decode the results in the order of the items. Raises Corrupt when the answer cannot be read."""
        ...

    def is_about(self, result: Result, item: Asked) -> bool: ...


class Waiting(Generic[Item, Result]):
    """A pending call with its future. `size` is its share of the size limit of a request.

    `expires_s` is the loop time at which the call fails if its request has not ended by then.
    """

    __slots__ = ("deadline", "expires_s", "future", "item", "sent", "size")

    def __init__(self, item: Item, size: int, deadline: Deadline, loop: asyncio.AbstractEventLoop) -> None:
        self.item = item
        self.size = size
        self.deadline = deadline
        self.expires_s = loop.time() + deadline.remaining_s() + EXPIRY_GRACE_S
        self.future: asyncio.Future[Result] = loop.create_future()
        self.sent = False

    def resolve(self, result: Result) -> None:
        if not self.future.done():
            self.future.set_result(result)

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)

    def expire(self) -> None:
        if self.sent:
            end = f"no success within {self.deadline.budget_ms:.0f} ms"
            detail = f"{end}, it may or may not have taken effect; repeat with the same id"
            self.fail(SendTimeout("send_timeout", detail))
        else:
            end = f"too little is left of the {self.deadline.budget_ms:.0f} ms"
            self.fail(Unavailable("not_sent", f"{end}, nothing was sent: earlier calls wait for their answers"))


class Expiries(Generic[Item, Result]):
    """Expires the open calls of a lane with one timer for all: each call would pay for a timer of its own, and for
    cancelling it.
    """

    def __init__(self) -> None:
        self._open: set[Waiting[Item, Result]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._wakes_s = math.inf

    def add(self, waiting: Waiting[Item, Result]) -> None:
        self._open.add(waiting)
        if waiting.expires_s < self._wakes_s:
            self._wake_at(waiting.expires_s)

    def remove(self, waiting: Waiting[Item, Result]) -> None:
        self._open.discard(waiting)
        if not self._open:
            self._wake_at(math.inf)

    def _wake_at(self, at_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._wakes_s = at_s
        self._timer = None if at_s == math.inf else asyncio.get_running_loop().call_at(at_s, self._expire)

    def _expire(self) -> None:
        now_s = max(asyncio.get_running_loop().time(), self._wakes_s)
        for waiting in self._open:
            if waiting.expires_s <= now_s:
                waiting.expire()
        later = (waiting.expires_s for waiting in self._open if waiting.expires_s > now_s)
        self._wake_at(max(min(later, default=math.inf), now_s + EXPIRY_STEP_S))


class CallLane(Generic[Item, Result]):
    """Sends calls of one kind. Belongs to one event loop.

    A request holds at most `count_max` calls and, unless it has a single call, a total size of at most `size_max`.
    """

    def __init__(
        self,
        connection: Connection,
        target: str,
        kind: CallLike[Item, Result],
        *,
        tries: int | None,
        count_max: int,
        size_max: int,
    ) -> None:
        """Create a lane. `target` receives the requests with several calls; Connection.call describes `tries`."""
        self._connection = connection
        self._target = target
        self._kind = kind
        self._tries = tries
        self._count_max = count_max
        self._size_max = size_max
        self._answers = AnswerTime()
        self._expiries: Expiries[Item, Result] = Expiries()
        self._waiting: deque[Waiting[Item, Result]] = deque()
        self._workers: set[asyncio.Task[None]] = set()

    async def call(self, item: Item, size: int, deadline: Deadline) -> Result:
        """Send a call and return its result.

        Raises what the call raises when it is sent alone, and Unavailable (`not_sent`) when its time was over before it
        could be sent. Cancelling the call takes it back only while it waits to be sent.
        """
        waiting: Waiting[Item, Result] = Waiting(item, size, deadline, asyncio.get_running_loop())
        self._waiting.append(waiting)
        if len(self._workers) < IN_FLIGHT_MAX:
            self._workers.add(asyncio.create_task(self._work()))
        self._expiries.add(waiting)
        try:
            return await waiting.future
        finally:
            self._expiries.remove(waiting)

    async def _work(self) -> None:
        # Starts one loop iteration after the first call was added, so all calls of that iteration go together.
        task = asyncio.current_task()
        assert task is not None
        try:
            while calls := self._take_request():
                await self._send(calls)
        finally:
            # At once, not in a done callback: a call added in between would find every worker taken and stay.
            self._workers.discard(task)

    def _take_request(self) -> list[Waiting[Item, Result]]:
        """Take the pending calls of the next request, without abandoned ones; at least one if any is left."""
        calls: list[Waiting[Item, Result]] = []
        size = 0
        needed_s, budget_ms = 0.0, -1.0
        while self._waiting and len(calls) < self._count_max:
            waiting = self._waiting[0]
            deadline = waiting.deadline
            if deadline.budget_ms != budget_ms:  # hardly ever differs between the calls of a lane
                budget_ms = deadline.budget_ms
                needed_s = self._answers.needed_s(budget_ms / 1000)
            if deadline.remaining_s() < needed_s:
                waiting.expire()
            if not waiting.future.done():
                if calls and size + waiting.size > self._size_max:
                    break
                size += waiting.size
                waiting.sent = True
                calls.append(waiting)
            self._waiting.popleft()
        return calls

    async def _send(self, calls: Sequence[Waiting[Item, Result]]) -> None:
        try:
            if len(calls) == 1:
                await self._send_one(calls[0])
            else:
                await self._send_all(calls)
        except asyncio.CancelledError:
            _fail(calls, closed_in_flight("the client was closed; the call may or may not have taken effect"))
            raise
        except Exception as exc:  # whatever the error is, no caller may be left waiting
            _fail(calls, exc)

    async def _send_one(self, waiting: Waiting[Item, Result]) -> None:
        try:
            waiting.resolve(await self._kind.send_one(waiting.item, waiting.deadline, self._answers))
        except KeelMQError as exc:
            waiting.fail(exc)

    async def _send_all(self, calls: Sequence[Waiting[Item, Result]]) -> None:
        answers = _Answers(self._kind, calls)
        try:
            await self._connection.call(
                "POST",
                self._target,
                body=answers.body(),
                content_type=MSGPACK,
                accept=MSGPACK,
                # The longest remaining budget; the other calls end earlier, by their own timers.
                deadline=max((waiting.deadline for waiting in calls), key=lambda deadline: deadline.at_s),
                tries=self._tries,
                unfinished=answers.take,
                answers=self._answers,
            )
        except KeelMQError as exc:
            if exc.retryable or exc.outcome_unknown or isinstance(exc, BrokerFault | Corrupt | Closed):
                raise
            # The request was refused as a whole, so nothing was done. Sending each call alone finds the culprit.
            await asyncio.gather(*map(self._send_one, answers.open))


class _Answers(Generic[Item, Result]):
    """Distributes the answers to the calls of a request; `open` are the calls that still have to be sent (again)."""

    def __init__(self, kind: CallLike[Item, Result], calls: Sequence[Waiting[Item, Result]]) -> None:
        self._kind = kind
        self.open = list(calls)

    def body(self) -> bytes:
        return self._kind.encode_all([waiting.item for waiting in self.open])

    def take(self, response: HttpResponse, stored_perhaps: bool) -> Unfinished | None:
        """Finish every call with a final answer; return the next request for the others and its reason, or None."""
        results = self._kind.decode_all(response)
        pairs = list(zip(self.open, results, strict=False))
        if len(results) != len(self.open) or not all(self._kind.is_about(result, each.item) for each, result in pairs):
            raise Corrupt("invalid_response", "the broker's answer is not about what it was asked for")
        self.open = []
        errors: list[KeelMQError] = []
        for waiting, result in pairs:
            if result.problem is None:
                waiting.resolve(result)
                continue
            status = result.problem.get("status")
            error = error_from_problem(status if isinstance(status, int) else 0, result.problem)
            if error.retryable:
                errors.append(error)
                self.open.append(waiting)
            else:
                error.outcome_unknown = error.outcome_unknown or stored_perhaps
                waiting.fail(error)
        if not self.open:
            return None
        worst = next((error for error in errors if error.outcome_unknown), errors[0])
        return Unfinished(worst, self.body())


def _fail(calls: Sequence[Waiting[Item, Result]], error: Exception) -> None:
    for waiting in calls:
        waiting.fail(error)
