"""Transactional producers with a database of their own, which die in every bad moment and answer checks later.

The database (an array) is the truth about the application's decisions. A check that finds no decision writes a
tombstone before it answers rollback, so that a local transaction that is still under way cannot decide otherwise
afterwards; keelmq.outbox does the same in SQL.
"""

import asyncio
import enum
from collections.abc import Iterator
from typing import Final

import keelmq
from keelmq.errors import TransactionConflict, Unavailable
from tests.chaos.message import body_of, name_of, number_of, sequence_of
from tests.chaos.violations import Kind
from tests.chaos.workloads.worker import TRANSACTION_TOPICS, Field, paced, settle_error, write_operation

MESSAGES: Final = 3
PLACES: Final = (TRANSACTION_TOPICS[0], TRANSACTION_TOPICS[0], TRANSACTION_TOPICS[1])
"""The topic of each of a transaction's messages."""
RENEW_S: Final = (4.0, 12.0)
DECISION_TIMEOUT_MS: Final = 4_000
AT_ONCE: Final = 4
AGAIN_SHARE: Final = 0.5


class Decided(enum.IntEnum):
    """The decision in the application's database."""

    NOTHING = 0
    COMMIT = 1
    ROLLBACK = 2


class Told(enum.IntEnum):
    """The broker's last answer to the producer."""

    NOTHING = 0
    REFUSED = 1
    """The broker said that there is certainly no half message."""
    PREPARED = 2
    COMMITTED = 3
    ROLLED_BACK = 4


