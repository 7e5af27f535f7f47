"""Orders, shipments and invoices: transactions of every outcome, retries, dead letters, handlers that send onward.

    web (plain) ─┐                  ┌─ shipping ─► shipments ── billing (transactions) ─► invoices
    shop (transactions) ─► orders ──┤         └──► notes, whose cause is named without its topic
                                    ├─ points: dead letters that are processed after a reset
                                    ├─ gifts selects by tag, and gives some back
                                    ├─ europe selects by properties, and after a reset by others
                                    └─ audit reads all three topics
    meter (batches of 100) ─► readings ── ledger (a batch in one call) ─► totals
    web also schedules reminders, and cancels them

The fate of an order follows from its number, so a send or a handler that runs twice has the same effect twice.
"""

import asyncio
import contextlib
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

import aiohttp

from examples.lineage.truth import Truth
from keelmq import (
    Admin,
    Connection,
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
NOTES: Final = "notes"
READINGS: Final = "readings"
TOTALS: Final = "totals"
REMINDERS: Final = "reminders"
QUEUES: Final = {ORDERS: 4, SHIPMENTS: 4, INVOICES: 4, NOTES: 1, READINGS: 1, TOTALS: 1, REMINDERS: 1}
ATTEMPTS: Final = {"shipping": 2, "billing": 2, "audit": 2, "points": 0, "ledger": 2, "gifts": 2, "europe": 2}
GROUPS: Final = tuple(ATTEMPTS)
GIFT: Final = "gift"
ORDERS_OF_EUROPE: Final = "region = 'eu'"
LARGE_ORDERS_OF_EUROPE: Final = "region = 'eu' AND size > 3"
READINGS_OF_BATCH: Final = 100
REMIND_AFTER_MS: Final = 3_600_000
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
        self._small_of_europe: list[str] = []
        """Nodes of orders that the group europe selects after its reset only."""
        self._asked = 0
        self._is_reset = False

    async def prepare(self) -> None:
        """Create topics and groups."""
        async with aiohttp.ClientSession(raise_for_status=True) as http:
            for topic, queues in QUEUES.items():
                await http.put(f"{self.servers[0]}/v1/topics/{topic}", json={"queues": queues, "type": "any"})
            for group, attempts in ATTEMPTS.items():
                settings = {"retry_max_attempts": attempts, "retry_delays_ms": [RETRY_DELAY_MS]}
                await http.put(f"{self.servers[0]}/v1/groups/{group}", json=settings)

    async def run(self, enough: Callable[[], bool]) -> None:
        """Place orders at a steady pace until `enough`, then wait until everything is processed."""
        async with contextlib.AsyncExitStack() as stack:
            self._web = await stack.enter_async_context(Producer(self.servers, group="web"))
            self._meter = await stack.enter_async_context(Producer(self.servers, group="meter"))
            self._onward = await stack.enter_async_context(Producer(self.servers))
            connection = Connection(self.servers)
            stack.callback(connection.close)
            self._admin = Admin(connection)
            self._shop = await stack.enter_async_context(TransactionProducer(self.servers, "shop", check=self._check))
            self._billing = await stack.enter_async_context(
                TransactionProducer(self.servers, "billing", check=self._check)
            )
            for group, topics, handler in (
                ("shipping", [ORDERS], self._ship),
                ("billing", [SHIPMENTS], self._bill),
                ("points", [ORDERS], self._points),
                ("audit", [ORDERS, SHIPMENTS, INVOICES], self._audit),
            ):
                consumer = Consumer(
                    self.servers, group, topics, handler, start="earliest", ordered=False, concurrency=CONCURRENCY,
                    commit_interval_ms=200,
                )  # fmt: skip
                await stack.enter_async_context(consumer)
            ledger = Consumer(
                self.servers, "ledger", [READINGS], batch_handler=self._ledger, start="earliest",
                max_messages=READINGS_OF_BATCH, commit_interval_ms=200,
            )  # fmt: skip
            await stack.enter_async_context(ledger)
            gifts = Consumer(self.servers, "gifts", [ORDERS], self._gifts, start="earliest", tags=GIFT)
            await stack.enter_async_context(gifts)
            europe = await stack.enter_async_context(contextlib.AsyncExitStack())
            await europe.enter_async_context(self._europe(LARGE_ORDERS_OF_EUROPE))
            async with asyncio.TaskGroup() as tasks:
                while not enough():
                    tasks.create_task(self._order(self.placed))
                    if self.placed % 40 == 0:
                        tasks.create_task(self._read_meters(self.placed))
                        tasks.create_task(self._remind(self.placed))
                    self.placed += 1
                    await asyncio.sleep(self._pause_s)
            await self._until_settled()
            await self._reset_points()
            await europe.aclose()
            await self._reset_europe()
            await stack.enter_async_context(self._europe(ORDERS_OF_EUROPE))
            await self._until_settled()

    # Orders

    async def _order(self, number: int) -> None:
        order = f"order-{number:06d}"
        if number % 3 == 0:
            send = {"message_id": order, "keys": [order], **_attributes(number)}
            await _until_answered(lambda: self._web.send(ORDERS, b"plain", **send))
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
        if number % 30 == 8:
            self.truth.given_back(node, "points", 0, dead=True)
        else:
            self.truth.consumed(node, "points")
        self.truth.consumed(node, "audit")
        groups = {"shipping", "audit", "points"}
        if number % 4 == 0:
            groups.add("gifts")
            self.truth.consumed(node, "gifts")
            if number % 40 == 24:
                self.truth.given_back(node, "gifts", 1)
        if number % 2 == 0 and number % 10 > 3:
            groups.add("europe")
            self.truth.consumed(node, "europe")
        elif number % 2 == 0:
            self._small_of_europe.append(node)
        self._due |= {(group, node) for group in groups}

    async def _transaction(
        self, producer: TransactionProducer, topic: str, name: str, outcome: str, number: int, cause: str | None = None
    ) -> None:
        """Commit, roll back, or leave the decision to the check (`later-…`), which never decides a few of them."""
        transaction_id = f"t-{name}"
        self._outcomes[transaction_id] = outcome
        node = self.truth.sent(topic, name, producer.group, *([cause] if cause is not None else []))

        async def local(transaction: Transaction) -> Decision:
            if outcome.startswith("later") or outcome == "prepared":
                return Decision.UNKNOWN
            return Decision.COMMIT if outcome == "committed" else Decision.ROLLBACK

        attributes = _attributes(number) if topic == ORDERS else {}
        message = Message(topic=topic, body=b"in a transaction", message_id=name, keys=[name], **attributes)
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

    async def _read_meters(self, number: int) -> None:
        """Send a batch that one call of a handler processes."""
        ids = [f"reading-{number:06d}-{each:03d}" for each in range(READINGS_OF_BATCH)]
        batch = [Message(body=b"1", message_id=each) for each in ids]
        await _until_answered(lambda: self._meter.send_batch(READINGS, batch))
        for each in ids:
            node = self.truth.sent(READINGS, each, "meter")
            self.truth.published(node)
            self.truth.consumed(node, "ledger")
            self._due.add(("ledger", node))

    async def _remind(self, number: int) -> None:
        """Schedule a message and cancel it: it is in no topic, and counts nowhere."""
        reminder = f"reminder-{number:06d}"
        send = {"message_id": reminder, "delay_ms": REMIND_AFTER_MS}
        await _until_answered(lambda: self._web.send(REMINDERS, b"later", **send))  # type: ignore[arg-type]
        await _until_answered(lambda: self._admin.cancel_scheduled(REMINDERS, reminder))
        self.truth.cancelled(self.truth.sent(REMINDERS, reminder, "web"))

    async def _reset_points(self) -> None:
        """Have the group process everything once more, its dead letters too."""
        self._is_reset = True
        await self._reset("points")
        for src, dst, kind in list(self.truth.edges):
            if (dst, kind) == ("consumer_group:points", "DEAD_LETTERED"):
                self.truth.consumed(src, "points")

    async def _reset_europe(self) -> None:
        """Have the group read everything once more; its next consumer selects other orders."""
        await self._reset("europe")
        for node in self._small_of_europe:
            self.truth.consumed(node, "europe")
        self._due |= {("europe", node) for node in self._small_of_europe}

    async def _reset(self, group: str) -> None:
        before = [each for each in await self._offsets(group, ORDERS) if each["offset"]]
        await _until_answered(lambda: self._admin.reset_group(group, ORDERS, to="earliest"))
        self.truth.resets |= {(group, ORDERS, each["queue"]) for each in before}

    # Handlers

    def _europe(self, filter: str) -> Consumer:
        return Consumer(self.servers, "europe", [ORDERS], self._european, start="earliest", filter=filter)

    async def _european(self, message: ReceivedMessage) -> None:
        self._done.add(("europe", _node_of(message)))

    async def _gifts(self, message: ReceivedMessage) -> None:
        if int(message.message_id.rpartition("-")[2]) % 40 == 24 and message.attempt == 0:
            raise RetryLater(reason="no paper")
        self._done.add(("gifts", _node_of(message)))

    async def _points(self, message: ReceivedMessage) -> None:
        self._done.add(("points", _node_of(message)))
        if int(message.message_id.rpartition("-")[2]) % 30 == 8 and not self._is_reset:
            raise RetryLater(reason="no such account")

    async def _ledger(self, messages: Sequence[ReceivedMessage]) -> None:
        nodes = [_node_of(message) for message in messages]
        total = f"total-{hashlib.sha256(''.join(nodes).encode()).hexdigest()[:16]}"
        await _until_answered(lambda: self._onward.send(TOTALS, b"sum", message_id=total))
        self.truth.published(self.truth.sent(TOTALS, total, "ledger", *nodes))
        self._done |= {("ledger", node) for node in nodes}

    async def _note(self, number: int, order: str) -> None:
        """Send a message whose cause is named by an application that does not know about topics."""
        note = f"note-{number:06d}"
        properties = {"causation_id": order}
        await _until_answered(lambda: self._onward.send(NOTES, b"note", message_id=note, properties=properties))
        self.truth.published(self.truth.sent(NOTES, note, "shipping", f"message:?/{order}"))

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
        if number % 5 == 0:
            await self._note(number, message.message_id)
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

    async def _until_settled(self) -> None:
        while not await self._settled():  # noqa: ASYNC110 - the broker knows it
            await asyncio.sleep(AGAIN_S)

    async def _offsets(self, group: str, topic: str) -> list[dict[str, Any]]:
        """Return what the group has committed, as the leader knows it."""
        async with (
            aiohttp.ClientSession(raise_for_status=True) as http,
            http.get(f"{self.servers[self._asked]}/v1/groups/{group}/offsets?topic={topic}") as answer,
        ):
            offsets: list[dict[str, Any]] = (await answer.json())["offsets"]
        return offsets

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


def _attributes(number: int) -> dict[str, Any]:
    """Return the tag and the properties of an order, by which groups select."""
    properties = {"region": "us" if number % 2 else "eu", "size": str(number % 10)}
    return {"properties": properties, **({"tag": GIFT} if number % 4 == 0 else {})}


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
