"""TransactionProducer: a local transaction and its messages become one atomic step.

1. The messages go to the broker as a *half* transaction: durable on a majority, invisible to consumers.
2. The local transaction runs.
3. The producer sends the outcome to the broker: commit makes the messages visible, rollback drops them.
4. If step 3 gets lost, for whatever reason, the broker asks the check handler, in this or another process of the same
   producer group, until it has an answer.
"""

import asyncio
import enum
import hashlib
import reprlib
import secrets
from collections.abc import Awaitable, Callable, Iterable, Sequence
from types import TracebackType
from typing import Final, Self

import msgspec

from keelmq import wire
from keelmq.blocks.batch import encode_messages
from keelmq.causation import transaction_with_cause
from keelmq.errors import (
    Conflict,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    TransactionConflict,
    TransactionNotFound,
)
from keelmq.limits import (
    CHECK_AFTER_MAX_MS,
    REQUEST_BATCHES_MAX,
    REQUEST_BYTES_MAX,
    REQUEST_MESSAGES_MAX,
    TRANSACTION_ID_LENGTH_MAX,
    check_group,
    check_key_count,
    check_range,
    check_transaction_id,
    check_writable_topic,
)
from keelmq.line_log import log
from keelmq.message import Message, Receipt
from keelmq.plain_calls import AsyncCall, WorkerThreads, check_function, is_async
from keelmq.producing.delay import Delay, delay_of
from keelmq.producing.half_sender import Half, HalfSender
from keelmq.producing.producer import RETRIES, SEND_TIMEOUT_MS, default_client_id
from keelmq.producing.routing import QueueCounts, queue_for_key
from keelmq.tracing import end_send, start_send, traceparent_of
from keelmq.transactions.check_loop import CheckLoop
from keelmq.transactions.decision import (
    CheckHandler,
    Decision,
    PlainCheckHandler,
    Position,
    RollbackTransaction,
    Transaction,
)
from keelmq.transactions.decision_teller import DecisionTeller
from keelmq.transport.connection import Connection
from keelmq.transport.retry import Deadline
from keelmq.transport.tls import Tls

DECISION_TIMEOUT_MS: Final = 10_000
CHECK_CONCURRENCY: Final = 16
CHECK_HANDLER_TIMEOUT_MS: Final = 60_000
CLOSE_GRACE_MS: Final = 10_000
# Short, because an UNKNOWN decision changes nothing at the broker.
UNKNOWN_TIMEOUT_MS: Final = 1_000

LOCAL_THREADS_MAX: Final = 16
"""Maximum number of threads for plain local transactions; further calls wait before their half message is sent."""

LocalTransaction = Callable[[Transaction], Awaitable[Decision | None] | Decision | None]


