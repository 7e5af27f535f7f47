"""Waiting for what is applied: per queue for consumers, per group for its members, per entry for log readers.

A waiter costs nothing until its own queue or group moves: the state machine says which did, `wake` wakes them. However
many there are, they are woken a few per turn of the loop, so that everybody else gets a turn in between; and a group
that moves again and again wakes its members no faster than MEMBERS_TOLD_PER_S.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

from cluster.core.index_waiters import IndexWaiters
from store.commands.entry import Result
from store.errors import Refused
from store.index.index import Index
from store.log.commit_log import Entry
from store.messages.log_references import LOG_RANGE_BYTES
from store.state.machine import FLUSH_ENTRIES, StateMachine

WOKEN_PER_TURN: Final = 16
"""Waiters that go on in one turn of the loop: answering so many takes some four milliseconds."""

MEMBERS_TOLD_PER_S: Final = 500
"""After its members were told of a rebalance a group rests, the longer the more they are, before they are told of the
next one: a rolling start of many members costs what they are, not their square."""


Key = TypeVar("Key", str, tuple[str, int])


class AppliedWaiters:
    """Loop-only. Waiters that are cancelled (a client that went away) leave nothing behind."""

    def __init__(self) -> None:
        # Dicts for sets: who came first is woken first.
        self._by_queue: dict[tuple[str, int], dict[asyncio.Future[None], None]] = {}
        self._by_topic: dict[str, dict[asyncio.Future[None], None]] = {}
        self._by_group: dict[str, dict[asyncio.Future[None], None]] = {}
        self.entries = IndexWaiters()
        """Those who wait for an entry, whatever it does."""
        self._touched: dict[tuple[str, int], None] = {}
        self._moved_groups: dict[str, None] = {}
        self._resting: dict[str, bool] = {}
        """Groups whose members were told a moment ago, and whether they have to be told again."""
        self._turns = _Turns()
        self.closed = False
        """The node stops: nobody waits any more."""

    def __len__(self) -> int:
        of_topics = {future for waiting in self._by_topic.values() for future in waiting}
        return sum(map(len, self._by_queue.values())) + len(of_topics) + len(self.entries)

    @property
    def waiting_for_groups(self) -> int:
        """Heartbeats that wait for a rebalance; `len` is those that wait for messages or entries."""
        return sum(map(len, self._by_group.values()))

    @property
    def woken(self) -> int:
        """Waiters of queues, topics and groups that were woken since the start."""
        return self._turns.woken

    def notice_groups(self, groups: Iterable[str]) -> None:
        """Remember groups whose generation moved on. Their waiters wake with the next `wake`."""
        self._moved_groups.update((group, None) for group in groups if group in self._by_group)

    def notice_queues(self, queues: Iterable[tuple[str, int]]) -> None:
        """Remember queues, by topic and number, that became longer. Their waiters wake with the next `wake`."""
        if self._by_queue or self._by_topic:
            self._touched.update((queue, None) for queue in queues)

    def wake(self) -> None:
        """Something was applied: wake whoever waits for it."""
        if self._touched:
            for key in self._touched:
                self._turns.resolve(self._by_queue.pop(key, ()))
                self.wake_topic(key[0])
            self._touched.clear()
        if self._moved_groups:
            for group in self._moved_groups:
                self._wake_group(group)
            self._moved_groups.clear()

    def wake_topic(self, topic: str) -> None:
        """Those who wait for any queue of the topic."""
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
        """Whether members of the group were told of a rebalance a moment ago: whoever asks with time to wait, waits for
        the end of the rest; what moved meanwhile is told to all of them together."""
        return group in self._resting

    def close(self) -> None:
        """Wake everybody; from now on waiting returns at once."""
        self.closed = True
        for waiting in (*self._by_queue.values(), *self._by_topic.values(), *self._by_group.values()):
            _resolve(waiting)
        self.entries.close()

    async def wait_queue(self, topic: str, queue: int, timeout_s: float) -> bool:
        """Until something is appended to the queue; False when the time is over first."""
        return not self.closed and await _wait_among(self._by_queue, ((topic, queue),), timeout_s)

    async def wait_topics(self, topics: Sequence[str], timeout_s: float) -> bool:
        """Until something is appended to some queue of one of them; False when the time is over first."""
        return not self.closed and await _wait_among(self._by_topic, topics, timeout_s)

    async def wait_group(self, group: str, timeout_s: float, *, is_behind: bool = False) -> bool:
        """Until the generation of the group may have moved on; False when the time is over first. `is_behind`: it has
        for this waiter already, which is told at the end of the group's rest.
        """
        if is_behind and group in self._resting:
            self._resting[group] = True
        return not self.closed and await _wait_among(self._by_group, (group,), timeout_s)


class WakingStateMachine(StateMachine):
    """The state machine; tells long polls which queues an applied command made longer."""

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
        # Also behind the last one: what is woken now goes on in the next turn.
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
    try:
        async with asyncio.timeout(timeout_s):
            await future
    except TimeoutError:
        return False
    return True


def _resolve(waiting: "Iterable[asyncio.Future[None]]") -> None:
    for future in waiting:
        if not future.done():
            future.set_result(None)
