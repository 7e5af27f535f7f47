"""Pop consumers over HTTP: they take single messages, and acknowledge or keep them by their receipt handles.

The state machine chooses the messages of a pop, so any number of pops may be under way. With tags or a filter the
leader looks into the messages first, one pop per group and topic at a time, and proposes the matching ones.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Final, Literal
from weakref import WeakValueDictionary

import msgspec
from aiohttp import web
from msgspec import UNSET, Meta, UnsetType

from cluster.budgets.filter_time import FilterTime
from cluster.budgets.pace import Pace
from cluster.core.core import Core
from cluster.filters.selection import Selects
from cluster.groups.left_pops import LeftPops
from cluster.groups.pause_api import PauseView, pause_view
from cluster.groups.subscriptions import pop_filter
from cluster.http.app import json_response, read_json
from cluster.http.requests import (
    ClientId,
    Request,
    Tags,
    WaitMs,
    check_group,
    check_topic,
)
from cluster.http.responses import Response, or_unset
from cluster.http.routes import JSON, WRITE_ERRORS, Route, json_of
from cluster.limits import (
    GIVE_BACK_REASON_BYTES_MAX,
    POP_ACKS_MAX,
    POP_HANDLE_PATTERN,
    POP_HANDLE_REGEX,
    POP_INVISIBLE_MS_DEFAULT,
    POP_INVISIBLE_MS_MAX,
    POP_MESSAGES_MAX,
)
from cluster.messages.block_reader import READ_ERRORS, BlockReader, message_view
from cluster.messages.message_views import MessageView
from cluster.messages.pull import ROWS_PER_READ, selection_of
from cluster.messages.pull_pages import SCAN_BYTES_MAX, PullQuery, selected
from cluster.problems import Problem
from cluster.security import permissions
from cluster.security.access import of_group
from store.commands.pops import (
    AckOutcome,
    AckPopped,
    ChangeInvisible,
    InvisibleChanged,
    InvisibleOutcome,
    Pop,
    PopHandle,
    Popped,
    PoppedMessages,
    PopPick,
    PopsAcked,
)
from store.commands.views import Row
from store.errors import HANDLE_EXPIRED, Refused
from store.messages.topics import RETRY_PREFIX

ReceiptHandle = Annotated[str, Meta(pattern=POP_HANDLE_PATTERN)]
InvisibleMs = Annotated[int, Meta(ge=0, le=POP_INVISIBLE_MS_MAX)]


class PopRequest(Request, kw_only=True, frozen=True):
    """Takes messages of a topic. `start` says where the group begins in queues that it has not read yet."""

    topic: str
    max_messages: Annotated[int, Meta(ge=1, le=POP_MESSAGES_MAX)] = POP_MESSAGES_MAX
    invisible_ms: Annotated[int, Meta(ge=1, le=POP_INVISIBLE_MS_MAX)] = POP_INVISIBLE_MS_DEFAULT
    wait_ms: WaitMs = 0
    tags: Tags | None = None
    filter: str | None = None
    start: Literal["earliest", "latest"] = "earliest"
    client_id: ClientId = ""


class PopAckRequest(Request, kw_only=True, frozen=True):
    receipt_handles: Annotated[tuple[ReceiptHandle, ...], Meta(min_length=1, max_length=POP_ACKS_MAX)]


class PopInvisibleRequest(Request, kw_only=True, frozen=True):
    """Keeps a popped message for `invisible_ms` from now. Without `invisible_ms` the message is given back, and comes
    again after the group's backoff."""

    receipt_handle: ReceiptHandle
    invisible_ms: InvisibleMs | None = None
    reason: Annotated[str, Meta(max_length=GIVE_BACK_REASON_BYTES_MAX)] = ""


class PoppedMessageView(MessageView, kw_only=True, frozen=True):
    """A popped message, with the fields of a pull. `offset` and `attempt` are always present; `attempt` is 0 for the
    first delivery.
    """

    offset: int
    attempt: int
    receipt_handle: str


class PopView(Response, kw_only=True, frozen=True):
    """The popped messages. Messages not acknowledged by `invisible_until_ms` come again; absent without messages.
    `paused` says why the group is handed out nothing; absent when it is not paused."""

    messages: list[PoppedMessageView]
    invisible_until_ms: int | UnsetType = UNSET
    paused: PauseView | UnsetType = UNSET


