"""Long polls: consumers wait for a queue or the end of a pause, members for their group, readers for an entry.

A waiter costs nothing until its own queue or group moves: the state machine names the moved ones, and `wake` wakes
their waiters. Only a few waiters are woken per turn of the loop, so that other work gets a turn in between. A group
that moves again and again wakes its members no faster than MEMBERS_TOLD_PER_S.
"""

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

from cluster.core.index_waiters import IndexWaiters
from cluster.process.request_scope import note_polled
from store.commands.entry import Result
from store.errors import Refused
from store.index.index import Index
from store.log.commit_log import Entry
from store.messages.log_references import LOG_RANGE_BYTES
from store.state.machine import FLUSH_ENTRIES, StateMachine

WOKEN_PER_TURN: Final = 16
"""Maximum number of waiters woken in one turn of the loop: answering them takes some four milliseconds."""

MEMBERS_TOLD_PER_S: Final = 500
"""Members of one group that are told of rebalances per second. A group rests in proportion to its members before they
are told of the next rebalance, so that a rolling start of many members costs their number, not its square."""


Key = TypeVar("Key", str, tuple[str, int])


class AppliedWaiters:
    """Owns the waiters of all long polls. Use on the event loop only. A cancelled waiter, as of a client that went
    away, leaves nothing behind.
    """

    def __init__(self) -> None:
        # Dicts serve as ordered sets: waiters are woken in the order in which they came.
        self._by_queue: dict[tuple[str, int], dict[asyncio.Future[None], None]] = {}
        self._by_topic: dict[str, dict[asyncio.Future[None], None]] = {}
        self._by_group: dict[str, dict[asyncio.Future[None], None]] = {}
        self._by_pause: dict[str, dict[asyncio.Future[None], None]] = {}
        self.entries = IndexWaiters()
        """Waiters for the index of an entry, whatever the entry does."""
        self._touched: dict[tuple[str, int], None] = {}
        self._moved_groups: dict[str, None] = {}
        self._turned_groups: dict[str, None] = {}
        self._resting: dict[str, bool] = {}
        """Groups whose members were told of a rebalance a moment ago; True when they have to be told again."""
        self._turns = _Turns()
        self.closed = False
        """True when the node stops, so that nobody waits any more."""

    def __len__(self) -> int:
        of_topics = {future for waiting in self._by_topic.values() for future in waiting}
        at_pauses = sum(map(len, self._by_pause.values()))
        return sum(map(len, self._by_queue.values())) + len(of_topics) + at_pauses + len(self.entries)

    @property
    def woken(self) -> int:
        """Number of waiters of queues, topics and groups that were woken since the start."""
        return self._turns.woken

    def notice_groups(self, groups: Iterable[str]) -> None:
        """Remember groups whose generation moved on. Their waiters wake with the next `wake`."""
        self._moved_groups.update((group, None) for group in groups if group in self._by_group)

    def notice_pauses(self, groups: Iterable[str]) -> None:
        """Remember groups that were paused or resumed. Their members, and those who wait for the end of a pause, wake
        with the next `wake`."""
        for group in groups:
            self._turned_groups[group] = None
            self.notice_groups((group,))

    def notice_queues(self, queues: Iterable[tuple[str, int]]) -> None:
        """Remember queues, by topic and number, that became longer. Their waiters wake with the next `wake`."""
        if self._by_queue or self._by_topic:
            self._touched.update((queue, None) for queue in queues)

    def wake(self) -> None:
        """Wake the waiters of all queues and groups noticed since the last call."""
        if self._touched:
            for key in self._touched:
                self._turns.resolve(self._by_queue.pop(key, ()))
                self.wake_topic(key[0])
            self._touched.clear()
        if self._moved_groups:
            for group in self._moved_groups:
                self._wake_group(group)
            self._moved_groups.clear()
        if self._turned_groups:
            for group in self._turned_groups:
                self._turns.resolve(self._by_pause.pop(group, ()))
            self._turned_groups.clear()

    def wake_topic(self, topic: str) -> None:
        """Wake the waiters for any queue of the topic."""
        self._turns.resolve(self._by_topic.pop(topic, ()))

    def _wake_group(self, group: str) -> None:
        if group in self._resting:
            self._resting[group] = True
            return
        waiting = self._by_group.pop(group, None)
        if waiting:
            self._resting[group] = False
            pause_s = len(waiting) / MEMBERS_TOLD_PER_S
            asyncio.get_running_loop().call_later(pause_s, self._rested, group)
            self._turns.resolve(waiting)

    def _rested(self, group: str) -> None:
        if self._resting.pop(group):
            self._wake_group(group)

    def rests(self, group: str) -> bool:
        """Return whether the group rests, because its members were told of a rebalance a moment ago. A heartbeat with
        time to wait waits for the end of the rest, when all members are told of further rebalances together."""
        return group in self._resting

    def close(self) -> None:
        """Wake all waiters. From now on waiting returns at once."""
        self.closed = True
        for waiting in itertools.chain(*(each.values() for each in self._waiting())):
            _resolve(waiting)
        self.entries.close()

    def _waiting(self) -> "Iterable[dict[Any, dict[asyncio.Future[None], None]]]":
        return (self._by_queue, self._by_topic, self._by_group, self._by_pause)

    async def wait_queue(self, topic: str, queue: int, timeout_s: float) -> bool:
        """Wait until a batch is appended to the queue. Return False after `timeout_s`."""
        return not self.closed and await _wait_among(self._by_queue, ((topic, queue),), timeout_s)

    async def wait_topics(self, topics: Sequence[str], timeout_s: float) -> bool:
        """Wait until a batch is appended to a queue of one of the topics. Return False after `timeout_s`."""
        return not self.closed and await _wait_among(self._by_topic, topics, timeout_s)

    async def wait_pause(self, group: str, timeout_s: float) -> bool:
        """Wait until the group is paused or resumed, or is deleted while paused. Return False after `timeout_s`."""
        return not self.closed and await _wait_among(self._by_pause, (group,), timeout_s)

    async def wait_group(self, group: str, timeout_s: float, *, is_behind: bool = False) -> bool:
        """Wait until the group may have moved on: its generation, or its pause. Return False after `timeout_s`.

        `is_behind` says that the generation is past the waiter's already: it is told at the end of the group's rest.
        """
        if is_behind and group in self._resting:
            self._resting[group] = True
        return not self.closed and await _wait_among(self._by_group, (group,), timeout_s)


