"""Waiting for what is applied: per queue for consumers, for their groups, for anything at all for log readers.

A waiter costs nothing until its own queue moves: `notice` is told what each applied command touched, `wake` wakes them.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from store.commit_log import Entry
from store.errors import Refused
from store.index import Index
from store.log_references import LOG_RANGE_BYTES
from store.pop_results import InvisibleChanged, PopsExpired
from store.results import (
    DeadLettersReplayed,
    Decided,
    Discarded,
    Fired,
    Joined,
    Left,
    MessagesGivenBack,
    OffsetsReset,
    Prepared,
    Produced,
    Result,
    TopicDeleted,
    TopicPut,
)
from store.state_machine import FLUSH_ENTRIES, StateMachine
from store.topics import DISCARDED_TOPIC, DLQ_PREFIX, HALF_TOPIC, OP_HALF_TOPIC, RETRY_PREFIX

MOVES_GENERATIONS: Final = (
    Joined,
    Left,
    OffsetsReset,
    TopicPut,
    TopicDeleted,
    MessagesGivenBack,  # the first one brings its group another queue
    DeadLettersReplayed,
)
"""What may move the generation of a group on; of which one, those who wait see for themselves."""


class AppliedWaiters:
    """Loop-only. Waiters that are cancelled (a client that went away) leave nothing behind."""

    def __init__(self) -> None:
        self._by_queue: dict[tuple[str, int], set[asyncio.Future[None]]] = {}
        self._by_topic: dict[str, set[asyncio.Future[None]]] = {}
        self._any: set[asyncio.Future[None]] = set()
        self._touched: set[tuple[str, int]] = set()
        self._groups: set[asyncio.Future[None]] = set()
        self._groups_moved = False
        self.closed = False
        """The node stops: nobody waits any more."""

    def __len__(self) -> int:
        of_topics = {future for waiting in self._by_topic.values() for future in waiting}
        return sum(map(len, self._by_queue.values())) + len(of_topics) + len(self._any)

    @property
    def waiting_for_groups(self) -> int:
        """Heartbeats that wait for a rebalance; `len` is those that wait for messages or entries."""
        return len(self._groups)

    def notice(self, result: Result | Refused) -> None:
        """Remember which queues a result made longer. Their waiters wake with the next `wake`."""
        if self._groups and isinstance(result, MOVES_GENERATIONS):
            self._groups_moved = True
        if not self._by_queue and not self._by_topic:
            return
        if isinstance(result, Produced):
            self._touched.update((each.topic, each.queue) for each in result.results if each.offset is not None)
        elif isinstance(result, Decided | Fired):
            self._touched.update((each.topic, each.queue) for each in result.positions if each.offset is not None)
            if isinstance(result, Decided):
                self._touched.add((OP_HALF_TOPIC, 0))
        elif isinstance(result, Prepared):
            self._touched.add((HALF_TOPIC, 0))
        elif isinstance(result, PopsExpired):
            for group, _ in result.messages:
                self._touch_own(group)
        elif isinstance(result, InvisibleChanged | DeadLettersReplayed | MessagesGivenBack):
            self._touch_own(result.group)
        elif isinstance(result, Discarded):
            self._touched.update(((DISCARDED_TOPIC, 0), (OP_HALF_TOPIC, 0)))

    def _touch_own(self, group: str) -> None:
        """Given back without a delay, a message is there already; or it is dead."""
        self._touched.update(((RETRY_PREFIX + group, 0), (DLQ_PREFIX + group, 0)))

    def wake(self) -> None:
        """Something was applied: wake whoever waits for it."""
        if self._touched:
            for key in self._touched:
                _resolve(self._by_queue.pop(key, ()))
                self.wake_topic(key[0])
            self._touched.clear()
        if self._groups_moved:
            self._groups_moved = False
            groups, self._groups = self._groups, set()
            _resolve(groups)
        if self._any:
            woken, self._any = self._any, set()
            _resolve(woken)

    def wake_topic(self, topic: str) -> None:
        """Those who wait for any queue of the topic."""
        _resolve(self._by_topic.pop(topic, ()))

    def close(self) -> None:
        """Wake everybody; from now on waiting returns at once."""
        self.closed = True
        for waiting in (*self._by_queue.values(), *self._by_topic.values()):
            _resolve(waiting)
        _resolve(self._groups)
        _resolve(self._any)

    async def wait_queue(self, topic: str, queue: int, timeout_s: float) -> bool:
        """Until something is appended to the queue; False when the time is over first."""
        if self.closed:
            return False
        key = (topic, queue)
        future = asyncio.get_running_loop().create_future()
        self._by_queue.setdefault(key, set()).add(future)
        try:
            return await _wait(future, timeout_s)
        finally:
            waiting = self._by_queue.get(key)
            if waiting is not None:
                waiting.discard(future)
                if not waiting:
                    del self._by_queue[key]

    async def wait_topics(self, topics: Sequence[str], timeout_s: float) -> bool:
        """Until something is appended to some queue of one of them; False when the time is over first."""
        if self.closed:
            return False
        future = asyncio.get_running_loop().create_future()
        for topic in topics:
            self._by_topic.setdefault(topic, set()).add(future)
        try:
            return await _wait(future, timeout_s)
        finally:
            for topic in topics:
                waiting = self._by_topic.get(topic)
                if waiting is not None:
                    waiting.discard(future)
                    if not waiting:
                        del self._by_topic[topic]

    async def wait_groups(self, timeout_s: float) -> bool:
        """Until the generation of some group may have moved on; False when the time is over first."""
        if self.closed:
            return False
        future = asyncio.get_running_loop().create_future()
        self._groups.add(future)
        try:
            return await _wait(future, timeout_s)
        finally:
            self._groups.discard(future)

    async def wait_any(self, timeout_s: float) -> bool:
        """Until anything is applied; False when the time is over first."""
        if self.closed:
            return False
        future = asyncio.get_running_loop().create_future()
        self._any.add(future)
        try:
            return await _wait(future, timeout_s)
        finally:
            self._any.discard(future)


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
        for results in outcomes:
            for result in results:
                self._waiters.notice(result)
        return outcomes


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
