"""Operators who step in where nobody knows the outcome: they resume abandoned transactions, or decide them by force.

An operator's decision is written into the application's database first ("by phone"), so that the other checkers hold
the broker to it. Operator, event and reason are recorded for the checker of the audit records.
"""

import asyncio
from typing import Final

import msgspec

import keelmq
from keelmq.errors import TransactionConflict, TransactionNotFound
from tests.chaos.violations import Kind
from tests.chaos.workloads.transactions import Database, Decided, Told
from tests.chaos.workloads.worker import Field, paced
from tests.patience import PATIENCE_S

CALL_TIMEOUT_MS: Final = 6_000
RESUME_SHARE: Final = 0.4
RECENT: Final = 40
"""Number of newest transactions that operators touch: most of the older ones are to be discarded in the end."""
NAMES: Final = ("ann", "bob")
FINISH_TIMEOUT_S: Final = PATIENCE_S
_EVENT: Final = {Decided.COMMIT: "committed", Decided.ROLLBACK: "rolled_back"}
_TOLD: Final = {Decided.COMMIT: Told.COMMITTED, Decided.ROLLBACK: Told.ROLLED_BACK}


class Step(msgspec.Struct):
    """An operator's request, with a unique reason. `event` is its name in the timeline."""

    transaction_id: str
    event: str
    operator: str
    reason: str
    acknowledged: bool = False


class Operators:
    """Operators who force decisions. Besides the producer of `database`, only they decide its transactions."""

    def __init__(self, field: Field, database: Database, interval_s: float) -> None:
        self._field = field
        self._database = database
        self._interval_s = interval_s
        self._rng = field.rng("operators")
        self.steps: list[Step] = []
        self._open: dict[int, Step] = {}
        """Forced decisions that are not acknowledged yet."""

    async def run(self, stop: asyncio.Event) -> None:
        connection = keelmq.Connection(self._field.urls, call_timeout_ms=CALL_TIMEOUT_MS)
        try:
            await paced(lambda: self._step(keelmq.Admin(connection)), self._interval_s, stop)
        finally:
            connection.close()

    async def finish(self) -> None:
        """Finish, on a healthy cluster, the decisions that were made and not acknowledged."""
        connection = keelmq.Connection(self._field.urls, call_timeout_ms=CALL_TIMEOUT_MS)
        try:
            async with asyncio.timeout(FINISH_TIMEOUT_S):
                while self._open:
                    for number, step in list(self._open.items()):
                        await self._force(keelmq.Admin(connection), number, step)
        except TimeoutError:
            self._field.violations.add(Kind.NO_PROGRESS, f"{len(self._open)} forced decisions are not taken")
        finally:
            connection.close()

    async def _step(self, admin: keelmq.Admin) -> None:
        database = self._database
        recent = range(max(len(database.decided) - RECENT, 0), len(database.decided))
        choices = [
            number
            for number in recent
            if database.told[number] == Told.PREPARED and database.decided[number] == Decided.NOTHING
        ]
        if not choices:
            return
        number = self._rng.choice(choices)
        if self._rng.random() < RESUME_SHARE:
            await self._resume(admin, number)
            return
        decided = self._rng.choice((Decided.COMMIT, Decided.ROLLBACK))
        database.decided[number] = decided
        self._open[number] = self._begin(number, _EVENT[decided])
        await self._force(admin, number, self._open[number])

    def _begin(self, number: int, event: str) -> Step:
        reason = f"case {len(self.steps)}"
        step = Step(self._database.id_of(number), event, self._rng.choice(NAMES), reason)
        self.steps.append(step)
        return step

    async def _resume(self, admin: keelmq.Admin, number: int) -> None:
        step = self._begin(number, "resumed")
        try:
            await admin.resume(step.transaction_id, operator=step.operator, reason=step.reason)
            step.acknowledged = True
        except TransactionConflict as conflict:
            if conflict.state != "prepared":
                self._accuse(step, f"is {conflict.state}, and nobody decided it")
        except TransactionNotFound:
            self._field.violations.add(Kind.LOST, f"{step.transaction_id} was prepared, and cannot be resumed")
        except keelmq.KeelMQError as error:
            self._expect(step, error)

    async def _force(self, admin: keelmq.Admin, number: int, step: Step) -> None:
        decided = Decided(self._database.decided[number])
        try:
            await admin.decide(
                step.transaction_id,
                "commit" if decided is Decided.COMMIT else "rollback",
                force=True,
                operator=step.operator,
                reason=step.reason,
            )
        except TransactionConflict as conflict:
            self._accuse(step, f"is {conflict.state}: nobody else decided it")
        except TransactionNotFound:
            self._field.violations.add(Kind.LOST, f"{step.transaction_id} was prepared, and cannot be decided")
        except keelmq.KeelMQError as error:
            self._expect(step, error)
            return
        else:
            step.acknowledged = True
            self._database.told[number] = _TOLD[decided]
        del self._open[number]

    def _expect(self, step: Step, error: keelmq.KeelMQError) -> None:
        if not (error.retryable or error.outcome_unknown):
            self._accuse(step, f"cannot be {step.event}: {error}")

    def _accuse(self, step: Step, what: str) -> None:
        self._field.violations.add(Kind.TRANSACTION, f"{step.transaction_id}, {step.event} by an operator: {what}")
