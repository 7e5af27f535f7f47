"""The load: a thread that sends through the SDK as an application would, and notes the answers.

It sends singles that the SDK batches, explicit batches, small and large, and transactions that commit, roll back, or
leave the decision to the broker's check. The check is answered from the ledger, which is this application's durable
state.
"""

import asyncio
import random
import threading
from collections.abc import Sequence
from typing import Final

from keelmq import BatchResult, Decision, KeelMQError, Message, Outcome, Producer, SendResult, TransactionProducer
from keelmq.errors import TransactionConflict, Unavailable, UnknownOutcome
from keelmq.message import Receipt
from keelmq.transactions.decision import Transaction
from keelmq.transactions.transaction import TransactionResult
from tests.chaos.ledger import Place
from tests.patience import PATIENCE_S
from tests.powerloss.ledger import Decided, Half, Ledger, Promise
from tests.powerloss.messages import body_of

TOPICS: Final = ("orders", "payments")
QUEUES: Final = 2
GROUP: Final = "powerloss"
WORKERS: Final = 5
SEND_TIMEOUT_MS: Final = 20_000
DECISION_TIMEOUT_MS: Final = 5_000
RETRIES: Final = 60
PAUSE_MAX_S: Final = 0.01
SINGLES_MAX: Final = 12
BATCH_MAX: Final = 40
LARGE_MESSAGES: Final = 10
LARGE_BYTES: Final = 25_000
_KINDS: Final = ("singles", "batch", "large batch", "transaction")
_WEIGHTS: Final = (6, 3, 0, 3)
_EXPIRING_WEIGHTS: Final = (4, 2, 6, 0)


