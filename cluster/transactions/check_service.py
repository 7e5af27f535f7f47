"""Asks producers about undecided half transactions. Only the leader asks.

A due check goes to the group's webhook or to a waiting long poll of the producer group, preferably a poll of the client
that prepared the transaction. A check counts only after its delivery: then RecordChecks sets the next one through the
log, so count, timeline and due times survive a failover. The service keeps only the waiting polls and the leases of
checks. They may be lost: at worst a check is asked once more without being counted twice.
"""

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Callable, Container, Coroutine, Iterable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from cluster.budgets.pace import Pace
from cluster.core.background import COMMAND_ERRORS
from cluster.core.core import Core
from cluster.http.responses import Response
from cluster.messages.block_reader import BlockReader, message_view
from cluster.messages.message_views import MessageView
from cluster.process.request_scope import note_polled
from cluster.transactions.check_pace import SCAN_SHARE, CheckPace
from store.commands.transactions import CheckVia, Discard, RecordChecks
from store.commands.views import DueCheck


class CheckView(Response, kw_only=True, frozen=True):
    """A check-back, which asks a producer whether to commit or to roll back a transaction."""

    transaction_id: str
    producer_group: str
    client_id: str
    check_times: int
    prepared_at_ms: int
    messages: list[MessageView]


logger = logging.getLogger(__name__)

SCAN_INTERVAL_S: Final = 0.5
SCAN_PAUSE_S: Final = 0.02
"""Minimum seconds between two scans, however many polls arrive."""

PACED_PAUSE_S: Final = 0.1
"""Minimum seconds between two scans while the rate of checks is used up, so that some checks come together."""

DUE_PER_PAGE: Final = 100
PAGES_PER_SCAN: Final = 5
"""Maximum number of pages of due checks in one scan. It ends early when there are polls and all of them are full. The
next scan goes on after the last page, so that a group without polls hides no other. A page has at most one check more
than may be handed out, because reading a check is the cost of a scan."""

ORIGIN_SEEN_MS: Final = 5_000
"""A check waits for a poll of the client that prepared the transaction if the client polled within this time ..."""

ORIGIN_GRACE_MS: Final = 2_000
"""... until this time after the check became due; then any client of the group may get the check."""

LEASE_MS: Final = 10_000
"""Milliseconds for which a check is not handed out again, unless its delivery is known to have failed."""

DISCARDS_MAX: Final = 256


class Poller:
    """A long poll that waits for checks of a producer group. Owns the checks handed to it."""

    def __init__(self, client_id: str, limit: int) -> None:
        self.client_id = client_id
        self.limit = limit
        self.checks: list[DueCheck] = []
        self.woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def has_room(self) -> bool:
        return len(self.checks) < self.limit


class _Seen(NamedTuple):
    group: str
    client_id: str


