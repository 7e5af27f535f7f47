"""Sends half transactions: concurrent ones share a request."""

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from keelmq import wire
from keelmq.errors import Corrupt
from keelmq.limits import (
    REQUEST_BATCHES_MAX,
    REQUEST_BYTES_MAX,
    REQUEST_KEYS_MAX,
    REQUEST_MESSAGES_MAX,
    TRANSACTIONS_MAX,
)
from keelmq.transport.answer_time import AnswerTime
from keelmq.transport.call_lane import CallLane
from keelmq.transport.connection import Connection
from keelmq.transport.http1 import HttpResponse
from keelmq.transport.retry import Deadline

COLLECT_BYTES_MAX: Final = 1024 * 1024
BATCH_BYTES_MIN: Final = COLLECT_BYTES_MAX // REQUEST_BATCHES_MAX + 1
"""Minimum number of bytes that a batch counts as; messages and keys have such minima too. Halves within the byte limit
of a request are then within its other limits."""
MESSAGE_BYTES_MIN: Final = COLLECT_BYTES_MAX // REQUEST_MESSAGES_MAX + 1
KEY_BYTES_MIN: Final = COLLECT_BYTES_MAX // REQUEST_KEYS_MAX + 1


class Half(NamedTuple):
    """An encoded HalfRequest with the counts that the limits of a request apply to."""

    transaction_id: str
    body: bytes
    batches: int
    messages: int
    keys: int
    unpacked_bytes: int

    @property
    def size(self) -> int:
        return max(
            len(self.body),
            self.batches * BATCH_BYTES_MIN,
            self.messages * MESSAGE_BYTES_MIN,
            self.keys * KEY_BYTES_MIN,
            self.unpacked_bytes * COLLECT_BYTES_MAX // REQUEST_BYTES_MAX,
        )


class HalfSender:
    """Sends the half transactions of one producer. Belongs to one event loop."""

    def __init__(self, connection: Connection, tries: int) -> None:
        self._connection = connection
        self._tries = tries
        self._lane = CallLane[Half, wire.HalfResponse](
            connection,
            "/v1/transactions/batch",
            self,
            tries=tries,
            count_max=TRANSACTIONS_MAX,
            size_max=COLLECT_BYTES_MAX,
        )

    async def send(self, half: Half, deadline: Deadline) -> wire.HalfResponse:
        """Send a half transaction and return its state; durable on return.

        Raises what Connection.call raises, and Unavailable (`not_sent`).
        """
        return await self._lane.call(half, half.size, deadline)

    async def send_one(self, item: Half, deadline: Deadline, answers: AnswerTime) -> wire.HalfResponse:
        response = await self._connection.call(
            "POST",
            "/v1/transactions",
            body=item.body,
            content_type=wire.MSGPACK,
            accept=wire.MSGPACK,
            deadline=deadline,
            tries=self._tries,
            answers=answers,
        )
        prepared = wire.decode(wire.HalfResponse, response.body, response.headers.get("content-type", ""))
        if not self.is_about(prepared, item):
            raise Corrupt("invalid_response", "the broker's answer is about another transaction")
        return prepared

    def encode_all(self, items: Sequence[Half]) -> bytes:
        return wire.encode_msgpack(wire.HalvesRequest([msgspec.Raw(item.body) for item in items]))

    def decode_all(self, response: HttpResponse) -> Sequence[wire.HalfResponse]:
        return wire.decode(wire.HalvesResponse, response.body, response.headers.get("content-type", "")).results

    def is_about(self, result: wire.HalfResponse, item: Half) -> bool:
        return result.transaction_id == item.transaction_id