class Plan(enum.StrEnum):
    """The planned course of a local transaction."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    RAISE = "raise"
    """The local transaction raises after its decision: the SDK leaves the outcome to the check."""
    UNKNOWN = "unknown"
    DIE_BEFORE = "die_before"
    """The process dies before its database has the decision."""
    DIE_AFTER = "die_after"
    """The process dies when its database has the decision and the broker has not."""


PLAN_WEIGHTS: Final = {
    Plan.COMMIT: 55,
    Plan.ROLLBACK: 12,
    Plan.RAISE: 5,
    Plan.UNKNOWN: 8,
    Plan.DIE_BEFORE: 8,
    Plan.DIE_AFTER: 12,
}


class Database:
    """Owns decisions and answers by transaction; kept over the lives of the producers."""

    def __init__(self, worker: int, run_id: str, abandoned: bool) -> None:
        self.worker = worker
        self.decided = bytearray()
        self.told = bytearray()
        self.abandoned = abandoned
        """True when nobody ever knows the outcome: every check is answered with UNKNOWN."""
        self._run_id = run_id

    def begin(self) -> int:
        self.decided.append(Decided.NOTHING)
        self.told.append(Told.NOTHING)
        return len(self.decided) - 1

    def id_of(self, transaction: int) -> str:
        return f"{self._run_id}-{self.worker}-{transaction}"

    def number_of_id(self, transaction_id: str) -> int:
        return int(transaction_id.rpartition("-")[2])

    def ids(self) -> Iterator[tuple[int, str]]:
        return ((each, self.id_of(each)) for each in range(len(self.decided)))

    def commits(self, number: int) -> bool:
        """Return whether the message with this number belongs to a transaction that the database commits."""
        return self.decided[sequence_of(number) // MESSAGES] == Decided.COMMIT


class Transactions:
    """Runs producers of one group, one after the other: each is cut off after a while and its successor takes over."""

    def __init__(self, field: Field, interval_s: float, *, abandoned: bool = False) -> None:
        self.name = "abandoned" if abandoned else "transaction"
        self._field = field
        self._interval_s = interval_s
        self._ledger = field.book.worker(self.name, transactional=True)
        self._rng = field.rng(self.name)
        self.database = Database(self._ledger.worker, field.run_id, abandoned)
        field.reads.require(self._ledger.worker, self.database.commits)

    async def run(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            connection = keelmq.Connection(self._field.urls)
            life = asyncio.Event()
            timer = asyncio.get_running_loop().call_later(self._rng.uniform(*RENEW_S), life.set)
            producer = self._producer(connection)
            await producer.start()
            ends = [asyncio.create_task(each.wait()) for each in (stop, life)]
            work = asyncio.create_task(self._work(producer, life))
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            timer.cancel()
            life.set()
            if not stop.is_set():
                connection.close()  # a crash: what is under way is never finished
            await work
            for each in ends:
                each.cancel()
            await producer.close()
            connection.close()

    async def answer_checks(self) -> None:
        """Answer the checks for transactions of dead processes, as the application that is back, until cancelled."""
        async with self._producer(None):
            await asyncio.Event().wait()

    def _producer(self, connection: keelmq.Connection | None) -> keelmq.TransactionProducer:
        return keelmq.TransactionProducer(
            self._field.urls,
            f"chaos-{self.name}",
            check=self._check,
            connection=connection,
            decision_timeout_ms=DECISION_TIMEOUT_MS,
        )

    async def _work(self, producer: keelmq.TransactionProducer, life: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(AT_ONCE):
                tasks.create_task(paced(lambda: self._execute(producer), self._interval_s * AT_ONCE, life))

    async def _check(self, transaction: keelmq.Transaction) -> keelmq.Decision:
        number = self.database.number_of_id(transaction.id)
        if self.database.abandoned:
            return keelmq.Decision.UNKNOWN
        decided = self.database.decided
        if decided[number] == Decided.NOTHING:
            decided[number] = Decided.ROLLBACK
        elif self._rng.random() < 0.1:
            return keelmq.Decision.UNKNOWN  # the database cannot be asked right now
        return keelmq.Decision.COMMIT if decided[number] == Decided.COMMIT else keelmq.Decision.ROLLBACK

    async def _execute(self, producer: keelmq.TransactionProducer) -> None:
        field, database = self._field, self.database
        number = database.begin()
        begin_s = field.history.now_s()
        first = self._ledger.begin(MESSAGES)
        sent = self._ledger.numbers(first, MESSAGES)
        messages = [keelmq.Message(topic=topic, body=body_of(each)) for topic, each in zip(PLACES, sent, strict=True)]
        plan = self._rng.choices(list(PLAN_WEIGHTS), list(PLAN_WEIGHTS.values()))[0]
        if database.abandoned:
            plan = Plan.UNKNOWN
        error = await self._try(producer, number, messages, plan)
        if error is not None and error.outcome_unknown and self._rng.random() < AGAIN_SHARE:
            # Whatever the second try says, the first one may have stored the half message.
            error = error if await self._try(producer, number, messages, plan) is not None else None
        self._write_down(number, first, begin_s, plan, error)

    async def _try(
        self, producer: keelmq.TransactionProducer, number: int, messages: list[keelmq.Message], plan: Plan
    ) -> keelmq.KeelMQError | None:
        """Call `execute` once, to its end or to the death of the process. Returns the error if it ended with one."""

        async def local_transaction(transaction: keelmq.Transaction) -> keelmq.Decision:
            return self._decide(number, plan)

        told = self.database.told
        try:
            result = await producer.execute(messages, local_transaction, transaction_id=self.database.id_of(number))
        except TransactionConflict as conflict:
            self._check_conflict(number, conflict)
            return None
        except keelmq.KeelMQError as error:
            return error
        except (_Died, _Failed):
            return None
        if result.outcome is keelmq.Outcome.COMMITTED:
            told[number] = Told.COMMITTED
        elif result.outcome is keelmq.Outcome.ROLLED_BACK:
            told[number] = Told.ROLLED_BACK
        return None

    def _decide(self, number: int, plan: Plan) -> keelmq.Decision:
        """Run the local transaction, which is called only when the half message is durable."""
        database = self.database
        database.told[number] = max(database.told[number], Told.PREPARED)
        if plan is Plan.DIE_BEFORE:
            raise _Died
        if database.decided[number] == Decided.ROLLBACK:
            return keelmq.Decision.ROLLBACK  # a check was faster
        if plan is Plan.UNKNOWN:
            if self._rng.random() < 0.5 and not database.abandoned:
                database.decided[number] = Decided.COMMIT
            return keelmq.Decision.UNKNOWN
        database.decided[number] = Decided.ROLLBACK if plan is Plan.ROLLBACK else Decided.COMMIT
        if plan is Plan.RAISE:
            raise _Failed
        if plan is Plan.DIE_AFTER:
            raise _Died
        return keelmq.Decision.ROLLBACK if plan is Plan.ROLLBACK else keelmq.Decision.COMMIT

    def _check_conflict(self, number: int, conflict: TransactionConflict) -> None:
        """Check that the decision that came first is the one that stands in the database."""
        decided = Decided(self.database.decided[number])
        if decided is Decided.COMMIT and conflict.state != "discarded":
            self._field.violations.add(
                Kind.TRANSACTION, f"{self.database.id_of(number)} is {conflict.state}, the database says {decided.name}"
            )

    def _write_down(
        self, number: int, first: int, begin_s: float, plan: Plan, error: keelmq.KeelMQError | None
    ) -> None:
        ledger, told = self._ledger, self.database.told
        if told[number] >= Told.PREPARED:
            ledger.acked_without_place(first, MESSAGES, 0)
            outcome = Told(told[number]).name.lower()
            write_operation(self._field, ledger, first, MESSAGES, begin_s, outcome, plan=plan.name)
        elif error is not None:
            settle_error(self._field, ledger, first, MESSAGES, error, begin_s)
            if isinstance(error, Unavailable):
                told[number] = Told.REFUSED
        else:
            write_operation(self._field, ledger, first, MESSAGES, begin_s, "unknown", plan=plan.name)


class _Died(BaseException):
    """The producer's process ends here, and nobody tells the broker anything."""


class _Failed(Exception):
    """The local transaction raised when its work was done."""


def describe(database: Database, transaction: int) -> str:
    """Return a description of the transaction for messages to people."""
    return (
        f"{database.id_of(transaction)} ({name_of(number_of(database.worker, transaction * MESSAGES))} ff., database: "
        f"{Decided(database.decided[transaction]).name}, told: {Told(database.told[transaction]).name})"
    )