class CheckService:
    """Hands out due checks to polls and webhooks. Use on the event loop only.

    `send_webhook` starts delivering a check to a URL, or returns False when it cannot do so now. It keeps account of
    the checks under way to webhooks, `at_webhooks`, calls `delivered` or `postpone` for each, and `nudge` at the end.
    """

    def __init__(self, core: Core, send_webhook: Callable[[DueCheck, str], bool], at_webhooks: Container[str]) -> None:
        self._core = core
        self._send_webhook = send_webhook
        self._at_webhooks = at_webhooks
        self._pollers: dict[str, list[Poller]] = {}
        self._served: dict[Poller, None] = {}
        """Polls that have got checks in this scan."""
        self._polled_at_ms: dict[_Seen, int] = {}
        """Time of each client's last poll; the client that polled longest ago comes first."""
        self._leased_until_ms: dict[str, int] = {}
        self._nudge = asyncio.Event()
        self._task = core.background.task("checks", "ask about undecided transactions", self._round)
        self._discarding = False
        self._scanned_to: tuple[int, str] | None = None
        self._passed_by = False
        self._pace = CheckPace(core.config.checks_per_second, core.steady_ms)

    def start(self) -> None:
        self._task.start()

    async def stop(self) -> None:
        """End the scans and answer every waiting poll."""
        await self._task.stop()
        for pollers in self._pollers.values():
            for poller in pollers:
                _wake(poller)

    def spawn(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run `work()` beside the scans; `stop` cancels it."""
        self._task.spawn(work)

    async def poll(self, group: str, client_id: str, limit: int, timeout_s: float) -> list[DueCheck]:
        """Wait for checks of the group and lease them to the caller; the result is empty after `timeout_s`.

        The caller has to call `delivered` for the checks that it has handed over, and `release` for the others.
        """
        poller = Poller(client_id, limit)
        waiting = self._pollers.setdefault(group, [])
        waiting.append(poller)
        seen = _Seen(group, client_id)
        self._note_poll(seen)
        begun_s = time.perf_counter()
        try:
            if timeout_s <= 0:
                self._scan()
            else:
                with self._core.holdings.long_poll():
                    self._nudge.set()
                    async with asyncio.timeout(timeout_s):
                        await poller.woken
        except TimeoutError:
            pass
        except asyncio.CancelledError:
            self.release(check.transaction_id for check in poller.checks)
            raise
        finally:
            note_polled(begun_s)
            waiting.remove(poller)
            if not waiting and self._pollers.get(group) is waiting:
                del self._pollers[group]
            self._note_poll(seen)
        return poller.checks

    def _note_poll(self, seen: _Seen) -> None:
        self._polled_at_ms.pop(seen, None)
        self._polled_at_ms[seen] = self._core.steady_ms()

    async def view(self, check: DueCheck, reader: BlockReader) -> CheckView | None:
        """Return the check with its messages, or None when the transaction was decided meanwhile.

        Raises Problem overloaded or message_damaged, as `BlockReader.load` does.
        """
        transaction = self._core.state.transaction(check.transaction_id)
        if transaction is None or transaction.state != "prepared":
            return None
        messages: list[MessageView] = []
        pace = Pace()
        for at, batch in enumerate(transaction.batches):
            await reader.load(transaction.batches, at)
            await reader.unpack(batch, pace)
            block = reader.messages(batch)
            for ordinal, message in enumerate(block):
                message_id = message.message_id or f"{batch.batch_id}-{ordinal}"
                messages.append(
                    message_view(message, message_id, batch.topic, batch.queue, transaction.prepared_at_ms, None)
                )
        return CheckView(
            transaction_id=check.transaction_id,
            producer_group=check.producer_group,
            client_id=check.client_id,
            check_times=transaction.check_times + 1,
            prepared_at_ms=transaction.prepared_at_ms,
            messages=messages,
        )

    async def delivered(self, transaction_ids: tuple[str, ...], client_id: str, via: CheckVia) -> None:
        """Count the checks through the log and release them. A failure loses nothing: this leader or the next one asks
        again.
        """
        try:
            await self._core.propose(RecordChecks(transaction_ids, client_id, via, self._core.config.check_interval_ms))
            self._core.metrics.checks["delivered"].inc(len(transaction_ids))
        except COMMAND_ERRORS as error:
            logger.warning("%d delivered checks could not be recorded: %s", len(transaction_ids), error)
        finally:
            self.release(transaction_ids)

    def release(self, transaction_ids: Iterable[str]) -> None:
        """End the leases of the checks. Checks that are still due are handed out again."""
        for transaction_id in transaction_ids:
            self._leased_until_ms.pop(transaction_id, None)
        self.nudge()

    def nudge(self) -> None:
        """Look for due checks soon, because something has changed."""
        self._nudge.set()

    def postpone(self, transaction_id: str, delay_ms: int) -> None:
        """Postpone a check that could not be delivered: it is not counted, and not tried again for `delay_ms`."""
        self._core.metrics.checks["failed"].inc()
        self._leased_until_ms[transaction_id] = self._core.now_ms() + delay_ms

    async def _round(self) -> float:
        begun_ms = self._core.steady_ms()
        if self._core.is_leader():
            self._scan()
        else:
            self._forget()
        passed_by, self._passed_by = self._passed_by, False
        pause_s = PACED_PAUSE_S if self._pace.used_up else SCAN_PAUSE_S
        await asyncio.sleep(max(pause_s, (self._core.steady_ms() - begun_ms) * SCAN_SHARE / 1000))
        if passed_by and self._scanned_to is not None:
            return 0.0  # after checks that wait for a webhook there may be checks that do not
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SCAN_INTERVAL_S):
                await self._nudge.wait()
        self._nudge.clear()
        return 0.0

    def _forget(self) -> None:
        """Forget the leases of a former leader, and answer its waiting polls, so that clients find the new leader."""
        self._leased_until_ms.clear()
        for pollers in self._pollers.values():
            for poller in pollers:
                _wake(poller)

    def _scan(self) -> None:
        """Hand out due checks, and discard transactions whose checks have reached check_max."""
        now_ms = self._core.now_ms()
        self._expire(now_ms)
        self._pace.refill()
        given_up: dict[str, int] = {}
        for _ in range(PAGES_PER_SCAN):
            more = self._scan_page(now_ms, given_up)
            polled = any(self._pollers.values())
            if not more or (polled and not self._has_room()):
                break
        for poller in self._served:
            _wake(poller)
        self._served.clear()
        if given_up and not self._discarding and self._core.clock_is_sure():
            self._discarding = True
            first = dict(itertools.islice(given_up.items(), DISCARDS_MAX))
            self._task.spawn(partial(self._discard, first))

    def _scan_page(self, now_ms: int, given_up: dict[str, int]) -> bool:
        """Scan one page, from the end of the last page on. Return False when the scan must end here."""
        rows = min(DUE_PER_PAGE, self._pace.left + 1)
        due = self._core.state.due_checks(now_ms, rows, self._scanned_to)
        for check in due:
            if check.transaction_id not in self._leased_until_ms:
                if check.check_times >= self._core.config.check_max:
                    given_up[check.transaction_id] = check.check_times
                elif self._pace.used_up:
                    return False
                else:
                    self._hand_out(check, now_ms)
            self._scanned_to = (check.next_check_at_ms, check.transaction_id)
        if len(due) < rows:
            self._scanned_to = None
        return self._scanned_to is not None

    def _has_room(self) -> bool:
        return any(poller.has_room for pollers in self._pollers.values() for poller in pollers)

    def _hand_out(self, check: DueCheck, now_ms: int) -> None:
        """Send the check to the webhook of its group, or lease it to a waiting poll; otherwise it stays due."""
        url = self._core.state.check_url(check.producer_group)
        if url is not None:
            if self._send_webhook(check, url):
                self._pace.take()
            else:
                self._passed_by = True
            return
        if check.transaction_id in self._at_webhooks:
            return  # the group had a URL when it was sent: the answer is awaited
        poller = self._choose(check, now_ms)
        if poller is not None:
            self._pace.take()
            self._leased_until_ms[check.transaction_id] = now_ms + LEASE_MS
            poller.checks.append(check)
            self._served[poller] = None

    def _choose(self, check: DueCheck, now_ms: int) -> Poller | None:
        """Return a poll of the client that prepared the transaction; otherwise any poll of the group, once the client
        had its time to come back. None when the check has to wait.
        """
        free = [poller for poller in self._pollers.get(check.producer_group, ()) if poller.has_room]
        if not free:
            return None
        origin = next((poller for poller in free if poller.client_id == check.client_id), None)
        if origin is not None:
            return origin
        seen_at_ms = self._polled_at_ms.get(_Seen(check.producer_group, check.client_id))
        if (
            check.client_id
            and seen_at_ms is not None
            and self._core.steady_ms() - seen_at_ms < ORIGIN_SEEN_MS
            and now_ms - check.next_check_at_ms < ORIGIN_GRACE_MS
        ):
            return None
        return free[0]

    async def _discard(self, given_up: Mapping[str, int]) -> None:
        """Propose to discard transactions with these numbers of checks. A transaction that is resumed before the
        command is applied stays.
        """
        try:
            applied = await self._core.propose(Discard(tuple(given_up), tuple(given_up.values())))
            self._core.metrics.decided["discarded"].inc(len(applied.result.transaction_ids))
            for transaction_id in applied.result.transaction_ids:
                logger.warning("transaction %s discarded: nobody answered its checks", transaction_id)
        finally:
            self._discarding = False

    def _expire(self, now_ms: int) -> None:
        for transaction_id in [key for key, until_ms in self._leased_until_ms.items() if until_ms <= now_ms]:
            del self._leased_until_ms[transaction_id]
        steady_ms = self._core.steady_ms()
        while self._polled_at_ms:
            seen = next(iter(self._polled_at_ms))
            if steady_ms - self._polled_at_ms[seen] <= ORIGIN_SEEN_MS:
                break
            del self._polled_at_ms[seen]


def _wake(poller: Poller) -> None:
    if not poller.woken.done():
        poller.woken.set_result(None)