class PopAckedView(Response, kw_only=True, frozen=True):
    receipt_handle: str
    outcome: AckOutcome


class PopAckView(Response, kw_only=True, frozen=True):
    results: list[PopAckedView]


class PopInvisibleView(Response, kw_only=True, frozen=True):
    """Outcome for one popped message. `due_at_ms` is the time at which it comes again; absent when it does not."""

    receipt_handle: str
    outcome: InvisibleOutcome
    due_at_ms: int | UnsetType = UNSET


logger = logging.getLogger(__name__)

_pop_decoder: Final = msgspec.json.Decoder(PopRequest)
_ack_decoder: Final = msgspec.json.Decoder(PopAckRequest)
_invisible_decoder: Final = msgspec.json.Decoder(PopInvisibleRequest)

GroupTopic = tuple[str, str]


class PopApi:
    """Handles /v1/groups/{group}/pop."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._asked: Counter[GroupTopic] = Counter()
        """Number of messages that pops under way have asked for: no other pop asks for the same messages meanwhile."""
        self._filtering: WeakValueDictionary[GroupTopic, asyncio.Lock] = WeakValueDictionary()
        self._left = LeftPops(core)

    def routes(self) -> list[Route]:
        pop = "/v1/groups/{group}/pop"
        return [
            Route(
                "POST",
                pop,
                self.pop,
                "Take messages, each for invisible_ms; wait up to wait_ms for the first",
                {200: json_of(PopView)},
                body={JSON: PopRequest},
                errors=(
                    "invalid_group",
                    "invalid_topic",
                    "invalid_filter",
                    "topic_not_found",
                    "group_has_members",
                    "subscription_mismatch",
                    "too_many_groups",
                    "too_many_held",
                    *READ_ERRORS,
                    *WRITE_ERRORS,
                ),
                redirects=True,
                access=of_group("read"),
            ),
            Route(
                "POST",
                f"{pop}/ack",
                self.ack,
                "Acknowledge popped messages, each with its own outcome",
                {200: json_of(PopAckView)},
                body={JSON: PopAckRequest},
                errors=("invalid_group", "group_not_found", *WRITE_ERRORS),
                redirects=True,
                access=of_group("read"),
            ),
            Route(
                "POST",
                f"{pop}/invisible",
                self.invisible,
                "Keep a popped message for longer, or give it back",
                {200: json_of(PopInvisibleView)},
                body={JSON: PopInvisibleRequest},
                errors=("invalid_group", "group_not_found", "handle_expired", *WRITE_ERRORS),
                redirects=True,
                access=of_group("read"),
            ),
        ]

    def start(self) -> None:
        self._left.start()

    async def stop(self) -> None:
        await self._left.stop()

    async def pop(self, request: web.Request) -> web.Response:
        core, loop = self._core, asyncio.get_running_loop()
        core.require_leader()
        group = check_group(request.match_info["group"])
        body = await read_json(request, core, _pop_decoder)
        topic = check_topic(body.topic)
        core.access.require(request, "read", permissions.topic(topic))
        selects = selection_of(PullQuery(offset=0, tags=body.tags, filter=body.filter))
        command = Pop(
            group,
            topic,
            body.client_id,
            body.max_messages,
            body.invisible_ms,
            body.start == "latest",
            pop_filter(topic, body.tags, body.filter) if selects is not None else None,
        )
        ends_s = loop.time() + body.wait_ms / 1000
        time_of_filter = FilterTime(None if selects is None else core.quotas)
        while True:
            with time_of_filter.measured():
                popped = await self._try(command, selects)
            if popped is not None and popped.messages:
                try:
                    return json_response(await self._view(popped))
                except asyncio.CancelledError:
                    self._left.note(popped)
                    raise
            left_s = ends_s - loop.time()
            if left_s <= 0 or core.waiters.closed or time_of_filter.owes:
                paused = pause_view(core.state.group_pause(group))
                return json_response(PopView(messages=[], paused=UNSET if paused is None else paused))
            if self._waits_for_resume(command):
                with core.holdings.long_poll():
                    await core.waiters.wait_pause(group, left_s)
            elif popped is None or not self._may_take(command):
                with core.holdings.long_poll():
                    await core.waiters.wait_topics((topic, RETRY_PREFIX + group), left_s)
            core.require_leader()

    async def ack(self, request: web.Request) -> web.Response:
        self._core.require_leader()
        group = check_group(request.match_info["group"])
        body = await read_json(request, self._core, _ack_decoder)
        handles = tuple(map(parse_handle, body.receipt_handles))
        may = [self._may_use(request, group, handle) for handle in handles]
        allowed = tuple(handle for handle, is_allowed in zip(handles, may, strict=True) if is_allowed)
        done: Iterator[AckOutcome] = iter(())
        if allowed:
            acked: PopsAcked = (await self._core.propose(AckPopped(group, allowed))).result
            done = iter(acked.outcomes)
        outcomes: list[AckOutcome] = [next(done) if is_allowed else "handle_expired" for is_allowed in may]
        self._core.metrics.pop_acks["acked"].inc(outcomes.count("acked"))
        self._core.metrics.pop_acks["handle_expired"].inc(outcomes.count("handle_expired"))
        results = [
            PopAckedView(receipt_handle=handle, outcome=outcome)
            for handle, outcome in zip(body.receipt_handles, outcomes, strict=True)
        ]
        return json_response(PopAckView(results=results))

    async def invisible(self, request: web.Request) -> web.Response:
        self._core.require_leader()
        group = check_group(request.match_info["group"])
        body = await read_json(request, self._core, _invisible_decoder)
        handle = parse_handle(body.receipt_handle)
        if not self._may_use(request, group, handle):
            raise Refused(HANDLE_EXPIRED, "the message is not this consumer's any more", {"group": group})
        applied = await self._core.propose(ChangeInvisible(group, handle, body.invisible_ms, body.reason))
        changed: InvisibleChanged = applied.result
        if changed.outcome in ("scheduled", "dead_lettered"):
            self._core.metrics.given_back[changed.outcome].inc()
        return json_response(
            PopInvisibleView(
                receipt_handle=body.receipt_handle, outcome=changed.outcome, due_at_ms=or_unset(changed.due_ms)
            )
        )

    def _may_use(self, request: web.Request, group: str, handle: PopHandle) -> bool:
        """Return whether the request may read the topic of the message that it gives back or acknowledges. Handles can
        be guessed, and a message that is given back is copied into the group's own topic.
        """
        if not self._core.access.is_on:
            return True
        topic = self._core.state.topic_of_lease(group, handle)
        return topic is None or self._core.access.may(request, "read", permissions.topic(topic), asked_for=True)

    def _waits_for_resume(self, command: Pop) -> bool:
        """Return whether the group is paused, and has begun: a pop that the state machine has to note or to refuse is
        proposed all the same, and gets no message.
        """
        state = self._core.state
        return state.group_pause(command.group) is not None and state.poppable(command.group, command.topic) is not None

    def _may_take(self, command: Pop) -> bool:
        """Return whether a pop may find messages that no other pop under way has asked for. True also when the state
        machine has to note the group's beginning or to refuse the pop.
        """
        waiting = self._core.state.poppable(command.group, command.topic)
        return waiting is None or waiting > self._asked[command.group, command.topic]

    async def _try(self, command: Pop, selects: Selects | None) -> Popped | None:
        """Propose the pop and return the popped messages; None when no message can be found."""
        if self._waits_for_resume(command) or not self._may_take(command):
            return None
        self._core.response_budget.require_room()
        place = (command.group, command.topic)
        if selects is None:
            return await self._propose(command)
        lock = self._filtering.setdefault(place, asyncio.Lock())
        async with lock:
            self._core.require_leader()
            if self._core.state.poppable(*place) is None:  # the group has no offsets yet to scan from
                popped = await self._propose(command)
                if popped.messages:
                    return popped
            picks = await self._scan(command, selects)
            return await self._propose(msgspec.structs.replace(command, picks=picks))

    async def _propose(self, command: Pop) -> Popped:
        place = (command.group, command.topic)
        self._asked[place] += command.max_messages
        is_gone = False
        try:
            applied = await self._core.propose(
                command, on_left=lambda applied: self._left.note(applied.result) if is_gone else None
            )
        except asyncio.CancelledError:  # not after its time-out, of which the client is told
            is_gone = True
            raise
        finally:
            self._asked[place] -= command.max_messages
            if not self._asked[place]:
                del self._asked[place]
            if self._may_take(command):
                self._core.waiters.wake_topic(command.topic)
        popped: Popped = applied.result
        return popped

    async def _scan(self, command: Pop, selects: Selects) -> tuple[PopPick, ...]:
        """Return the matching messages, queue by queue from the group's offsets on, until the pop has enough or the
        limits of time and bytes are reached. No message if the topic is deleted meanwhile: in a new one of its name
        the same offsets are other messages.
        """
        state, picks, left = self._core.state, [], command.max_messages
        offsets = state.committed_in(command.group, command.topic)
        topic_id = state.topic_id(command.topic)
        if topic_id is None:
            return ()
        reader, pace, scanned_bytes = BlockReader(self._core), Pace(), 0
        for queue, begin in sorted(offsets.items()):
            end, wanted = begin, []
            while left and scanned_bytes < SCAN_BYTES_MAX and not pace.is_over and not reader.is_spent:
                if state.topic_id(command.topic) != topic_id:
                    return ()
                rows = state.rows(command.topic, queue, end, ROWS_PER_READ, SCAN_BYTES_MAX)
                if not rows:
                    end = max(end, state.max_offset(command.topic, queue))
                    break
                row = rows[0]
                scanned_bytes += row.unpacked_bytes
                await reader.load(rows)
                pace.exclude(reader.take_waited_s())
                await reader.unpack(row, pace)
                messages = reader.messages(row)
                for offset, ordinal in enumerate(row.ordinals(), row.base_offset):
                    if offset < end:
                        continue
                    end = offset + 1
                    if await selected(selects, messages[ordinal], pace):
                        wanted.append(offset)
                        left -= 1
                        if not left:
                            break
                if pace.is_tired:
                    await pace.rest()
            if end > begin:
                picks.append(PopPick(queue, begin, end, tuple(wanted)))
        return tuple(picks) if state.topic_id(command.topic) == topic_id else ()

    async def _view(self, popped: Popped) -> PopView:
        """Return the popped messages, read from the log. A message that cannot be read, or is deleted meanwhile, is
        left out, since all of them are leased already: it does not hold up the others, and comes again if it is there.
        """
        reader, pace = BlockReader(self._core, patient=True), Pace()
        views: list[PoppedMessageView] = []
        for messages in popped.messages:
            row: Row | None = None
            for offset in messages.offsets:
                if row is None or offset >= row.next_offset:
                    row = self._row_of(messages, offset)
                if row is not None:
                    try:
                        await reader.load([row])
                    except Problem as problem:
                        logger.warning("offset %d of %s cannot be popped: %s", offset, messages.topic, problem)
                        continue
                    await reader.unpack(row, pace)
                    views.append(self._message(messages, offset, row, reader))
                    self._core.topic_reads.add(messages.topic, 1, row.unpacked_bytes // row.count)
                if pace.is_tired:
                    await pace.rest()
        self._core.metrics.popped_messages.inc(len(views))
        return PopView(messages=views, invisible_until_ms=popped.due_ms)

    def _row_of(self, messages: PoppedMessages, offset: int) -> Row | None:
        """Return the row of a popped message; None when it is gone, be it with its topic, and if one of that name has
        another message at the offset since.
        """
        with contextlib.suppress(Refused):
            row = self._core.state.row_of(messages.topic, messages.queue, offset)
            return row if row is not None and row.raft_index <= messages.raft_index else None
        return None

    def _message(self, messages: PoppedMessages, offset: int, row: Row, reader: BlockReader) -> PoppedMessageView:
        ordinal = row.ordinals()[offset - row.base_offset]
        found = reader.messages(row)[ordinal]
        shown = message_view(
            found,
            found.message_id or f"{row.batch_id}-{ordinal}",
            messages.topic,
            messages.queue,
            row.stored_at_ms,
            offset,
            row.redelivery,
            transaction_id=row.transaction_id,
        )
        fields = {**msgspec.structs.asdict(shown), "attempt": row.redelivery.attempt if row.redelivery else 0}
        return PoppedMessageView(**fields, receipt_handle=handle_text(messages.handle(offset)))


def handle_text(handle: PopHandle) -> str:
    return f"{handle.raft_index:x}-{handle.number:x}-{handle.offset:x}"


def parse_handle(text: str) -> PopHandle:
    """Return the handle that the text stands for. Raises Problem invalid_request for a text with a wrong pattern."""
    if not POP_HANDLE_REGEX.fullmatch(text):
        raise Problem("invalid_request", "receipt handle: send it exactly as it was received")
    raft_index, number, offset = (int(part, 16) for part in text.split("-"))
    return PopHandle(raft_index, number, offset)
