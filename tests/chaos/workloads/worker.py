"""Shared parts of all workloads: the topics, the pace, and the meaning of an error for a message."""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

import msgspec

import keelmq
from keelmq.errors import Closed, Unavailable
from tests.chaos.history import History
from tests.chaos.ledger import Book, WorkerLedger
from tests.chaos.reads import QueueReads
from tests.chaos.violations import Kind, Violations

PLAIN_TOPIC: Final = "chaos-plain"
KEYED_TOPIC: Final = "chaos-keyed"
TRANSACTION_TOPICS: Final = ("chaos-debit", "chaos-credit")
DELAYED_TOPIC: Final = "chaos-delayed"
TOPICS: Final = {PLAIN_TOPIC: 4, KEYED_TOPIC: 4, "chaos-debit": 2, "chaos-credit": 2, DELAYED_TOPIC: 2}
"""Topics and their numbers of queues."""
EXPIRING_TOPIC: Final = "chaos-expiring"
"""Not among TOPICS: its messages expire, so the checkers of the other topics must not judge it."""


class Field(msgspec.Struct, frozen=True):
    """The cluster, the book and the collectors that all workloads share."""

    urls: tuple[str, ...]
    run_id: str
    book: Book
    reads: QueueReads
    history: History
    violations: Violations
    seed: int

    def rng(self, name: str) -> random.Random:
        """Return a source of choices of its own for every worker."""
        return random.Random(f"{self.seed} {name}")

    async def put_group(self, group: str, retry_max_attempts: int, retry_delays_ms: Sequence[int]) -> None:
        """Set the group's limits, on a cluster that is ready. Idempotent."""
        connection = keelmq.Connection(self.urls)
        try:
            await keelmq.Admin(connection).put_group(
                group, retry_max_attempts=retry_max_attempts, retry_delays_ms=retry_delays_ms
            )
        finally:
            connection.close()


class Workload(Protocol):
    async def run(self, stop: asyncio.Event) -> None:
        """Work until told to stop; nothing is under way on return."""


async def paced(step: Callable[[], Awaitable[object]], interval_s: float, stop: asyncio.Event) -> None:
    """Call `step` repeatedly, at most once per `interval_s`. Lost time is not made up for."""
    loop = asyncio.get_running_loop()
    while not stop.is_set():
        begun_s = loop.time()
        await step()
        left_s = begun_s + interval_s - loop.time()
        if left_s > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), left_s)
        else:
            await asyncio.sleep(0)


def settle_error(field: Field, ledger: WorkerLedger, first: int, count: int, error: Exception, begin_s: float) -> None:
    """Note an error's meaning for the messages: certainly not stored, or unknown. Unexpected errors are violations."""
    if isinstance(error, Unavailable):
        ledger.failed(first, count)
        outcome = "fail"
    else:
        outcome = "unknown"
        expected = isinstance(error, keelmq.KeelMQError) and (error.outcome_unknown or isinstance(error, Closed))
        if not expected:
            field.violations.add(Kind.CONTRACT, f"{ledger.name}: {type(error).__name__}: {error}")
    write_operation(field, ledger, first, count, begin_s, outcome, error=str(error)[:200])


def write_operation(
    field: Field, ledger: WorkerLedger, first: int, count: int, begin_s: float, outcome: str, **more: object
) -> None:
    field.history.write(
        "send",
        worker=ledger.worker,
        name=ledger.name,
        begin_s=round(begin_s, 4),
        first=first,
        count=count,
        outcome=outcome,
        **more,
    )


async def create_topics(urls: Sequence[str]) -> None:
    """Make every topic of the run, on a cluster that is ready. Idempotent."""
    connection = keelmq.Connection(urls)
    try:
        for topic, queues in TOPICS.items():
            body = msgspec.json.encode({"queues": queues, "type": "any"})
            await connection.call("PUT", f"/v1/topics/{topic}", body=body)
    finally:
        connection.close()
