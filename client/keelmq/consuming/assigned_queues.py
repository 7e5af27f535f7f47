"""Queues that are assigned to a group member, each with its reader; tracks paused, fenced and leaving queues."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Final

from keelmq.consuming.faults import Faults
from keelmq.consuming.group_session import TopicQueue
from keelmq.consuming.handover import Handover
from keelmq.consuming.queue_reader import Hold, QueueReader
from keelmq.consuming.session_watch import SessionWatch
from keelmq.consuming.stall_watch import StallWatch
from keelmq.errors import InvalidRequest
from keelmq.line_log import log
from keelmq.message import ReceivedMessage

CANCELLED_GRACE_MS: Final = 1_000
"""Time that a handler call gets to end after its cancellation when the consumer closes."""

_abandoned: Final[set[asyncio.Task[None]]] = set()
"""Keeps references to tasks until they end, because the event loop keeps only weak ones."""


class AssignedQueues:
    """Owns the readers of a member's assigned queues and of queues that it is leaving.

    `topics` are the topics that the member reads. Pauses are stored by queue, so they also apply to queues assigned
    later.
    """

    def __init__(
        self, topics: Collection[str], session_timeout_ms: int, handover: Handover | None, faults: Faults
    ) -> None:
        self.readers: dict[TopicQueue, QueueReader] = {}
        self.leaving: dict[TopicQueue, asyncio.Task[None]] = {}
        """Queues that are no longer read, with the task that ends when their handler calls have ended."""
        self.session = SessionWatch(session_timeout_ms, self._session_ended)
        self.stalls = StallWatch(self._loop_stood)
        self._session_s = session_timeout_ms / 1000
        self._last_call: ReceivedMessage | None = None
        self._topics = topics
        self._handover = handover
        self._faults = faults
        self._all_paused = False
        self._paused: set[TopicQueue] = set()
        self._group_paused = False

    def pause(self, queues: Sequence[TopicQueue]) -> None:
        """Pause `queues`, or all queues if none is given. Raises InvalidRequest for a queue of another topic."""
        self._check(queues)
        self._all_paused = self._all_paused or not queues
        self._paused.update(queues)
        for place, reader in self.readers.items():
            if self.is_paused(place):
                self._hold(place, reader, "paused")

    def resume(self, queues: Sequence[TopicQueue]) -> None:
        """Resume `queues`, unless all queues are paused; without arguments, resume all. Raises as `pause` does."""
        self._check(queues)
        if queues:
            self._paused.difference_update(queues)
        else:
            self._all_paused = False
            self._paused.clear()
        for place, reader in self.readers.items():
            if not self.is_paused(place):
                reader.go_on("paused")

    def is_paused(self, place: TopicQueue) -> bool:
        return self._all_paused or place in self._paused

    def holds(self, place: TopicQueue) -> set[Hold]:
        """Return the holds that a new reader of `place` begins with."""
        holds: set[Hold] = set()
        if self.is_paused(place):
            holds.add("paused")
        if self.session.over:
            holds.add("session")
        if self._group_paused:
            holds.add("group")
        return holds

    def follow_group(self, *, paused: bool) -> None:
        """Hold all queues while an operator has paused the group: what was fetched is kept, running calls end."""
        self._group_paused = paused
        for place, reader in self.readers.items():
            if paused:
                self._hold(place, reader, "group")
            else:
                reader.go_on("group")

    def go_on_if_session_lasts(self) -> None:
        """Release the session holds; called when the assignment of a renewed session is known."""
        if not self.session.over:
            for reader in self.readers.values():
                reader.go_on("session")

    def hold_until_looked_at(self) -> None:
        """Hold all queues until `looked_at`, because the group has moved on more than once.

        A queue may have belonged to another member meanwhile and have come back, so no handler call begins until the
        group's committed offsets are known."""
        for place, reader in self.readers.items():
            self._hold(place, reader, "assignment")

    def looked_at(self) -> None:
        """Release the holds of `hold_until_looked_at`; remaining queues are read at the group's offsets."""
        for reader in self.readers.values():
            reader.go_on("assignment")

    def told_over(self) -> None:
        """Hold all queues because the broker reports that the session is over, whatever this client's clock says.

        Running handler calls may end; whether their results still count shows once the member has joined again."""
        self.session.ended()
        for place, reader in self.readers.items():
            self._hold(place, reader, "session")

    def release(self, place: TopicQueue, why: str, grace_ms: int, on_released: Callable[[], None]) -> None:
        """Stop reading `place`, in the background; it must not be read again here before `on_released` is called."""
        reader = self.readers.pop(place)

        def released(task: asyncio.Task[None]) -> None:
            del self.leaving[place]
            on_released()

        reader.begin_stop()
        if self._handover is not None:  # a loop that comes during the grace must not take it any more
            self._handover.withdraw(place)
        self._faults.fenced(reader.handling, why)
        if reader.is_ahead:
            log.warning("%s/%d: %d is not committed, %s is: %s", *place, reader.position, reader.committed, why)
        task = asyncio.create_task(reader.stop(grace_ms))
        self.leaving[place] = task
        task.add_done_callback(released)

    async def stop(self, grace_ms: int) -> None:
        """Stop every reader, including those of leaving queues.

        Handler calls that continue for more than a second after their cancellation are abandoned: their messages may be
        handled again, and their queues are not kept for them."""
        leaving = dict(self.leaving)
        for place, reader in self.readers.items():
            leaving[place] = asyncio.create_task(reader.stop(grace_ms))
        if not leaving:
            return
        stopping = set(leaving.values())
        _, stuck = await asyncio.wait(stopping, timeout=(grace_ms + CANCELLED_GRACE_MS) / 1000)
        for place, task in leaving.items():
            if task in stuck:
                _abandoned.add(task)
                task.add_done_callback(_abandoned.discard)
                log.error("%s/%d: a handler does not end though it was cancelled, and runs on unheeded", *place)
                if place in self.readers:
                    self._faults.fenced(self.readers[place].handling, "the consumer was closed")

    def close(self) -> None:
        """Cancel all timers."""
        self.session.close()
        self.stalls.close()

    def before_call(self, messages: Sequence[ReceivedMessage]) -> None:
        """Look for a stall and an ended session before a handler is called, because their timers may be late."""
        self.stalls.look()
        self.session.look()
        self._last_call = messages[0]

    def _loop_stood(self, stood_s: float) -> None:
        last = self._last_call
        called = "" if last is None else f"; the last call was for {last.topic}/{last.queue} {last.message_id}"
        log.warning(
            "the event loop of this process stood for %.1f s, and no heartbeat was sent: a handler that blocks has "
            "to be a plain function (def), which runs in a thread%s",
            stood_s,
            called,
        )

    def _session_ended(self) -> None:
        """Hold and fence all queues when the session is over by this client's clock: other members may own them now.

        Running handler calls may end. Their messages are committed if the session continues after all, because no node
        could be reached."""
        why = f"no heartbeat got through for a session's time{self.stalls.lately(self._session_s)}"
        log.error("%s: handling waits until one does", why)
        for place, reader in self.readers.items():
            self._hold(place, reader, "session")
            self._faults.fenced(reader.handling, why)

    def _hold(self, place: TopicQueue, reader: QueueReader, why: Hold) -> None:
        reader.hold(why)
        if self._handover is not None:
            self._handover.withdraw(place)

    def _check(self, queues: Sequence[TopicQueue]) -> None:
        for place in queues:
            if type(place) is not tuple or [type(part) for part in place] != [str, int] or place[1] < 0:
                raise InvalidRequest("invalid_request", f"{place!r}: a queue is named by (topic, number)")
            if place[0] not in self._topics:
                raise InvalidRequest("invalid_request", f"{place!r}: this consumer reads no such topic")

    def owns(self, message: ReceivedMessage) -> bool:
        """Return whether the message's queue is assigned to this member, as far as the member can know."""
        return (message.topic, message.queue) in self.readers and not self.session.over
