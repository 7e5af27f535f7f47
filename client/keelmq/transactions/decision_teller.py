"""Sends decisions to the broker; concurrent decisions share a request."""

from collections.abc import Sequence

from keelmq import wire
from keelmq.limits import TRANSACTIONS_MAX
from keelmq.transactions.decision import Decision, Position
from keelmq.transport.answer_time import AnswerTime
from keelmq.transport.call_lane import CallLane
from keelmq.transport.connection import Connection
from keelmq.transport.http1 import HttpResponse
from keelmq.transport.retry import Deadline


class DecisionTeller:
    """Sends the decisions of one producer. Belongs to one event loop."""

    def __init__(self, connection: Connection, producer_group: str, client_id: str) -> None:
        self._connection = connection
        self._producer_group = producer_group
        self._client_id = client_id
        self._lane = CallLane[wire.DecisionOfOne, wire.DecisionResponse](
            connection,
            "/v1/transactions/decisions",
            self,
            tries=None,
            count_max=TRANSACTIONS_MAX,
            size_max=TRANSACTIONS_MAX,
        )

    async def tell(
        self, transaction_id: str, decision: Decision, *, source: str, timeout_ms: float
    ) -> tuple[Position, ...]:
        """Send a decision; durable on return. Returns the positions of the messages after a commit.

        Repeating the same decision is harmless. Raises TransactionConflict when another decision was recorded first,
        TransactionNotFound, Unavailable (`not_sent`), and what Connection.call raises.
        """
        told = wire.DecisionOfOne(transaction_id, str(decision), source, self._producer_group, self._client_id)
        response = await self._lane.call(told, 1, Deadline(timeout_ms))
        return tuple(Position(p.topic, p.queue, p.offset, p.count, p.deliver_at_ms) for p in response.positions)

    async def send_one(
        self, item: wire.DecisionOfOne, deadline: Deadline, answers: AnswerTime
    ) -> wire.DecisionResponse:
        return await self._connection.call_for(
            wire.DecisionResponse,
            "POST",
            f"/v1/transactions/{item.transaction_id}/{item.decision}",
            body=wire.DecisionRequest(item.source, item.producer_group, item.client_id),
            deadline=deadline,
            answers=answers,
        )

    def encode_all(self, items: Sequence[wire.DecisionOfOne]) -> bytes:
        return wire.encode_msgpack(wire.DecisionsRequest(list(items)))

    def decode_all(self, response: HttpResponse) -> Sequence[wire.DecisionResponse]:
        return wire.decode(wire.DecisionsResponse, response.body, response.headers.get("content-type", "")).results

    def is_about(self, result: wire.DecisionResponse, item: wire.DecisionOfOne) -> bool:
        return result.transaction_id == item.transaction_id
