"""Chooses the lane of a message; asks the cluster for the number of queues when a sharding key needs it."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Final
from urllib.parse import quote

from crc32c import crc32c

from keelmq import wire
from keelmq.producing.lane import Lane
from keelmq.transport.connection import Connection
from keelmq.transport.retry import Clock, Deadline

QUEUES_REFRESH_MS: Final = 30_000

Choose = Callable[[int], int]
"""Returns the queue of a message, given the number of queues."""
Add = Callable[[Lane], None]
"""Puts one message or batch into the given lane."""
Fail = Callable[[Exception], None]


def queue_for_key(sharding_key: str, queues: int) -> int:
    """Return the queue of `sharding_key` among `queues` by the rule of docs/http-api.md, the same in every client."""
    return crc32c(sharding_key.encode()) % queues


class TopicRoute:
    """Owns the lanes of one topic.

    Messages whose queue depends on the number of queues wait in the order of the calls until the number is known. When
    a topic grows, messages of one key stay in order before and after the change, not across it.
    """

    def __init__(
        self,
        topic: str,
        *,
        make_lane: Callable[[str, int | None], Lane],
        fetch_queues: Callable[[str], Awaitable[int]],
        clock: Callable[[], float],
    ) -> None:
        self.topic = topic
        self.any_queue = make_lane(topic, None)
        self._make_lane = make_lane
        self._fetch_queues = fetch_queues
        self._clock = clock
        self._by_queue: dict[int, Lane] = {}
        self._queues = 0
        self._fetched_at_s = 0.0
        self._parked: list[tuple[Choose, Add, Fail]] = []
        self._fetching: asyncio.Task[None] | None = None

    def lanes(self) -> list[Lane]:
        return [self.any_queue, *self._by_queue.values()]

    def tasks(self) -> set[asyncio.Task[None]]:
        """Return all running tasks of this topic."""
        tasks = {task for lane in self.lanes() for task in lane.workers}
        return tasks | {self._fetching} if self._fetching is not None else tasks

    async def flush(self) -> None:
        """Wait until every earlier message of this topic is stored or has failed; later ones do not matter."""
        if self._fetching is not None:
            await asyncio.wait([self._fetching])  # what waits for the number of queues is in its lane then
        if earlier := [batch.ended() for lane in self.lanes() for batch in lane.batches()]:
            await asyncio.wait(earlier)

    def lane_of_queue(self, queue: int) -> Lane:
        lane = self._by_queue.get(queue)
        if lane is None:
            lane = self._by_queue[queue] = self._make_lane(self.topic, queue)
        return lane

    def add_chosen(self, choose: Choose, add: Add, fail: Fail) -> None:
        """Call `add` with the lane of the chosen queue, at once or when the number of queues is known.

        At once, errors of `choose` and `add` are raised; later, `fail` receives them, or the error of the fetch.
        """
        if self._queues and not self._parked:
            add(self.lane_of_queue(choose(self._queues)))
        else:
            self._parked.append((choose, add, fail))
        stale = self._clock() - self._fetched_at_s > QUEUES_REFRESH_MS / 1000
        if (stale or not self._queues) and self._fetching is None:
            self._fetching = asyncio.create_task(self._fetch())

    def forget_queues(self) -> None:
        """Forget the number of queues, because the topic has changed; the next message that needs it fetches it."""
        self._queues = 0

    async def _fetch(self) -> None:
        try:
            self._queues = await self._fetch_queues(self.topic)
            self._fetched_at_s = self._clock()
        except Exception as exc:  # for example from the application's token function: no caller may be left waiting
            parked, self._parked = self._parked, []
            for _, _, fail in parked:
                fail(exc)
            return
        finally:
            self._fetching = None
        parked, self._parked = self._parked, []
        for choose, add, fail in parked:
            try:
                add(self.lane_of_queue(choose(self._queues)))
            except Exception as exc:  # for example from the application's selector: no caller may be left waiting
                fail(exc)

    def abort(self, error: Exception) -> None:
        if self._fetching is not None:
            self._fetching.cancel()
        parked, self._parked = self._parked, []
        for _, _, fail in parked:
            fail(error)
        for lane in self.lanes():
            lane.abort()


class QueueCounts:
    """Caches the number of queues per topic for at most 30 s."""

    def __init__(self, connection: Connection, clock: Clock = time.monotonic) -> None:
        self._connection = connection
        self._clock = clock
        self._known: dict[str, tuple[int, float]] = {}

    async def get(self, topic: str, deadline: Deadline) -> int:
        """Return the number of queues. Raises TopicNotFound, and what Connection.call raises."""
        count, fetched_at_s = self._known.get(topic, (0, 0.0))
        if not count or self._clock() - fetched_at_s > QUEUES_REFRESH_MS / 1000:
            info = await self._connection.call_for(
                wire.TopicInfo, "GET", f"/v1/topics/{quote(topic, safe='')}", deadline=deadline
            )
            count = info.queues
            self._known[topic] = (count, self._clock())
        return count

    def forget(self, topics: Iterable[str | None]) -> None:
        """Forget the numbers of these topics, because a queue or a topic was not there."""
        for topic in topics:
            self._known.pop(topic or "", None)