class Outcome(enum.StrEnum):
    """The known state of a transaction when `execute` returns."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled_back"
    COMMIT_PENDING = "commit_pending"
    """The local decision is commit, but it did not reach the broker: the check will finish the transaction."""
    ROLLBACK_PENDING = "rollback_pending"
    """Rolled back, and not yet known to the broker, as with COMMIT_PENDING. The messages are not visible meanwhile."""
    UNKNOWN = "unknown"
    """The local transaction left the decision to the check."""


class TransactionResult(msgspec.Struct, frozen=True):
    """The result of `execute`: `receipt` of the half transaction, `positions` of the messages once committed."""

    transaction_id: str
    outcome: Outcome
    receipt: Receipt
    positions: tuple[Position, ...] = ()


class TransactionProducer:
    """Publishes messages together with a local transaction. Requires a check handler before anything is sent.

    `check(transaction)` is called whenever the broker asks for the outcome of a transaction. It answers from durable
    state of the application (keelmq.outbox provides a check handler for SQL databases) and must not guess: it returns
    UNKNOWN when it cannot tell. Each process with the same `group` must be able to answer for all others.
    `send_timeout_ms` and `retries` bound sending the half message, `decision_timeout_ms` bounds sending the decision.
    `compress` is as in `Producer`.

    Use as `async with TransactionProducer(...) as producer`.
    """

    def __init__(
        self,
        servers: str | Sequence[str],
        group: str,
        *,
        check: CheckHandler | PlainCheckHandler,
        client_id: str | None = None,
        send_timeout_ms: int = SEND_TIMEOUT_MS,
        retries: int = RETRIES,
        decision_timeout_ms: int = DECISION_TIMEOUT_MS,
        check_concurrency: int = CHECK_CONCURRENCY,
        check_handler_timeout_ms: int = CHECK_HANDLER_TIMEOUT_MS,
        compress: bool = True,
        connection: Connection | None = None,
        tls: Tls | None = None,
    ) -> None:
        check_group(group)
        check_function("check", check)
        check_range("send_timeout_ms", send_timeout_ms, 1, 3_600_000)
        check_range("retries", retries, 0, 100)
        check_range("decision_timeout_ms", decision_timeout_ms, 1, 3_600_000)
        check_range("check_concurrency", check_concurrency, 1, 256)
        check_range("check_handler_timeout_ms", check_handler_timeout_ms, 1, 3_600_000)
        self.group = group
        self.client_id = client_id or default_client_id()
        self._connection = connection or Connection(servers, tls=tls)
        self._owns_connection = connection is None
        self._send_timeout_ms = send_timeout_ms
        self._decision_timeout_ms = decision_timeout_ms
        self._compress = compress
        self._queue_counts = QueueCounts(self._connection)
        self._started = False
        self._closing: asyncio.Task[None] | None = None
        self._halves = HalfSender(self._connection, 1 + retries)
        self._decisions = DecisionTeller(self._connection, group, self.client_id)
        self._local_threads = WorkerThreads(LOCAL_THREADS_MAX)
        self._check_threads = WorkerThreads(check_concurrency)
        self._checks = CheckLoop(
            self._connection,
            group,
            self.client_id,
            self._check_threads.awaitable(check),
            self._decisions,
            concurrency=check_concurrency,
            handler_timeout_ms=check_handler_timeout_ms,
            answer_timeout_ms=decision_timeout_ms,
        )

    async def start(self) -> None:
        """Begin to answer checks. `async with` calls this."""
        if not self._started:
            self._started = True
            self._checks.start()

    async def close(self) -> None:
        """Stop answering checks (running handlers get 10 s), then close a connection of its own.

        Cancelling the caller does not stop the close.
        """
        if self._started:
            self._started = False
            self._closing = asyncio.create_task(self._close())
        if self._closing is not None:
            await asyncio.shield(self._closing)

    async def _close(self) -> None:
        try:
            await self._checks.stop(CLOSE_GRACE_MS)
        finally:
            self._check_threads.close()
            self._local_threads.close()
            if self._owns_connection:
                self._connection.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def execute(
        self,
        messages: Message | Sequence[Message],
        local_transaction: LocalTransaction,
        *,
        transaction_id: str | None = None,
        check_after_ms: int | None = None,
    ) -> TransactionResult:
        """Run `local_transaction` between the half message and its decision.

        `local_transaction` runs only after the half message is durable on a majority. Returning None or COMMIT commits,
        returning ROLLBACK or raising RollbackTransaction rolls back, returning UNKNOWN leaves the decision to the
        check. Any other exception leaves it to the check too and is raised again, because it is not known whether the
        local transaction took effect. `check_after_ms` is the age of the transaction at which the broker begins to ask.

        A plain function runs in one of 16 worker threads. It cannot be cancelled: if `execute` is cancelled, it runs
        on, and the check tells its outcome.

        If `transaction_id` was used before and is already committed, `local_transaction` does not run again. Raises
        what `Producer.send` raises when there is no half message (the local transaction did not run then),
        InvalidRequest before `start`, and TransactionConflict when another decision was recorded first.
        """
        if not self._started:
            raise InvalidRequest("not_started", "start the producer first (async with): nobody would answer checks")
        check_function("local_transaction", local_transaction)
        if is_async(local_transaction):
            local = self._local_threads.awaitable(local_transaction)
            return await self._execute(messages, local, transaction_id, check_after_ms)
        async with self._local_threads.place() as place:
            return await self._execute(messages, place.awaitable(local_transaction), transaction_id, check_after_ms)

    async def _execute(
        self,
        messages: Message | Sequence[Message],
        local: AsyncCall[Transaction],
        transaction_id: str | None,
        check_after_ms: int | None,
    ) -> TransactionResult:
        half = await self._prepare(messages, transaction_id, check_after_ms)
        transaction, prepared = half
        if prepared.state == Outcome.COMMITTED:
            return TransactionResult(transaction.id, Outcome.COMMITTED, prepared.receipt)
        if prepared.state != "prepared":
            raise TransactionConflict(
                "transaction_conflict",
                f"transaction {transaction.id} is {prepared.state} already; nothing was run",
                extra={"state": prepared.state},
            )
        try:
            decision = await local(transaction)
        except RollbackTransaction:
            decision = Decision.ROLLBACK
        except Exception:
            await self._tell_unknown(transaction.id)
            raise
        if decision is not None and not isinstance(decision, Decision):
            log.error(
                "transaction %s: the local transaction returned %s, not a Decision",
                transaction.id,
                reprlib.repr(decision),
            )
        if decision is None or decision is Decision.COMMIT:
            return await self._end(transaction.id, Decision.COMMIT, prepared.receipt)
        if decision is Decision.ROLLBACK:
            return await self._end(transaction.id, Decision.ROLLBACK, prepared.receipt)
        await self._tell_unknown(transaction.id)
        return TransactionResult(transaction.id, Outcome.UNKNOWN, prepared.receipt)

    async def _prepare(
        self, messages: Message | Sequence[Message], transaction_id: str | None, check_after_ms: int | None
    ) -> tuple[Transaction, wire.HalfResponse]:
        given = [messages] if isinstance(messages, Message) else list(messages)
        topic = given[0].topic if given and isinstance(given[0], Message) else None
        span = start_send(topic or "", self.client_id, len(given))
        try:
            # A call with an id may be repeated elsewhere, byte for byte, so it must not contain a span of this process.
            trace = traceparent_of(span) if transaction_id is None else None
            told = transaction_with_cause(given, trace)
            prepared = await self._send_half(told, transaction_id, check_after_ms)
        except BaseException as exc:
            if isinstance(exc, NotFound):
                self._queue_counts.forget(getattr(each, "topic", None) for each in given)
            end_send(span, exc)
            raise
        end_send(span, None)
        return prepared

    async def _send_half(
        self, given: Sequence[Message], transaction_id: str | None, check_after_ms: int | None
    ) -> tuple[Transaction, wire.HalfResponse]:
        # Another process may repeat a call with an id and must make the same bytes; zstd output depends on its version.
        compress = self._compress and transaction_id is None
        if transaction_id is None:
            transaction_id = secrets.token_hex(16)
        check_transaction_id(transaction_id)
        if check_after_ms is not None:
            check_range("check_after_ms", check_after_ms, 0, CHECK_AFTER_MAX_MS)
        deadline = Deadline(self._send_timeout_ms)
        batches, unpacked_bytes = await self._batches(transaction_id, given, deadline, compress)
        body = wire.encode_msgpack(
            wire.HalfRequest(transaction_id, self.group, batches, self.client_id, check_after_ms)
        )
        if len(body) > REQUEST_BYTES_MAX:
            raise LimitExceeded("request_too_large", f"{len(body)} bytes, {REQUEST_BYTES_MAX} are allowed")
        half = Half(transaction_id, body, len(batches), len(given), _keys_of(given), unpacked_bytes)
        prepared = await self._halves.send(half, deadline)
        return Transaction(id=transaction_id, producer_group=self.group, messages=given), prepared

    async def _batches(
        self, transaction_id: str, messages: Sequence[object], deadline: Deadline, compress: bool
    ) -> tuple[list[wire.HalfBatch], int]:
        """Return one batch per topic, queue and delay, in the order of their first appearance, and their size in bytes
        without compression.
        """
        if not messages:
            raise InvalidRequest("invalid_request", "a transaction needs at least one message")
        if len(messages) > REQUEST_MESSAGES_MAX:
            detail = f"{len(messages)} messages in a transaction, {REQUEST_MESSAGES_MAX} are allowed"
            raise LimitExceeded("batch_too_large", detail)
        check_key_count(_keys_of(messages))
        by_place: dict[tuple[str, int | None, Delay], list[Message]] = {}
        for message in messages:
            if not isinstance(message, Message) or message.topic is None:
                raise InvalidRequest("invalid_request", "each message of a transaction is a Message with a topic")
            check_writable_topic(message.topic)
            queue = message.queue
            if queue is None and message.sharding_key is not None:
                queue = queue_for_key(message.sharding_key, await self._queue_counts.get(message.topic, deadline))
            delay = delay_of(message.delay_level, message.delay_ms, message.deliver_at_ms)
            by_place.setdefault((message.topic, queue, delay), []).append(message)
        if len(by_place) > REQUEST_BATCHES_MAX:
            detail = f"the messages go to {len(by_place)} queues and times, {REQUEST_BATCHES_MAX} are allowed"
            raise LimitExceeded("invalid_request", detail)
        batches: list[wire.HalfBatch] = []
        unpacked_bytes = 0
        for ordinal, ((topic, queue, delay), part) in enumerate(by_place.items()):
            block = encode_messages(part, compressed=compress)
            unpacked_bytes += block.unpacked_bytes
            batch_id = _batch_id(transaction_id, ordinal)
            batches.append(
                wire.HalfBatch(
                    topic, batch_id, block.crc32c, block.data, queue, block.encoding, block.uncompressed_bytes, *delay
                )
            )
        if unpacked_bytes > REQUEST_BYTES_MAX:
            raise LimitExceeded(
                "request_too_large", f"{unpacked_bytes} bytes of messages, {REQUEST_BYTES_MAX} are allowed"
            )
        return batches, unpacked_bytes

    async def _end(self, transaction_id: str, decision: Decision, receipt: Receipt) -> TransactionResult:
        commit = decision is Decision.COMMIT
        try:
            positions = await self._tell(transaction_id, decision, self._decision_timeout_ms)
        except (Conflict, TransactionNotFound):
            raise
        except Exception as exc:  # whatever it is: an error would say that the local transaction did not run
            log.warning("transaction %s: %s not delivered, the check will finish it: %s", transaction_id, decision, exc)
            pending = Outcome.COMMIT_PENDING if commit else Outcome.ROLLBACK_PENDING
            return TransactionResult(transaction_id, pending, receipt)
        outcome = Outcome.COMMITTED if commit else Outcome.ROLLED_BACK
        return TransactionResult(transaction_id, outcome, receipt, positions)

    async def _tell_unknown(self, transaction_id: str) -> None:
        try:
            await self._tell(transaction_id, Decision.UNKNOWN, UNKNOWN_TIMEOUT_MS)
        except Exception as exc:  # the caller raises, or returns, what the local transaction did
            log.debug("transaction %s: unknown not delivered: %s", transaction_id, exc)

    async def _tell(self, transaction_id: str, decision: Decision, timeout_ms: int) -> tuple[Position, ...]:
        return await self._decisions.tell(transaction_id, decision, source="producer", timeout_ms=timeout_ms)


def _keys_of(messages: Iterable[object]) -> int:
    """Return the number of keys and explicit ids, which count towards one limit."""
    count = 0
    for message in messages:  # a loop, since each transaction would pay for the two generators of a sum
        if isinstance(message, Message):
            count += len(message.keys) + (message.message_id is not None)
    return count


def _batch_id(transaction_id: str, ordinal: int) -> str:
    """Derive a batch id from the transaction id, so that a repeated call makes the same request."""
    batch_id = f"{transaction_id}-{ordinal}"
    if len(batch_id) <= TRANSACTION_ID_LENGTH_MAX:
        return batch_id
    return f"{hashlib.sha256(transaction_id.encode()).hexdigest()[:40]}-{ordinal}"
