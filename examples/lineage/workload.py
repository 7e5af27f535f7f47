"""Orders, shipments and invoices: transactions of every outcome, retries, dead letters, handlers that send onward.

    web (plain) ─┐                  ┌─ shipping ─► shipments ── billing (transactions) ─► invoices
    shop (transactions) ─► orders ──┤
                                    └─ audit reads all three topics

The fate of an order follows from its number, so a send or a handler that runs twice has the same effect twice.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import aiohttp

from examples.lineage.truth import Truth
from keelmq import (
    Consumer,
    Decision,
    KeelMQError,
    Message,
    Producer,
    ReceivedMessage,
    RetryLater,
    Transaction,
    TransactionProducer,
)
from keelmq.errors import TransactionConflict

ORDERS: Final = "orders"
SHIPMENTS: Final = "shipments"
INVOICES: Final = "invoices"
GROUPS: Final = ("shipping", "billing", "audit")
RETRY_ATTEMPTS: Final = 2
RETRY_DELAY_MS: Final = 300
CHECK_AFTER_MS: Final = 1_000
CONCURRENCY: Final = 16
AGAIN_S: Final = 0.1

T = TypeVar("T")


class Workload:
    """Runs the producers and consumers of one run. `truth` is complete once `_settled` returns True."""

    def __init__(self, servers: list[str], orders_per_s: float) -> None:
        self.servers = servers
        self.truth = Truth()
        self.placed = 0
        self._pause_s = 1 / orders_per_s
        self._undecided: set[str] = set()
        self._outcomes: dict[str, str] = {}
        self._due: set[tuple[str, str]] = set()
        """Pairs of group and node that still have to be processed, or to become dead letters."""
        self._done: set[tuple[str, str]] = set()
        self._asked = 0

    async def prepare(self) -> None:
        """Create topics and groups."""
        async with aiohttp.ClientSession(raise_for_status=True) as http:
            for topic in (ORDERS, SHIPMENTS, INVOICES):
                await http.put(f"{self.servers[0]}/v1/topics/{topic}", json={"queues": 4, "type": "any"})
            for group in GROUPS:
                settings = {"retry_max_attempts": RETRY_ATTEMPTS, "retry_delays_ms": [RETRY_DELAY_MS]}
                await http.put(f"{self.servers[0]}/v1/groups/{group}", json=settings)

    async def run(self, enough: Callable[[], bool]) -> None:
        """Place orders at a steady pace until `enough`, then wait until everything is processed."""
        async with contextlib.AsyncExitStack() as stack:
            self._web = await stack.enter_async_context(Producer(self.servers, group="web"))
            self._onward = await stack.enter_async_context(Producer(self.servers))
            self._shop = await stack.enter_async_context(TransactionProducer(self.servers, "shop", check=self._check))
            self._billing = await stack.enter_async_context(
                TransactionProducer(self.servers, "billing", check=self._check)
            )
            for group, topics, handler in (
                ("shipping", [ORDERS], self._ship),
                ("billing", [SHIPMENTS], self._bill),
                ("audit", [ORDERS, SHIPMENTS, INVOICES], self._audit),
            ):
                consumer = Consumer(
                    self.servers, group, topics, handler, start="earliest", ordered=False, concurrency=CONCURRENCY,
                    commit_interval_ms=200,
                )  # fmt: skip
                await stack.enter_async_context(consumer)
            async with asyncio.TaskGroup() as tasks:
                while not enough():
                    tasks.create_task(self._order(self.placed))
                    self.placed += 1
                    await asyncio.sleep(self._pause_s)
            while not await self._settled():  # noqa: ASYNC110 - the broker knows it
                await asyncio.sleep(AGAIN_S)

    # Orders

    async def _order(self, number: int) -> None:
        order = f"order-{number:06d}"
        if number % 3 == 0:
            send = {"message_id": order, "keys": [order]}
            await _until_answered(lambda: self._web.send(ORDERS, b"plain", **send))  # type: ignore[arg-type]
            node = self.truth.sent(ORDERS, order, "web")
            self.truth.published(node)
            self._expect(node, number)
        else:
            await self._transaction(self._shop, ORDERS, order, _outcome_of_order(number), number)

    def _expect(self, node: str, number: int) -> None:
        """Record which groups will process an order, and after how many attempts."""
        dies = number % 50 == 7
        if dies:
            self.truth.given_back(node, "shipping", RETRY_ATTEMPTS, dead=True)
        else:
            if number % 20 == 4:
                self.truth.given_back(node, "shipping", 1)
            self.truth.consumed(node, "shipping")
        self.truth.consumed(node, "audit")
        self._due |= {("shipping", node), ("audit", node)}

    async def _transaction(
        self, producer: TransactionProducer, topic: str, name: str, outcome: str, number: int, cause: str | None = None
    ) -> None:
        """Commit, roll back, or leave the decision to the check (`later-…`), which never decides a few of them."""
        transaction_id = f"t-{name}"
        self._outcomes[transaction_id] = outcome
        node = self.truth.sent(topic, name, producer.group, cause)

        async def local(transaction: Transaction) -> Decision:
            if outcome.startswith("later") or outcome == "prepared":
                return Decision.UNKNOWN
            return Decision.COMMIT if outcome == "committed" else Decision.ROLLBACK

        message = Message(topic=topic, body=b"in a transaction", message_id=name, keys=[name])
        options: dict[str, Any] = {"transaction_id": transaction_id, "check_after_ms": CHECK_AFTER_MS}
        with contextlib.suppress(TransactionConflict):  # an earlier try was decided, with the same outcome
            await _until_answered(lambda: producer.execute(message, local, **options))
        state = outcome.removeprefix("later-")
        self.truth.decided(transaction_id, state, [node])
        if state == "prepared":
            self._undecided.add(transaction_id)
        elif state == "committed" and topic == ORDERS:
            self._expect(node, number)
        elif state == "committed":
            self.truth.consumed(node, "audit")
            self._due.add(("audit", node))

    async def _check(self, transaction: Transaction) -> Decision:
        outcome = self._outcomes.get(transaction.id, "prepared").removeprefix("later-")
        return {"committed": Decision.COMMIT, "rolled_back": Decision.ROLLBACK}.get(outcome, Decision.UNKNOWN)

    # Handlers

    async def _ship(self, message: ReceivedMessage) -> None:
        number = int(message.message_id.rpartition("-")[2])
        if number % 50 == 7:
            if message.attempt == RETRY_ATTEMPTS:
                self._done.add(("shipping", _node_of(message)))
            raise RetryLater(reason="nobody can ship this")
        if number % 20 == 4 and message.attempt == 0:
            raise RetryLater(reason="out of stock")
        shipment = f"shipment-{number:06d}"
        # An error would give the message back, which only planned failures do: the truth counts the attempts.
        await _until_answered(lambda: self._onward.send(SHIPMENTS, b"shipped", message_id=shipment))
        node = self.truth.sent(SHIPMENTS, shipment, "shipping", _node_of(message))
        self.truth.published(node)
        for group in ("billing", "audit"):
            self.truth.consumed(node, group)
            self._due.add((group, node))
        self._done.add(("shipping", _node_of(message)))

    async def _bill(self, message: ReceivedMessage) -> None:
        number = int(message.message_id.rpartition("-")[2])
        outcome = "rolled_back" if number % 11 == 3 else "committed"
        invoice = f"invoice-{number:06d}"
        await self._transaction(self._billing, INVOICES, invoice, outcome, number, _node_of(message))
        self._done.add(("billing", _node_of(message)))

    async def _audit(self, message: ReceivedMessage) -> None:
        self._done.add(("audit", _node_of(message)))

    # The end

    async def _settled(self) -> bool:
        """Return whether all transactions are decided as planned, and all messages processed and committed."""
        if self._due - self._done:
            return False
        self._asked = (self._asked + 1) % len(self.servers)  # one of the nodes may be dead
        try:
            async with aiohttp.ClientSession(raise_for_status=True, timeout=aiohttp.ClientTimeout(total=5)) as http:
                async with http.get(f"{self.servers[self._asked]}/v1/cluster") as answer:
                    leader = (await answer.json())["leader_url"]
                if leader is None:
                    return False
                async with http.get(f"{leader}/v1/transactions?state=prepared&limit=1000") as answer:
                    prepared = {each["transaction_id"] for each in (await answer.json())["transactions"]}
                if prepared != self._undecided:
                    return False
                for group in GROUPS:
                    async with http.get(f"{leader}/v1/groups/{group}/offsets") as answer:
                        if any(each["lag"] for each in (await answer.json())["offsets"]):
                            return False
        except (aiohttp.ClientError, TimeoutError):
            return False
        return not self._due - self._done


def _outcome_of_order(number: int) -> str:
    if number % 97 == 5:
        return "prepared"
    if number % 13 == 1:
        return "later-committed" if number % 2 else "later-rolled_back"
    return "rolled_back" if number % 7 == 2 else "committed"


def _node_of(message: ReceivedMessage) -> str:
    topic = message.topic if message.origin is None else message.origin.topic
    return f"message:{topic}/{message.message_id}"


async def _until_answered(call: Callable[[], Awaitable[T]]) -> T:
    """Repeat a call that the leader's death interrupted; all calls are idempotent."""
    while True:
        try:
            return await call()
        except TransactionConflict:
            raise
        except KeelMQError as exc:
            if not exc.retryable:
                raise
            await asyncio.sleep(AGAIN_S)
