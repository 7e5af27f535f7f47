"""A running group member: keeps its session, reads its assigned queues, and commits processed offsets."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from keelmq import wire
from keelmq.consuming.assigned_queues import AssignedQueues
from keelmq.consuming.faults import FAULT_PAUSE_S
from keelmq.consuming.group_beginnings import GroupBeginnings
from keelmq.consuming.group_session import MOVED_ON, SESSION_OVER, GroupSession, TopicQueue
from keelmq.consuming.pause_watch import PauseWatch
from keelmq.consuming.queue_reader import QueueReader
from keelmq.consuming.redelivery import wish_of
from keelmq.consuming.session_times import SessionTimes
from keelmq.errors import (
    AlreadyBegun,
    Conflict,
    Forbidden,
    InvalidRequest,
    KeelMQError,
    NotFound,
    OffsetOutOfRange,
)
from keelmq.limits import OFFSETS_MAX
from keelmq.line_log import log
from keelmq.message import ReceivedMessage
from keelmq.transport.connection import Connection
from keelmq.transport.retry import Backoff, Deadline

BEGIN_MS: Final = 15_000
"""Maximum time that a start tries to begin its queues, and waits for the other members to begin theirs."""
BEGIN_PAUSE_MS: Final = 20
BEGIN_PAUSE_MAX_MS: Final = 500

MakeReader = Callable[[TopicQueue, int], QueueReader]
"""Creates the reader of a queue at a committed offset."""


class GroupMember:
    """Runs the life of one group member.

    Call `begin` first, then run `keep_session` and `commit_for_ever` in tasks of their own; `leave` ends the
    membership. Invariant: a queue is read only from an offset that the group has committed.
    """

    def __init__(
        self,
        connection: Connection,
        group: str,
        session: GroupSession,
        queues: AssignedQueues,
        beginnings: GroupBeginnings,
        make_reader: MakeReader,
        times: SessionTimes,
    ) -> None:
        self.pauses = PauseWatch(group)
        self._connection = connection
        self._group = group
        self._session = session
        self._queues = queues
        self._readers = queues.readers
        self._beginnings = beginnings
        self._make_reader = make_reader
        self._heartbeat_s = times.heartbeat_s
        self._commit_interval_s = times.commit_interval_ms / 1000
        self._grace_ms = times.close_timeout_ms
        self.has_joined = False
        """True when the group may count this member."""
        self._generation = -1
        self._settled = False
        self._missed = False
        """True from a further join on until all is known again: other members may have had the queues, or the group or
        its topics may have been made anew, whatever the generation is."""
        self._closed = False
        self._node = ""
        self._progress = asyncio.Event()
        self._commit_lock = asyncio.Lock()
        self._refresh = asyncio.Event()

    def close(self) -> None:
        """Begin no further queues."""
        self._closed = True

    async def begin(self, *, whole_group: bool) -> None:
        """Join the group and begin the assigned queues.

        On return the group has an offset in each queue assigned to this member; with `whole_group` also in the queues
        of the other members, unless they take longer than 15 s. Raises what a join raises, and after 15 s the error
        that keeps this member from beginning."""
        membership = await self._join()
        backoff, deadline = Backoff(BEGIN_PAUSE_MS, BEGIN_PAUSE_MAX_MS), Deadline(BEGIN_MS)
        while not self._closed:
            try:
                begun = await self._apply(membership)
                self._queues.go_on_if_session_lasts()
                if begun and (not whole_group or await self._all_have_begun()):
                    return
                if begun and deadline.remaining_s() <= 0:
                    log.warning("group %s: other members have not committed where they begin", self._group)
                    return
                await asyncio.sleep(backoff.next_s())
                membership = await self._renewed()
            except KeelMQError as exc:
                if not (exc.retryable or exc.outcome_unknown) or deadline.remaining_s() <= 0:
                    raise
                await asyncio.sleep(backoff.next_s())

    async def keep_session(self) -> None:
        """Send heartbeats and follow the assignment for ever, or until an error that waiting cannot heal."""
        while True:
            due_s = asyncio.get_running_loop().time() + self._heartbeat_s
            if await self._refresh_membership():
                continue
            # Not wait_for: before Python 3.12 it loses a cancellation that arrives together with the awaited event.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(due_s):
                    await self._refresh.wait()

    async def commit_for_ever(self) -> None:
        backoff = Backoff(BEGIN_PAUSE_MS, BEGIN_PAUSE_MAX_MS)
        while True:
            await self._progress.wait()
            self._progress.clear()
            try:
                async with self._commit_lock:
                    await self._commit()
                backoff.reset()
            except MOVED_ON as exc:
                log.info("group %s: commit refused, looking at the assignment: %s", self._group, exc)
                self._look_at_assignment()
            except KeelMQError as exc:
                log.warning("group %s: offsets cannot be committed at the moment: %s", self._group, exc)
                self._progress.set()
                await asyncio.sleep(backoff.next_s())
            except Exception:  # a bug, or the application's token function: no commit must stop in silence
                log.exception("group %s: offsets cannot be committed at the moment", self._group)
                self._progress.set()
                await asyncio.sleep(FAULT_PAUSE_S)
            await asyncio.sleep(self._commit_interval_s)

    def progressed(self) -> None:
        """Wake the committer, because a reader has an offset to commit."""
        self._progress.set()

    async def give_back(self, messages: Sequence[ReceivedMessage], failure: BaseException) -> None:
        """Give messages of one queue back to the group for redelivery, without those that its retention or a purge has
        removed: nobody can get them again. Raises KeelMQError when the broker has not accepted them.
        """
        try:
            await self._give_back(messages, failure)
        except OffsetOutOfRange as exc:
            if len(messages) > 1:  # all or none, and the first ones are removed: the others are found in a few steps
                half = len(messages) // 2
                for part in (messages[:half], messages[half:]):
                    await self.give_back(part, failure)
                return
            place = (messages[0].topic, messages[0].queue, messages[0].offset)
            log.error("%s/%d: the message at offset %d is removed, and cannot be given back: %s", *place, exc)

    async def _give_back(self, messages: Sequence[ReceivedMessage], failure: BaseException) -> None:
        delay_ms, reason = wish_of(failure)
        try:
            generation = await self._session.give_back(self._generation, messages, delay_ms, reason)
        except MOVED_ON:
            self._look_at_assignment()
            raise
        if generation != self._generation:
            self._look_at_assignment()

    async def leave(self) -> None:
        """Commit the processed offsets and leave the group; failures are logged."""
        try:
            await self._commit()
        except Exception as exc:
            log.warning("group %s: the last offsets are not committed: %s", self._group, exc)
        try:
            await self._session.leave()
        except SESSION_OVER:
            pass
        except Exception as exc:
            log.warning("group %s: not left, the session ends by its time-out: %s", self._group, exc)

    # Membership

    async def _refresh_membership(self) -> bool:
        """Send a heartbeat and apply the membership.

        Returns True when the next heartbeat may begin at once, because it waits at the broker until the group changes.
        """
        before, wait_ms = self._generation, int(self._heartbeat_s * 1000) if self._settled else 0
        was_paused = self.pauses.is_paused
        try:
            try:
                sent_at_s = asyncio.get_running_loop().time()
                session = self._queues.session
                membership, waited = await self._session.heartbeat(before, wait_ms, self._refresh, session.broke)
                session.renewed(sent_at_s)
            except SESSION_OVER:
                log.warning("group %s: the session was over, joining again", self._group)
                self._queues.told_over()
                membership, waited = await self._join(), False
                self._settled = False  # a group that was created anew may have the same generation
            await self._apply(membership)
            self._queues.go_on_if_session_lasts()
        except KeelMQError as exc:
            if isinstance(exc, InvalidRequest | Conflict):
                log.error("group %s: cannot go on: %s", self._group, exc)
                raise
            why = self._queues.stalls.lately(self._heartbeat_s)
            log.warning("group %s: the session cannot be kept at the moment: %s%s", self._group, exc, why)
            return False
        except Exception:  # as for commits
            log.exception("group %s: the session cannot be kept at the moment", self._group)
            return False
        has_changed = membership.generation != before or self.pauses.is_paused != was_paused
        return self._settled and (not waited or has_changed)

    async def _join(self) -> wire.Membership:
        sent_at_s = asyncio.get_running_loop().time()
        self._missed = self.has_joined
        self.has_joined = True  # set before the request is sent, because its answer may be lost
        membership = await self._session.join()
        self._queues.session.renewed(sent_at_s)
        return membership

    async def _renewed(self) -> wire.Membership:
        sent_at_s = asyncio.get_running_loop().time()
        try:
            membership, _ = await self._session.heartbeat(self._generation, 0, self._refresh)
        except SESSION_OVER:
            self._queues.told_over()
            return await self._join()
        self._queues.session.renewed(sent_at_s)
        return membership

    async def _all_have_begun(self) -> bool:
        try:
            detail = await self._session.detail()
        except SESSION_OVER:
            self._look_at_assignment()
            return False
        begun = {(each.topic, each.queue) for each in detail.offsets}
        return all((place.topic, place.queue) in begun for member in detail.members for place in member.assignment)

    async def _apply(self, membership: wire.Membership) -> bool:
        """Start and release readers as the membership says, and notice offsets that were reset or are gone.

        Returns False when the group has moved on meanwhile."""
        if self._node != self._connection.current:
            self._node = self._connection.current
            for reader in self._readers.values():
                reader.refetch()
        if membership.paused is not msgspec.UNSET and self.pauses.told(membership.paused):
            self._queues.follow_group(paused=self.pauses.is_paused)
        if self._settled and membership.generation == self._generation:
            return True
        wanted = {(each.topic, each.queue) for each in membership.assignment}
        for place in self._readers.keys() - wanted:  # at once, because fetching the committed offsets may take long
            self._queues.release(place, "the queue is another member's", self._grace_ms, self._refresh.set)
        missed = self._missed or membership.generation > self._generation + 1
        if missed:
            self._queues.hold_until_looked_at()
        committed, committed_index = await self._look_at_offsets(missed)
        self._queues.looked_at()
        new = wanted - self._readers.keys() - self._queues.leaving.keys()
        try:
            positions = await self._begun(new, committed, membership.generation)
        except (*MOVED_ON, AlreadyBegun, NotFound, OffsetOutOfRange) as exc:
            log.info("group %s: what was to be read has changed, looking at the assignment: %s", self._group, exc)
            self._generation = membership.generation
            self._look_at_assignment()
            return False
        if self._closed:
            return True
        for place, position in positions.items():
            self._readers[place] = self._make_reader(place, position)
        for reader in self._readers.values():
            # A node that does not know of this assignment may still have an earlier topic of the same name.
            reader.require(committed_index)
        self._generation, self._missed = membership.generation, False
        self._settled = wanted == self._readers.keys()
        self._progress.set()
        log.info("group %s: generation %d, reading %s", self._group, self._generation, sorted(self._readers))
        return True

    async def _look_at_offsets(self, missed: bool) -> tuple[dict[TopicQueue, int], int]:
        """Stop reading the queues whose reader is not where the group is; `missed` says that a rebalance was missed.

        Returns the committed offsets, and the entry that the leader had applied by then."""
        async with self._commit_lock:  # a commit in flight would look like a reset
            committed = await self._session.committed()
            committed_index = self._session.committed_index
            for place, reader in list(self._readers.items()):
                self._release_if_moved(place, reader, committed)
            if missed:
                await self._release_if_made_anew()
        return committed, committed_index

    def _release_if_moved(self, place: TopicQueue, reader: QueueReader, committed: Mapping[TopicQueue, int]) -> None:
        """Stop reading a queue whose reader is not at the group's committed offset any more."""
        offset = committed.get(place)
        if offset == reader.committed or offset in reader.sent:
            return
        if place not in committed:
            self._beginnings.was_at(place, reader.position)
        self._queues.release(place, "the group's offset was moved", self._grace_ms, self._refresh.set)

    async def _release_if_made_anew(self) -> None:
        """Stop reading the queues of topics that were made anew since their messages were fetched: the group's offsets
        may be the same as before."""
        beyond = {place: reader for place, reader in self._readers.items() if reader.is_beyond}
        for topic in sorted({topic for topic, _ in beyond}):
            try:
                created_at_ms = (await self._session.topic(topic)).created_at_ms
            except (NotFound, Forbidden):  # it is gone, or this member may not describe it
                created_at_ms = None
            for place, reader in beyond.items():
                if place[0] != topic or self._readers.get(place) is not reader:
                    continue
                if created_at_ms is None or reader.first_ms is None or reader.first_ms <= created_at_ms:
                    self._queues.release(
                        place, "the topic may be another one by now", self._grace_ms, self._refresh.set
                    )

    async def _begun(
        self, places: set[TopicQueue], committed: Mapping[TopicQueue, int], generation: int
    ) -> dict[TopicQueue, int]:
        """Return the offset at which to read each queue.

        In queues without a committed offset, this member commits the group's first offset before it reads: whatever
        happens to this member, no other member then chooses another one. Raises one of MOVED_ON, or AlreadyBegun, when
        the group has moved on."""
        missing = sorted(place for place in places if place not in committed)
        if missing or not self._beginnings.knows_the_group:
            self._beginnings.saw((await self._session.detail()).members)
        if missing and not self._closed:
            begin = await self._beginnings.find(missing)
            for first in range(0, len(missing), OFFSETS_MAX):
                part = missing[first : first + OFFSETS_MAX]
                await self._session.commit(generation, {place: begin[place] for place in part}, begins=True)
            committed = {**committed, **begin}
        return {place: committed[place] for place in sorted(places) if place in committed}

    def _look_at_assignment(self) -> None:
        self._settled = False
        self._refresh.set()

    # Offsets

    async def _commit(self) -> None:
        due = [reader for reader in self._readers.values() if reader.position != reader.committed]
        for first in range(0, len(due), OFFSETS_MAX):
            offsets = {}
            part = due[first : first + OFFSETS_MAX]
            for reader in part:
                offsets[reader.place] = reader.position
                reader.sent.add(reader.position)
            await self._session.commit(self._generation, offsets)
            for reader in part:
                reader.committed = offsets[reader.place]
                reader.sent.clear()
