"""Pop consumers that forget messages, give them back, hold on to them, and crash with them."""

import asyncio
import contextlib
import time
from collections.abc import Sequence
from typing import Any, Final

import msgspec

import keelmq
from keelmq.consuming.pop_calls import PopCalls, PoppedMessage
from keelmq.consuming.selection import EVERYTHING
from keelmq.errors import Closed, Conflict, Unavailable
from keelmq.transport.http1 import HttpResponse
from tests.chaos.checkers.held_messages import HeldMessages
from tests.chaos.message import name_of, number_in
from tests.chaos.violations import Kind
from tests.chaos.workloads.worker import TRANSACTION_TOPICS, Field

POPS_GROUP: Final = "chaos-pops"
POPS_TOPIC: Final = TRANSACTION_TOPICS[0]
POPS_RETRY_TOPIC: Final = f"%RETRY%{POPS_GROUP}"
MAX_ATTEMPTS: Final = 1_000
"""Large limit of attempts: every leap of a clock costs one, and none shall be the last."""
RETRY_DELAYS_MS: Final = (200,)
INVISIBLE_MS: Final = (1_000, 4_000)
WAIT_MS: Final = 1_000
PAUSE_S: Final = 0.2
FORGOTTEN_SHARE, GIVEN_BACK_SHARE, HELD_SHARE = 0.05, 0.1, 0.1


class _PopAnswer(msgspec.Struct):
    """The fields of the answers to a pop and to a request for more time that say when a lease ends."""

    messages: list[dict[str, Any]] = []
    invisible_until_ms: int | None = None
    receipt_handle: str = ""
    outcome: str = ""
    due_at_ms: int | None = None


class PopConnection(keelmq.Connection):
    """Remembers when the lease of each receipt handle ends, by the broker's answers; the SDK hides that."""

    def __init__(self, urls: Sequence[str]) -> None:
        super().__init__(urls)
        self.until_ms: dict[str, int] = {}

    async def call(self, method: str, target: str, **options: Any) -> HttpResponse:
        response = await super().call(method, target, **options)
        if target.endswith(("/pop", "/pop/invisible")):
            answer = msgspec.json.decode(response.body, type=_PopAnswer)
            for message in answer.messages:
                assert answer.invisible_until_ms is not None
                self.until_ms[message["receipt_handle"]] = answer.invisible_until_ms
            if answer.outcome == "held":
                assert answer.due_at_ms is not None
                self.until_ms[answer.receipt_handle] = answer.due_at_ms
        return response


class Pops:
    """Runs the pop consumers. `acked_s` is the time at which a message, by its number, was known to be acknowledged; it
    never comes again after that. `unknown` has the numbers whose acknowledgement was never answered.
    """

    def __init__(self, field: Field, workers: int) -> None:
        self.acked_s: dict[int, float] = {}
        self.unknown: set[int] = set()
        self.held = HeldMessages(field.violations)
        self._field = field
        self._workers = workers
        self._rng = field.rng("pops")

    async def prepare(self) -> None:
        """Set the group's limits, on a cluster that is ready. Idempotent."""
        await self._field.put_group(POPS_GROUP, MAX_ATTEMPTS, RETRY_DELAYS_MS)

    async def run(self, stop: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as tasks:
            for number in range(self._workers):
                tasks.create_task(self._work(f"popper-{number}", stop))

    async def _work(self, name: str, stop: asyncio.Event) -> None:
        connection = PopConnection(self._field.urls)
        calls = PopCalls(connection, POPS_GROUP, POPS_TOPIC, EVERYTHING, name)
        try:
            while not stop.is_set():
                try:
                    await self._round(name, connection, calls)
                except keelmq.KeelMQError as error:
                    if not isinstance(error, Unavailable | Closed) and not error.outcome_unknown:
                        self._field.violations.add(Kind.CONTRACT, f"{name}: {type(error).__name__}: {error}")
                    await asyncio.sleep(PAUSE_S)
        finally:
            connection.close()

    async def _round(self, name: str, connection: PopConnection, calls: PopCalls) -> None:
        begun_s = time.monotonic()
        popped = await calls.pop(self._rng.randint(1, 32), self._rng.randint(*INVISIBLE_MS), WAIT_MS, "earliest")
        finished: list[PoppedMessage] = []
        connection.until_ms, until_ms = {}, connection.until_ms
        for each in popped:
            self._look_at(name, each.message, begun_s, until_ms[each.receipt_handle])
        for each in popped:
            number, attempt = number_in(each.message.body), each.message.attempt
            fate = self._rng.random()
            if fate < FORGOTTEN_SHARE or number is None:
                continue
            with contextlib.suppress(Conflict):  # too late: somebody else has it, or will
                if fate < FORGOTTEN_SHARE + GIVEN_BACK_SHARE:
                    self.held.giving_back(number, attempt)
                    await calls.give_back(each.receipt_handle, at_once=self._rng.random() < 0.5, reason="chaos")
                    continue
                if fate < FORGOTTEN_SHARE + GIVEN_BACK_SHARE + HELD_SHARE:
                    await calls.hold(each.receipt_handle, INVISIBLE_MS[1])
                    self.held.held_until(number, attempt, connection.until_ms[each.receipt_handle])
            finished.append(each)
        await self._acknowledge(calls, finished)

    def _look_at(self, name: str, message: keelmq.ReceivedMessage, begun_s: float, until_ms: int) -> None:
        place = message.origin if message.origin is not None else message
        self._field.reads.read((place.topic, place.queue), place.offset, message.body, name)
        number = number_in(message.body)
        if number is not None:
            self.held.popped(name, number, message.attempt, message.stored_at_ms, until_ms)
        if number is not None and self.acked_s.get(number, begun_s) < begun_s:
            detail = f"{name_of(number)} was acknowledged, and is handed out again: attempt {message.attempt}"
            self._field.violations.add(Kind.RETURNED, detail)

    async def _acknowledge(self, calls: PopCalls, finished: Sequence[PoppedMessage]) -> None:
        if not finished:
            return
        numbers = {each.receipt_handle: number_in(each.message.body) for each in finished}
        try:
            answers = await calls.ack(list(numbers))
        except keelmq.KeelMQError:
            self.unknown.update(number for number in numbers.values() if number is not None)
            raise
        now_s = time.monotonic()
        for handle, number in numbers.items():
            if number is not None and answers.get(handle):
                self.acked_s.setdefault(number, now_s)