class Writer:
    """Sends from `start` until `stop`; `pause` holds new operations back and waits until none is under way.

    With `expiring` it sends data that fills the log fast, and no transactions: their outcome is known for three days,
    which would hold the log for as long.
    """

    def __init__(self, servers: Sequence[str], ledger: Ledger, seed: int, *, expiring: bool) -> None:
        self._servers = list(servers)
        self._ledger = ledger
        self._random = random.Random(seed)
        self._weights = _EXPIRING_WEIGHTS if expiring else _WEIGHTS
        self._compress = not expiring
        self._name = f"{seed:x}"
        self._transactions = 0
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="writer", daemon=True)
        self._ready = threading.Event()

    @property
    def started(self) -> bool:
        return self._ready.is_set()

    def start(self) -> None:
        self._thread.start()
        if not self._ready.wait(PATIENCE_S):
            raise TimeoutError("the writer did not start")

    def pause(self) -> None:
        asyncio.run_coroutine_threadsafe(self._hold(), self._loop).result()

    def resume(self) -> None:
        self._loop.call_soon_threadsafe(self._may_send.set)

    def stop(self) -> None:
        """Stop the load; every operation has ended on return."""
        self.abandon()
        self._thread.join()

    def abandon(self) -> None:
        """Begin no more operations; those under way end when their time budget does, or with the process."""
        if self.started and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            self.resume()

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping, self._may_send, self._idle = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._busy = 0
        self._may_send.set()
        async with (
            Producer(
                self._servers, send_timeout_ms=SEND_TIMEOUT_MS, retries=RETRIES, compress=self._compress
            ) as producer,
            TransactionProducer(
                self._servers,
                GROUP,
                check=self._answer_check,
                send_timeout_ms=SEND_TIMEOUT_MS,
                retries=RETRIES,
                decision_timeout_ms=DECISION_TIMEOUT_MS,
            ) as transactions,
        ):
            self._ready.set()
            workers = [asyncio.create_task(self._work(producer, transactions)) for _ in range(WORKERS)]
            await asyncio.gather(*workers)

    async def _hold(self) -> None:
        self._may_send.clear()
        while self._busy:
            self._idle.clear()
            await self._idle.wait()

    async def _work(self, producer: Producer, transactions: TransactionProducer) -> None:
        while not self._stopping.is_set():
            await self._may_send.wait()
            if self._stopping.is_set():
                return
            self._busy += 1
            try:
                await self._one_operation(producer, transactions)
            finally:
                self._busy -= 1
                if not self._busy:
                    self._idle.set()
            await asyncio.sleep(self._random.uniform(0, PAUSE_MAX_S))

    async def _one_operation(self, producer: Producer, transactions: TransactionProducer) -> None:
        (kind,) = self._random.choices(_KINDS, self._weights)
        topic = self._random.choice(TOPICS)
        queue = self._random.choice([None, *range(QUEUES)])
        if kind == "singles":
            numbers = self._ledger.begin(self._random.randint(1, SINGLES_MAX))
            await asyncio.gather(*(self._send_one(producer, topic, queue, number) for number in numbers))
        elif kind == "batch":
            await self._send_batch(producer, topic, queue, self._ledger.begin(self._random.randint(2, BATCH_MAX)))
        elif kind == "large batch":
            await self._send_batch(producer, topic, queue, self._ledger.begin(LARGE_MESSAGES), LARGE_BYTES)
        else:
            await self._transact(transactions)

    async def _send_one(self, producer: Producer, topic: str, queue: int | None, number: int) -> None:
        # Some ids come from the application, the others from the batch.
        message_id = f"m-{self._name}-{number}" if number % 3 else None
        try:
            result = await producer.send(topic, body_of(number), queue=queue, message_id=message_id)
        except KeelMQError as error:
            self._failed([number], error)
        else:
            self._ledger.stored({number: _place(result)}, _promise([number], result.receipt))

    async def _send_batch(
        self, producer: Producer, topic: str, queue: int | None, numbers: list[int], size: int | None = None
    ) -> None:
        try:
            result = await producer.send_batch(topic, [body_of(number, size) for number in numbers], queue=queue)
        except KeelMQError as error:
            self._failed(numbers, error)
        else:
            self._ledger.stored(_places(result, numbers), _promise(numbers, result.receipt))

    async def _transact(self, producer: TransactionProducer) -> None:
        self._transactions += 1
        topics = self._random.sample(TOPICS, self._random.randint(1, len(TOPICS)))
        by_topic = [(topic, self._random.randint(1, 3)) for topic in topics]
        intention: Decided = self._random.choice(("commit", "commit", "rollback"))
        half = self._ledger.begin_half(
            f"t-{self._name}-{self._transactions}", sum(count for _, count in by_topic), intention
        )
        owners = [topic for topic, count in by_topic for _ in range(count)]
        messages = [
            Message(body=body_of(number), topic=topic) for number, topic in zip(half.numbers, owners, strict=True)
        ]
        leave_it_to_the_check = self._random.random() < 0.2

        async def local_transaction(_: Transaction) -> Decision:
            if half.fenced:
                return Decision.ROLLBACK
            half.local_ran = True
            return Decision.UNKNOWN if leave_it_to_the_check else Decision(intention)

        try:
            result = await producer.execute(messages, local_transaction, transaction_id=half.id)
        except TransactionConflict as error:
            if not half.fenced:
                self._ledger.complaints.append(f"transaction {half.id}, which was run: {error}")
        except KeelMQError as error:
            self._expect_outage(error)
        else:
            self._note_outcome(half, owners, result)

    def _note_outcome(self, half: Half, owners: Sequence[str], result: TransactionResult) -> None:
        self._ledger.prepared(_promise(half.numbers, result.receipt))
        if result.outcome is Outcome.ROLLED_BACK:
            self._ledger.decided(half, "rollback")
        elif result.outcome is Outcome.COMMITTED:
            placed = []
            for position in result.positions:
                numbers = [n for n, topic in zip(half.numbers, owners, strict=True) if topic == position.topic]
                if len(numbers) != position.count:
                    self._ledger.complaints.append(f"transaction {half.id}: {position} for {len(numbers)} messages")
                assert position.offset is not None  # nothing was delayed
                placed += [
                    (number, Place(position.topic, position.queue, position.offset + ordinal))
                    for ordinal, number in enumerate(numbers)
                ]
            self._ledger.decided(half, "commit", placed)

    async def _answer_check(self, transaction: Transaction) -> Decision:
        half = self._ledger.halves[transaction.id]
        half.fenced = not half.local_ran
        return Decision.ROLLBACK if half.fenced else Decision(half.intention)

    def _failed(self, numbers: Sequence[int], error: KeelMQError) -> None:
        self._expect_outage(error)
        if isinstance(error, Unavailable):
            self._ledger.refused(numbers)

    def _expect_outage(self, error: KeelMQError) -> None:
        if not isinstance(error, Unavailable | UnknownOutcome):
            self._ledger.complaints.append(f"{type(error).__name__}: {error}")


def _promise(numbers: Sequence[int], receipt: Receipt) -> Promise:
    return Promise(tuple(numbers), receipt.index, receipt.term, tuple(receipt.durable_on))


def _place(result: SendResult) -> Place:
    assert result.offset is not None  # nothing was delayed
    return Place(result.topic, result.queue, result.offset)


def _places(result: BatchResult, numbers: Sequence[int]) -> dict[int, Place]:
    assert result.offset is not None  # nothing was delayed
    return {number: Place(result.topic, result.queue, result.offset + n) for n, number in enumerate(numbers)}