class WakingStateMachine(StateMachine):
    """The state machine, which also tells the long polls which queues grew and which groups moved."""

    def __init__(
        self,
        index: Index,
        waiters: AppliedWaiters,
        *,
        flush_entries: int = FLUSH_ENTRIES,
        log_range_bytes: int = LOG_RANGE_BYTES,
    ) -> None:
        super().__init__(index, flush_entries=flush_entries, log_range_bytes=log_range_bytes)
        self._waiters = waiters

    def apply(
        self, entries: Sequence[Entry], may_go_on: Callable[[], bool] = lambda: True
    ) -> list[list[Result | Refused]]:
        outcomes = super().apply(entries, may_go_on)
        self._waiters.notice_queues(self.take_grown_queues())
        self._waiters.notice_groups(self.take_moved_groups())
        self._waiters.notice_pauses(self.take_paused_groups())
        return outcomes


class _Turns:
    """Resolves futures in the order in which they come, at most WOKEN_PER_TURN in one turn of the loop."""

    def __init__(self) -> None:
        self._queued: deque[asyncio.Future[None]] = deque()
        self._goes_on = False
        self.woken = 0

    def resolve(self, futures: "Iterable[asyncio.Future[None]]") -> None:
        self._queued.extend(futures)
        if self._queued and not self._goes_on:
            self._turn()

    def _turn(self) -> None:
        left = WOKEN_PER_TURN
        while left and self._queued:
            future = self._queued.popleft()
            if not future.done():
                future.set_result(None)
                self.woken += 1
                left -= 1
        # A turn also follows the last future: waiters that are woken now go on in the next turn.
        self._goes_on = left < WOKEN_PER_TURN
        if self._goes_on:
            asyncio.get_running_loop().call_soon(self._turn)


async def _wait_among(
    waiting: "dict[Key, dict[asyncio.Future[None], None]]", keys: Sequence[Key], timeout_s: float
) -> bool:
    future = asyncio.get_running_loop().create_future()
    for key in keys:
        waiting.setdefault(key, {})[future] = None
    try:
        return await _wait(future, timeout_s)
    finally:
        for key in keys:
            of_key = waiting.get(key)
            if of_key is not None:
                of_key.pop(future, None)
                if not of_key:
                    del waiting[key]


async def _wait(future: "asyncio.Future[None]", timeout_s: float) -> bool:
    begun_s = time.perf_counter()
    try:
        async with asyncio.timeout(timeout_s):
            await future
    except TimeoutError:
        return False
    finally:
        note_polled(begun_s)
    return True


def _resolve(waiting: "Iterable[asyncio.Future[None]]") -> None:
    for future in waiting:
        if not future.done():
            future.set_result(None)
