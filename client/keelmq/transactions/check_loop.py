"""Answers the broker's check-backs of undecided transactions in the background while the producer lives."""

import asyncio
import base64
import reprlib
from typing import Final
from urllib.parse import quote

from keelmq import wire
from keelmq.causation import processing
from keelmq.consuming.assigned_queues import CANCELLED_GRACE_MS
from keelmq.errors import Closed, KeelMQError, TransactionConflict
from keelmq.line_log import log, log_error_of_application
from keelmq.message import Message
from keelmq.plain_calls import AsyncCall
from keelmq.transactions.decision import Decision, Transaction
from keelmq.transactions.decision_teller import DecisionTeller
from keelmq.transport.connection import Connection
from keelmq.transport.outage import Outage
from keelmq.transport.retry import Backoff, Deadline

POLL_WAIT_MS: Final = 5_000
POLL_MARGIN_MS: Final = 2_000
GATHER_S: Final = 0.01
"""Pause after all handlers were busy: handlers that end together then make room for one poll instead of one each."""
PAUSE_MS: Final = 100
PAUSE_MAX_MS: Final = 2_000


class CheckLoop:
    """Long-polls for checks of `group` and runs at most `concurrency` handlers at a time.

    A handler that raises, or takes longer than `handler_timeout_ms`, answers UNKNOWN: the broker asks again later. No
    error ends the loop except Closed; otherwise only `stop` does.
    """

    def __init__(
        self,
        connection: Connection,
        group: str,
        client_id: str,
        handler: AsyncCall[Transaction],
        teller: DecisionTeller,
        *,
        concurrency: int,
        handler_timeout_ms: int,
        answer_timeout_ms: int,
    ) -> None:
        self._connection = connection
        self._group = group
        self._client_id = client_id
        self._handler = handler
        self._teller = teller
        self._concurrency = concurrency
        self._handler_timeout_s = handler_timeout_ms / 1000
        self._answer_timeout_ms = answer_timeout_ms
        self._running: dict[str, asyncio.Task[None]] = {}
        self._poll: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._poll = asyncio.create_task(self._poll_forever())

    async def stop(self, grace_ms: int) -> None:
        """Stop asking for checks; running handlers get `grace_ms` to end, then they are cancelled."""
        if self._poll is None:
            return
        self._poll.cancel()
        tasks = {self._poll, *self._running.values()}
        _, late = await asyncio.wait(tasks, timeout=grace_ms / 1000)
        for task in late:
            task.cancel()
        ended, left = await asyncio.wait(tasks, timeout=CANCELLED_GRACE_MS / 1000)
        await asyncio.gather(*ended, return_exceptions=True)
        if left:  # plain functions, or handlers that swallow their cancellation
            log.warning("checks of producer group %s still run and are left behind: %d", self._group, len(left))

    async def _poll_forever(self) -> None:
        backoff, outage = Backoff(PAUSE_MS, PAUSE_MAX_MS), Outage()
        while True:
            try:
                free = self._concurrency - len(self._running)
                if free <= 0:
                    await asyncio.wait(self._running.values(), return_when=asyncio.FIRST_COMPLETED)
                    await asyncio.sleep(GATHER_S)
                    continue
                checks = await self._fetch(free)
            except Closed:
                return
            except KeelMQError as exc:
                why = "checks of producer group %s cannot be fetched, trying again: %s"
                log.log(outage.level(exc), why, self._group, exc)
                await asyncio.sleep(backoff.next_s())
                continue
            except Exception:  # a bug here must not leave transactions undecided
                log.exception("checks of producer group %s cannot be fetched, trying again", self._group)
                await asyncio.sleep(PAUSE_MAX_MS / 1000)
                continue
            backoff.reset()
            outage.ended()
            for check in checks:
                if check.transaction_id not in self._running:
                    task = asyncio.create_task(self._answer(check))
                    self._running[check.transaction_id] = task

    async def _fetch(self, free: int) -> list[wire.Check]:
        target = f"/v1/producer-groups/{quote(self._group, safe='')}/checks"
        query = f"?wait_ms={POLL_WAIT_MS}&max={free}&client_id={quote(self._client_id, safe='')}"
        response = await self._connection.call_for(
            wire.ChecksResponse,
            "GET",
            target + query,
            deadline=Deadline(POLL_WAIT_MS + POLL_MARGIN_MS),
            waits_ms=POLL_WAIT_MS,
        )
        return response.checks

    async def _answer(self, check: wire.Check) -> None:
        try:
            decision = await self._decide(check)
            await self._teller.tell(check.transaction_id, decision, source="check", timeout_ms=self._answer_timeout_ms)
        except TransactionConflict as exc:
            log.warning("transaction %s: the check's answer came too late: %s", check.transaction_id, exc)
        except KeelMQError as exc:
            log.warning("transaction %s: answer not delivered, it will be asked again: %s", check.transaction_id, exc)
        finally:
            del self._running[check.transaction_id]

    async def _decide(self, check: wire.Check) -> Decision:
        try:
            transaction = _transaction_of(check)
            async with asyncio.timeout(self._handler_timeout_s):
                with processing((), self._group):  # the producer may have been started in a handler
                    decision: object = await self._handler(transaction)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as exc:  # whatever the error is: without an answer, no other process is asked meanwhile
            task = asyncio.current_task()
            if isinstance(exc, asyncio.CancelledError) and (task is None or task.cancelling()):
                raise  # the producer is closed; otherwise the handler awaited something that was cancelled
            what = f"transaction {check.transaction_id}: the check handler failed, answering unknown"
            log_error_of_application(what, exc)
            return Decision.UNKNOWN
        if not isinstance(decision, Decision):
            log.error(
                "transaction %s: the check handler returned %s, not a Decision",
                check.transaction_id,
                reprlib.repr(decision),
            )
            return Decision.UNKNOWN
        return decision


def _transaction_of(check: wire.Check) -> Transaction:
    messages = [
        Message(
            body=base64.b64decode(m.body, validate=True) if m.encoding == "base64" else m.body.encode(),
            topic=m.topic,
            tag=m.tag,
            keys=tuple(m.keys or ()),
            properties=m.properties or {},
            sharding_key=m.sharding_key,
            queue=m.queue,
            message_id=m.message_id or None,
            born_at_ms=m.born_at_ms or 0,
        )
        for m in check.messages
    ]
    return Transaction(
        id=check.transaction_id,
        producer_group=check.producer_group,
        messages=messages,
        check_times=check.check_times,
        prepared_at_ms=check.prepared_at_ms,
    )
