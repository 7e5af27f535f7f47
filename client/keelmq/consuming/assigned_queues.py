"""The queues that a member of a group has now, each with its reader: which of them are paused, fenced or leaving."""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from typing import Final

from keelmq.consuming.faults import Faults
from keelmq.consuming.group_session import TopicQueue
from keelmq.consuming.handover import Handover
from keelmq.consuming.queue_reader import Hold, QueueReader
from keelmq.consuming.session_watch import SessionWatch
from keelmq.consuming.stall_watch import StallWatch
from keelmq.errors import InvalidRequest
from keelmq.message import ReceivedMessage

CANCELLED_GRACE_MS: Final = 1_000
"""What a handler call gets to heed its cancellation when the consumer closes."""

log = logging.getLogger("keelmq")

_abandoned: Final[set[asyncio.Task[None]]] = set()
"""Only so that nobody forgets them before they have ended."""


class AssignedQueues:
    """`topics` are those that the member reads; pauses are by name, of queues that are assigned or may be later."""

    def __init__(
        self, topics: Collection[str], session_timeout_ms: int, handover: Handover | None, faults: Faults
    ) -> None:
        self.readers: dict[TopicQueue, QueueReader] = {}
        self.leaving: dict[TopicQueue, asyncio.Task[None]] = {}
        """Queues that are not read any more, as long as handler calls of theirs run."""
        self.session = SessionWatch(session_timeout_ms, self._session_ended)
        self.stalls = StallWatch(self._loop_stood)
        self._session_s = session_timeout_ms / 1000
        self._last_call: ReceivedMessage | None = None
        self._topics = topics
        self._handover = handover
        self._faults = faults
        self._all_paused = False
        self._paused: set[TopicQueue] = set()

    def pause(self, queues: Sequence[TopicQueue]) -> None:
        """`queues`, or everything. Raises InvalidRequest for what is no queue of the topics."""
        self._check(queues)
        self._all_paused = self._all_paused or not queues
        self._paused.update(queues)
        for place, reader in self.readers.items():
            if self.is_paused(place):
                self._hold(place, reader, "paused")

    def resume(self, queues: Sequence[TopicQueue]) -> None:
        """`queues`, unless everything is paused; without any, everything. Raises as `pause` does."""
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
        """What a new reader of `place` begins with."""
        holds: set[Hold] = set()
        if self.is_paused(place):
            holds.add("paused")
        if self.session.over:
            holds.add("session")
        return holds

    def go_on_if_session_lasts(self) -> None:
        """After the assignment of a renewed session is known."""
        if not self.session.over:
            for reader in self.readers.values():
                reader.go_on("session")

    def hold_until_looked_at(self) -> None:
        """The group has moved on more than once: a queue may have been another member's meanwhile, and come back. No
        handler call begins until it is known where the group is (`looked_at`)."""
        for place, reader in self.readers.items():
            self._hold(place, reader, "assignment")

    def looked_at(self) -> None:
        """Those that are still there are read from where the group is."""
        for reader in self.readers.values():
            reader.go_on("assignment")

    def told_over(self) -> None:
        """The broker says that there is no such session, whatever this side's clock says. What runs may end; whether
        that was in vain shows once the member has joined again."""
        self.session.ended()
        for place, reader in self.readers.items():
            self._hold(place, reader, "session")

    def release(self, place: TopicQueue, why: str, grace_ms: int, on_released: Callable[[], None]) -> None:
        """Stop reading `place`, in the background; it must not be read again here before that is done."""
        reader = self.readers.pop(place)

        def released(task: asyncio.Task[None]) -> None:
            del self.leaving[place]
            on_released()

        reader.begin_stop()
        self._faults.fenced(reader.handling, why)
        if reader.is_ahead:
            log.warning("%s/%d: %d is not committed, %s is: %s", *place, reader.position, reader.committed, why)
        task = asyncio.create_task(reader.stop(grace_ms))
        self.leaving[place] = task
        task.add_done_callback(released)

    async def stop(self, grace_ms: int) -> None:
        """Every reader, those that are leaving included. Handler calls that go on for longer than a second after they
        were cancelled are left alone: what they do may be done again, and their queues are not kept for them."""
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
        """No timer is left behind."""
        self.session.close()
        self.stalls.close()

    def before_call(self, messages: Sequence[ReceivedMessage]) -> None:
        """A handler is about to be called: if the loop stood, this comes before any timer that would tell of it."""
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
        """By this side's clock: the broker may have given the queues to others. What runs may end: if the session goes
        on after all, for nobody could be reached, it is committed."""
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
        """Whether the message's queue is this member's, as far as it can know."""
        return (message.topic, message.queue) in self.readers and not self.session.over
