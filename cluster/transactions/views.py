"""Responses that show transactions."""

from msgspec import UNSET, UnsetType

from cluster.http.responses import Response, or_unset
from store.commands.messages import Position
from store.commands.transactions import TransactionState
from store.commands.views import TimelineEvent, TimelineEventName, TransactionView


class PositionView(Response, kw_only=True, frozen=True):
    """Place of a committed batch. A delayed batch has `deliver_at_ms`, and no `offset` until it is visible."""

    topic: str
    queue: int
    offset: int | UnsetType = UNSET
    deliver_at_ms: int | UnsetType = UNSET
    count: int


class HalfMessagesView(Response, kw_only=True, frozen=True):
    """One batch of a half transaction. `position` is the position of its record in the commit log."""

    topic: str
    queue: int
    count: int
    batch_id: str
    position: int


class TimelineEventView(Response, kw_only=True, frozen=True):
    at_ms: int
    event: TimelineEventName
    raft_index: int
    client_id: str | UnsetType = UNSET
    via: str | UnsetType = UNSET
    answer: str | UnsetType = UNSET
    source: str | UnsetType = UNSET
    operator: str | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    forced: bool | UnsetType = UNSET
    principal: str | UnsetType = UNSET
    """Authenticated principal of the request. `operator` is the name that the request gave, which nobody has proved."""


class TransactionSummary(Response, kw_only=True, frozen=True):
    transaction_id: str
    state: TransactionState
    producer_group: str
    client_id: str
    prepared_at_ms: int
    decided_at_ms: int | None
    check_times: int
    next_check_at_ms: int | None
    messages: tuple[HalfMessagesView, ...]
    positions: tuple[PositionView, ...]


class TransactionDetail(TransactionSummary, kw_only=True, frozen=True):
    timeline: tuple[TimelineEventView, ...]


def summary_of(view: TransactionView) -> TransactionSummary:
    return TransactionSummary(
        transaction_id=view.transaction_id,
        state=view.state,
        producer_group=view.producer_group,
        client_id=view.client_id,
        prepared_at_ms=view.prepared_at_ms,
        decided_at_ms=view.decided_at_ms,
        check_times=view.check_times,
        next_check_at_ms=view.next_check_at_ms,
        messages=tuple(
            HalfMessagesView(
                topic=batch.topic,
                queue=batch.queue,
                count=batch.count,
                batch_id=batch.batch_id,
                position=batch.position,
            )
            for batch in view.batches
        ),
        positions=position_views(view.positions),
    )


def position_views(positions: tuple[Position, ...]) -> tuple[PositionView, ...]:
    return tuple(
        PositionView(
            topic=each.topic,
            queue=each.queue,
            offset=or_unset(each.offset),
            deliver_at_ms=or_unset(each.deliver_at_ms),
            count=each.count,
        )
        for each in positions
    )


def event_view(event: TimelineEvent) -> TimelineEventView:
    return TimelineEventView(
        at_ms=event.at_ms,
        event=event.event,
        raft_index=event.raft_index,
        client_id=UNSET if event.client_id is None else event.client_id,
        via=UNSET if event.via is None else event.via,
        answer=UNSET if event.answer is None else event.answer,
        source=UNSET if event.source is None else event.source,
        operator=UNSET if event.operator is None else event.operator,
        reason=UNSET if event.reason is None else event.reason,
        forced=event.forced or UNSET,
        principal=UNSET if event.principal is None else event.principal,
    )
