"""Calls of pop consumers: pop messages, acknowledge them, extend their lease or give them back."""

import base64
from collections.abc import Mapping, Sequence
from typing import Final, Literal
from urllib.parse import quote

import msgspec

from keelmq import wire
from keelmq.consuming.pause_watch import PauseWatch
from keelmq.consuming.selection import Selection
from keelmq.message import Origin, ReceivedMessage
from keelmq.transport.connection import Connection
from keelmq.transport.retry import Deadline

INVISIBLE_MS: Final = 60_000
MARGIN_MS: Final = 5_000
"""Time that a call may take beyond its wait at the broker."""

Start = Literal["earliest", "latest"]


class _Pop(msgspec.Struct, omit_defaults=True, kw_only=True):
    topic: str
    client_id: str
    tags: str | None = None
    filter: str | None = None
    max_messages: int
    invisible_ms: int
    wait_ms: int
    start: Start


class _Ack(msgspec.Struct):
    receipt_handles: list[str]


class _Invisible(msgspec.Struct, omit_defaults=True):
    """The new lease of a message. Without `invisible_ms` it is given back."""

    receipt_handle: str
    invisible_ms: int | None = None
    reason: str | None = None


class _Popped(msgspec.Struct):
    topic: str
    queue: int
    offset: int
    message_id: str
    body: str
    encoding: Literal["utf8", "base64"]
    receipt_handle: str
    attempt: int = 0
    tag: str | None = None
    keys: Sequence[str] = ()
    properties: Mapping[str, str] = {}
    sharding_key: str | None = None
    born_at_ms: int = 0
    stored_at_ms: int = 0
    transaction_id: str | None = None
    origin: Origin | None = None


class _PopAnswer(msgspec.Struct):
    messages: list[_Popped]
    paused: wire.GroupPause | None = None


class _AckResult(msgspec.Struct):
    receipt_handle: str
    outcome: str


class _AckAnswer(msgspec.Struct):
    results: list[_AckResult]


class _InvisibleAnswer(msgspec.Struct):
    outcome: str
    due_at_ms: int | None = None


class PoppedMessage(msgspec.Struct, frozen=True):
    """A message leased to this consumer for a limited time, and the receipt handle that acknowledges it."""

    message: ReceivedMessage
    receipt_handle: str


class PopCalls:
    """Makes the calls of one group and topic. All methods raise what Connection.call raises."""

    def __init__(self, connection: Connection, group: str, topic: str, selection: Selection, client_id: str) -> None:
        self.pauses = PauseWatch(group)
        self._connection = connection
        self._path = f"/v1/groups/{quote(group, safe='')}/pop"
        self._topic, self._selection, self._client_id = topic, selection, client_id

    async def pop(self, max_messages: int, invisible_ms: int, wait_ms: int, start: Start) -> list[PoppedMessage]:
        """Pop at most 32 messages, in one try: messages of a lost answer stay leased for `invisible_ms`, and then come
        again by themselves.

        A leader that is not known yet is found first, by questions that lease nothing; a node that hangs uses up only
        its share of the time. That costs a new connection one or two questions. A known leader that begins to hang is
        noticed after `wait_ms` and 5 s; the next pop then looks for another."""
        request = _Pop(
            topic=self._topic,
            client_id=self._client_id,
            tags=self._selection.tags,
            filter=self._selection.filter,
            max_messages=max_messages,
            invisible_ms=invisible_ms,
            wait_ms=wait_ms,
            start=start,
        )
        answer = await self._connection.call_for(
            _PopAnswer,
            "POST",
            self._path,
            body=request,
            deadline=Deadline(wait_ms + MARGIN_MS),
            tries=1,
            leader_first=True,
            waits_ms=wait_ms,
        )
        self.pauses.told(answer.paused)
        return [_received(each) for each in answer.messages]

    async def ack(self, receipt_handles: Sequence[str]) -> dict[str, bool]:
        """Acknowledge at most 256 messages. The result says by handle whether the message is acknowledged; a message
        that is not was given back and is redelivered."""
        body = _Ack(list(receipt_handles))
        answer = await self._connection.call_for(
            _AckAnswer, "POST", f"{self._path}/ack", body=body, deadline=Deadline(MARGIN_MS)
        )
        return {each.receipt_handle: each.outcome == "acked" for each in answer.results}

    async def hold(self, receipt_handle: str, invisible_ms: int) -> None:
        """Extend the lease of the message to `invisible_ms` from now.

        Raises Conflict (`handle_expired`) if the lease is no longer held."""
        await self._change(_Invisible(receipt_handle, invisible_ms))

    async def give_back(self, receipt_handle: str, *, at_once: bool = False, reason: str = "") -> None:
        """Give the message back for redelivery, at once or after the group's backoff.

        Raises Conflict (`handle_expired`) if the lease is no longer held."""
        await self._change(_Invisible(receipt_handle, 0 if at_once else None, reason))

    async def _change(self, body: _Invisible) -> None:
        await self._connection.call_for(
            _InvisibleAnswer, "POST", f"{self._path}/invisible", body=body, deadline=Deadline(MARGIN_MS)
        )


def _received(popped: _Popped) -> PoppedMessage:
    body = base64.b64decode(popped.body) if popped.encoding == "base64" else popped.body.encode()
    message = ReceivedMessage(
        topic=popped.topic,
        queue=popped.queue,
        offset=popped.offset,
        message_id=popped.message_id,
        body=body,
        tag=popped.tag,
        keys=popped.keys,
        properties=popped.properties,
        sharding_key=popped.sharding_key,
        born_at_ms=popped.born_at_ms,
        stored_at_ms=popped.stored_at_ms,
        transaction_id=popped.transaction_id,
        attempt=popped.attempt,
        origin=popped.origin,
    )
    return PoppedMessage(message, popped.receipt_handle)
