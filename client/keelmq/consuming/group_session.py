"""Calls of a group member: join, heartbeat, offsets, leave. One HTTP call per method, no policy."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple
from urllib.parse import quote

import msgspec

from keelmq import wire
from keelmq.blocks.batch import decode_block, received_messages
from keelmq.consuming.selection import EVERYTHING, Selection
from keelmq.consuming.session_times import SessionTimes
from keelmq.errors import (
    Corrupt,
    GroupNotFound,
    MemberNotFound,
    NotAssigned,
    OffsetMovesBack,
    StaleGeneration,
    Unavailable,
    UnknownOutcome,
)
from keelmq.limits import GIVE_BACK_MESSAGES_MAX
from keelmq.message import ReceivedMessage
from keelmq.transport.connection import Connection
from keelmq.transport.http1 import HttpResponse
from keelmq.transport.retry import Deadline

TopicQueue = tuple[str, int]

PULL_MARGIN_MS: Final = 5_000

SESSION_OVER: Final = (MemberNotFound, GroupNotFound)
"""Errors that mean that the session is over or the group was deleted meanwhile; the member has to join again."""
MOVED_ON: Final = (StaleGeneration, NotAssigned, OffsetMovesBack, *SESSION_OVER)
"""Errors that mean that another assignment is in force; it has to be fetched."""


class GroupSession:
    """Makes the calls of one group member. Methods raise what Connection.call raises.

    The client chooses `member_id`, so repeating a join is harmless.
    """

    def __init__(
        self,
        connection: Connection,
        group: str,
        topics: Mapping[str, Selection],
        *,
        member_id: str,
        client_id: str,
        times: SessionTimes,
    ) -> None:
        self._connection = connection
        self._topics = dict(topics)
        self._path = f"/v1/groups/{quote(group, safe='')}"
        self.member_id = member_id
        self._client_id = client_id
        self._session_timeout_ms = times.session_timeout_ms
        self._call_timeout_ms = times.call_timeout_ms
        self.committed_index = 0
        """Minimum index that the leader had applied when it last returned the committed offsets; 0 if it is unknown."""
        self._told: wire.GroupPause | msgspec.UnsetType | None = msgspec.UNSET

    @property
    def knows_pauses(self) -> bool:
        """Return whether every node takes fields about pauses of groups: whoever answered last has told of them."""
        return self._told is not msgspec.UNSET

    async def join(self) -> wire.Membership:
        """Join the group. Raises InvalidFilter, and Conflict when the other members read something else."""
        request = wire.JoinRequest(
            list(self._topics),
            self._client_id,
            self._session_timeout_ms,
            self.member_id,
            tags={topic: each.tags for topic, each in self._topics.items() if each.tags is not None},
            filters={topic: each.filter for topic, each in self._topics.items() if each.filter is not None},
        )
        joined = await self._connection.call_for(
            wire.Membership, "POST", f"{self._path}/members", body=request, deadline=self._deadline(), tries=3
        )
        self._told = joined.paused
        return joined

    async def heartbeat(
        self, generation: int, wait_ms: int, asked: asyncio.Event, on_broken: Callable[[], None] = lambda: None
    ) -> tuple[wire.Membership, bool]:
        """Send a heartbeat; return the membership, and whether it waited (or tried to wait) at the broker for a change.

        The heartbeat waits at most `wait_ms` for a rebalance, a pause or its end, and until `asked` is set, which
        this call clears. After that, or when the waiting heartbeat got lost, a plain one follows; `on_broken` is
        called before it, because the broker soon ends a session whose connection broke. Raises one of SESSION_OVER:
        join again.
        """
        lost = False
        if wait_ms and not asked.is_set():
            membership = await self._rebalance(generation, wait_ms, asked)
            if membership is not None:
                return membership, True
            on_broken()
            lost = not asked.is_set()
        asked.clear()
        return await self._heartbeat(wire.HeartbeatRequest(max(generation, 0)), self._call_timeout_ms, tries=3), lost

    async def _rebalance(self, generation: int, wait_ms: int, asked: asyncio.Event) -> wire.Membership | None:
        body = wire.HeartbeatRequest(generation, wait_ms)
        timeout_ms = wait_ms + min(self._call_timeout_ms, self._session_timeout_ms // 3)
        beat = asyncio.create_task(self._heartbeat(body, timeout_ms, tries=1, waits_ms=wait_ms))
        interrupted = asyncio.create_task(asked.wait())
        try:
            await asyncio.wait((beat, interrupted), return_when=asyncio.FIRST_COMPLETED)
            return beat.result() if beat.done() else None
        except (Unavailable, UnknownOutcome):
            return None
        finally:
            beat.cancel()
            interrupted.cancel()
            await asyncio.gather(beat, interrupted, return_exceptions=True)

    async def _heartbeat(
        self, body: wire.HeartbeatRequest, timeout_ms: int, *, tries: int, waits_ms: int = 0
    ) -> wire.Membership:
        path = f"{self._path}/members/{self.member_id}/heartbeat"
        deadline = Deadline(timeout_ms)
        if self.knows_pauses:
            body.paused = self._told is not None
        membership = await self._connection.call_for(
            wire.Membership, "POST", path, body=body, deadline=deadline, tries=tries, waits_ms=waits_ms
        )
        self._told = membership.paused
        return membership

    async def leave(self) -> None:
        await self._connection.call(
            "DELETE", f"{self._path}/members/{self.member_id}", deadline=self._deadline(), tries=3
        )

    async def committed(self) -> dict[TopicQueue, int]:
        """Return the committed offsets of the group; queues without a commit are missing.

        Only the leader is asked, because on a lagging node a committed offset looks as if it had never been committed.
        Waits for a leader as long as a call may take, then raises NoLeader.
        """
        self.committed_index = 0
        try:
            response = await self._connection.call(
                "GET", f"{self._path}/offsets", deadline=self._deadline(), leader_only=True
            )
        except GroupNotFound:
            return {}
        self.committed_index = applied_index(response) or 0
        offsets = wire.decode(wire.GroupOffsetsResponse, response.body, response.headers.get("content-type", ""))
        return {(each.topic, each.queue): each.offset for each in offsets.offsets}

    async def detail(self) -> wire.GroupDetail:
        """Return members and offsets as the leader knows them. Raises GroupNotFound."""
        return await self._connection.call_for(
            wire.GroupDetail, "GET", self._path, deadline=self._deadline(), leader_only=True
        )

    async def topic(self, name: str) -> wire.TopicInfo:
        """Return the topic as the leader knows it, because a lagging node may know a deleted topic of the same name."""
        path = f"/v1/topics/{quote(name, safe='')}"
        return await self._connection.call_for(wire.TopicInfo, "GET", path, deadline=self._deadline(), leader_only=True)

    async def commit(self, generation: int, offsets: Mapping[TopicQueue, int], *, begins: bool = False) -> None:
        """Commit at most 1,024 offsets.

        With `begins`, they are the group's first offsets in queues without an offset, and nothing before them was
        processed. Raises one of MOVED_ON, or AlreadyBegun."""
        entries = [wire.CommitOffset(topic, queue, offset) for (topic, queue), offset in offsets.items()]
        request = wire.CommitRequest(entries, self.member_id, generation, begins)
        await self._connection.call(
            "PUT", f"{self._path}/offsets", body=wire.encode_json(request), deadline=self._deadline(), tries=3
        )

    async def give_back(
        self, generation: int, messages: Sequence[ReceivedMessage], delay_ms: int | None, reason: str
    ) -> int:
        """Give messages back and return the resulting generation. Harmless to repeat.

        On return the messages are scheduled for redelivery, or are dead letters. Raises one of MOVED_ON."""
        for begin in range(0, len(messages), GIVE_BACK_MESSAGES_MAX):
            entries = [
                wire.GivenBack(message.topic, message.queue, message.offset, reason, delay_ms)
                for message in messages[begin : begin + GIVE_BACK_MESSAGES_MAX]
            ]
            answer = await self._connection.call_for(
                wire.GiveBackResponse,
                "POST",
                f"{self._path}/retries",
                body=wire.GiveBackRequest(entries, self.member_id, generation),
                deadline=self._deadline(),
                tries=3,
            )
            if answer.generation != generation and begin + GIVE_BACK_MESSAGES_MAX < len(messages):
                # The first message given back added the retry queue to the group; the rest needs another call.
                raise StaleGeneration("stale_generation", f"the group moved on to generation {answer.generation}")
            generation = answer.generation
        return generation

    async def offset_at(self, place: TopicQueue, at: str | int) -> int:
        """Return the offset of `earliest`, `latest` or a time in ms."""
        return await first_offset(self._connection, place, at)

    def _deadline(self) -> Deadline:
        return Deadline(self._call_timeout_ms)


async def first_offset(connection: Connection, place: TopicQueue, at: str | int) -> int:
    """Return the offset of `earliest`, `latest`, or of the first message stored at or after a time in ms."""
    response = await connection.call_for(wire.OffsetResponse, "GET", f"{_queue_path(place)}/offsets?at={at}")
    return response.offset


class Pulled(NamedTuple):
    """One page of a queue.

    `next_offset` is the offset to continue at; it moves past messages that were not selected, and up to `min_offset`,
    before which messages have expired. `applied_index` is the minimum index that the node had applied; None if it is
    unknown. `is_old` means that the page was read from the node's disk and is not the queue's last one.
    """

    messages: list[ReceivedMessage]
    next_offset: int
    min_offset: int = 0
    applied_index: int | None = None
    is_old: bool = False


async def pull(
    connection: Connection,
    place: TopicQueue,
    offset: int,
    *,
    max_messages: int,
    max_bytes: int,
    wait_ms: int,
    selection: Selection = EVERYTHING,
    group: str | None = None,
) -> Pulled:
    """Pull messages of the queue from `offset` on; wait up to `wait_ms` for the first one. There is none while `group`
    is paused.

    The page contains whole batches, so it may exceed the limits. Every block is checked against its CRC32C. Raises
    Corrupt, OffsetOutOfRange, and what Connection.call raises.
    """
    response = await connection.call(
        "GET",
        _pull_target(place, offset, max_messages, max_bytes, wait_ms, selection, group),
        accept=wire.MSGPACK,
        deadline=Deadline(wait_ms + PULL_MARGIN_MS),
        follower_ok=True,  # every node has the same messages; beyond its end a follower redirects us to the leader
        waits_ms=wait_ms,
    )
    return _pulled(response, place, offset, selection)


async def pull_at_follower(
    connection: Connection,
    place: TopicQueue,
    offset: int,
    *,
    max_messages: int,
    max_bytes: int,
    selection: Selection,
    timeout_ms: int,
    group: str | None = None,
) -> Pulled | None:
    """Pull as `pull` does, but from one follower (the same for the same queue number), without waiting for messages.

    Returns None unless a follower answers with a page in time. The page may lag behind the leader. Raises Corrupt."""
    target = _pull_target(place, offset, max_messages, max_bytes, 0, selection, group)
    response = await connection.ask_follower(place[1], target, accept=wire.MSGPACK, timeout_ms=timeout_ms)
    return None if response is None else _pulled(response, place, offset, selection)


def _pull_target(
    place: TopicQueue,
    offset: int,
    max_messages: int,
    max_bytes: int,
    wait_ms: int,
    selection: Selection,
    group: str | None,
) -> str:
    query = f"offset={offset}&max_messages={max_messages}&max_bytes={max_bytes}&wait_ms={wait_ms}{selection.query}"
    named = "" if group is None else f"&group={quote(group, safe='')}"
    return f"{_queue_path(place)}/messages?{query}{named}"


def _pulled(response: HttpResponse, place: TopicQueue, offset: int, selection: Selection) -> Pulled:
    """Decode the page of a response. Raises Corrupt."""
    pulled = wire.decode(wire.PullResponse, response.body, response.headers.get("content-type", ""))
    index, is_cold = applied_index(response), wire.DISK_BYTES_HEADER in response.headers
    topic, queue = place
    messages: list[ReceivedMessage] = []
    expected: int | None = None  # the first batch may begin earlier, or later when earlier messages have expired
    gaps = not selection.is_everything  # batches without a selected message are left out
    for batch in pulled.batches:
        block = decode_block(batch.block, batch.crc32c, batch.uncompressed_bytes)
        if len(block) - len(batch.skip) != batch.count or not _continues(expected, batch.base_offset, gaps):
            raise Corrupt(
                "invalid_response",
                f"{topic}/{queue}: a batch of {batch.count} messages at {batch.base_offset} does not continue "
                f"offset {expected} with {len(block)} messages, {len(batch.skip)} of them left out",
            )
        messages += received_messages(
            block,
            topic=topic,
            queue=queue,
            batch_id=batch.batch_id,
            base_offset=batch.base_offset,
            skip=batch.skip,
            from_offset=offset,
            stored_at_ms=batch.stored_at_ms,
            transaction_id=batch.transaction_id,
            filtered=batch.filtered,
            first_ordinal=batch.only or 0,
            attempt=batch.attempt,
            origin=batch.origin,
        )
        expected = batch.base_offset + batch.count
    if not gaps:
        first = max(offset, pulled.min_offset)
        next_offset = messages[-1].offset + 1 if messages else first
        return Pulled(messages, next_offset, pulled.min_offset, index, is_cold and next_offset < pulled.max_offset)
    if not max(offset, expected or 0) <= pulled.next_offset <= pulled.max_offset:
        raise Corrupt(
            "invalid_response",
            f"{topic}/{queue}: what was asked for from offset {offset} on goes on at {pulled.next_offset}",
        )
    is_old = is_cold and pulled.next_offset < pulled.max_offset
    return Pulled(messages, pulled.next_offset, pulled.min_offset, index, is_old)


def applied_index(response: HttpResponse) -> int | None:
    """Return the minimum index that the node had applied before it began to answer; None if it is unknown."""
    value = response.headers.get(wire.APPLIED_INDEX_HEADER, "")
    return int(value) if value.isdecimal() else None


def _continues(expected: int | None, base_offset: int, gaps: bool) -> bool:
    return expected is None or expected == base_offset or (gaps and base_offset > expected)


def _queue_path(place: TopicQueue) -> str:
    return f"/v1/topics/{quote(place[0], safe='')}/queues/{place[1]}"
