"""Turns requests about transactions into commands: checks half messages, and builds decisions."""

from typing import Annotated

from aiohttp import web
from msgspec import Meta

from cluster.core.core import Core
from cluster.http.authorization import audit_force
from cluster.http.requests import ClientId, Explained, Id, Request, check_group, check_topic
from cluster.limits import BATCHES_MAX, REQUEST_MESSAGES_MAX
from cluster.messages.blocks import BlockBatch, JsonMessage
from cluster.messages.produce import Batch, QueueChooser, checked_batch, json_batches, unpacked_blocks, writable_topic
from cluster.messages.request_attributes import RequestAttributes
from cluster.security import permissions
from store.commands.entry import Proposal
from store.commands.transactions import Decide, Decision, DecisionSource, Prepare
from store.errors import TRANSACTION_NOT_FOUND, Refused
from store.limits import CHECK_AFTER_MAX_MS

CheckAfterMs = Annotated[int, Meta(ge=0, le=CHECK_AFTER_MAX_MS)]


class JsonHalfMessage(JsonMessage, kw_only=True, frozen=True):
    topic: str


class JsonHalf(Request, kw_only=True, frozen=True):
    transaction_id: Id | None = None
    producer_group: str
    client_id: ClientId = ""
    check_after_ms: CheckAfterMs | None = None
    messages: Annotated[tuple[JsonHalfMessage, ...], Meta(min_length=1, max_length=REQUEST_MESSAGES_MAX)]


class BlockHalfBatch(BlockBatch, kw_only=True, frozen=True):
    topic: str


class BlockHalf(Request, kw_only=True, frozen=True):
    transaction_id: Id | None = None
    producer_group: str
    client_id: ClientId = ""
    check_after_ms: CheckAfterMs | None = None
    batches: Annotated[tuple[BlockHalfBatch, ...], Meta(min_length=1, max_length=BATCHES_MAX)]


class DecisionRequest(Explained, kw_only=True, frozen=True):
    producer_group: str | None = None
    client_id: ClientId = ""
    source: DecisionSource = "producer"
    force: bool = False


def require_send(core: Core, request: web.Request, half: BlockHalf | JsonHalf) -> None:
    """Raise Problem unless the request may send for the producer group, to every topic of the half transaction."""
    if not core.access.is_on:
        return
    check_group(half.producer_group)
    topics = {check_topic(each.topic) for each in (half.batches if isinstance(half, BlockHalf) else half.messages)}
    resources = (permissions.producer_group(half.producer_group), *map(permissions.topic, sorted(topics)))
    core.access.require(request, "send", *resources)


def require_decidable(core: Core, request: web.Request, transaction_id: str, body: "DecisionRequest") -> str | None:
    """Raise unless the request may decide the transaction: for its producer group, by force as an administrator.

    Returns the producer group to which the decision is bound, or None for any. A transaction that the request may not
    see is answered like one that does not exist. Raises Problem and Refused.
    """
    if not core.access.is_on:
        if body.force and core.state.transaction(transaction_id) is not None:
            audit_force(core, request, transaction_id)
        return body.producer_group
    view = core.state.transaction(transaction_id)
    if view is None:
        raise no_transaction(transaction_id)
    of_group = permissions.producer_group(view.producer_group)
    if not core.access.may(request, "describe", of_group, asked_for=True):
        raise no_transaction(transaction_id)
    core.access.require(request, "decide", of_group)
    if body.force:
        core.access.require(request, "admin", permissions.CLUSTER)
        audit_force(core, request, transaction_id)
    return view.producer_group if body.producer_group is None else body.producer_group


def no_transaction(transaction_id: str) -> Refused:
    detail = f"transaction {transaction_id} does not exist"
    return Refused(TRANSACTION_NOT_FOUND, detail, {"transaction_id": transaction_id})


class Halves:
    """Builds the proposals of half transactions."""

    def __init__(self, core: Core, chooser: QueueChooser) -> None:
        self._core = core
        self._chooser = chooser

    async def proposal(
        self, half: BlockHalf | JsonHalf, transaction_id: str, attributes: RequestAttributes
    ) -> Proposal:
        """Return the proposal of a half transaction with its blocks. Raises Problem or Refused when the group, a topic
        or a message is not valid.
        """
        check_group(half.producer_group)
        if isinstance(half, BlockHalf):
            batches = await self._block_batches(half, attributes)
        else:
            batches = await self._json_batches(half, transaction_id, attributes)
        check_after_ms = self._core.config.check_immunity_ms if half.check_after_ms is None else half.check_after_ms
        headers = tuple(batch.header for batch in batches)
        command = Prepare(transaction_id, half.producer_group, half.client_id, check_after_ms, headers)
        return Proposal(command, tuple(batch.block for batch in batches))

    async def _block_batches(self, half: BlockHalf, attributes: RequestAttributes) -> list[Batch]:
        blocks = unpacked_blocks(self._core, half.batches)
        number = self._chooser.next_request(half.transaction_id)
        return [
            await checked_batch(
                writable_topic(self._core, batch.topic), batch, block, number, attributes, f"batches[{ordinal}]"
            )
            for ordinal, (batch, block) in enumerate(zip(half.batches, blocks, strict=True))
        ]

    async def _json_batches(self, half: JsonHalf, transaction_id: str, attributes: RequestAttributes) -> list[Batch]:
        """Build one batch per topic, queue and delivery time. A repeated call with the same id builds equal batches."""
        by_topic: dict[str, list[tuple[int, JsonHalfMessage]]] = {}
        for ordinal, message in enumerate(half.messages):
            by_topic.setdefault(message.topic, []).append((ordinal, message))
        number = self._chooser.next_request(half.transaction_id)
        batches: list[Batch] = []
        for topic, messages in by_topic.items():
            of_topic = writable_topic(self._core, topic)
            made = await json_batches(of_topic, messages, transaction_id, len(batches), number, attributes)
            batches.extend(each.batch for each in made)
        return batches


def decide_command(
    transaction_id: str, decision: Decision, body: DecisionRequest, producer_group: str | None
) -> Decide:
    """Build the command for a decision. Raises Problem when the name of the producer group is not valid."""
    if producer_group is not None:
        check_group(producer_group)
    return Decide(
        transaction_id,
        decision,
        body.source,
        body.client_id,
        producer_group,
        force=body.force,
        reason=body.reason,
        operator=body.operator,
    )
