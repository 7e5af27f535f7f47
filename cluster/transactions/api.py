"""Prepares, decides and shows single transactions. The check service asks producers about undecided ones."""

from typing import Annotated, Final

import msgspec
from aiohttp import web
from msgspec import UNSET, Meta, UnsetType

from cluster.budgets.pace import Pace
from cluster.core.core import Core
from cluster.http.app import json_response, media_type, msgpack_response, read_body, read_json, wants_msgpack
from cluster.http.json_bodies import parse_json_messages
from cluster.http.requests import Explained, Natural, Operator, Reason, Request, parse_msgpack, parse_query
from cluster.http.responses import Receipt, Response, as_view, receipt_of
from cluster.http.routes import JSON, MSGPACK, WRITE_ERRORS, Route, json_of
from cluster.limits import ID_REGEX, LIST_MAX
from cluster.messages.produce import QueueChooser
from cluster.messages.request_attributes import RequestAttributes
from cluster.problems import Problem
from cluster.security import permissions
from cluster.security.access import ADMINISTRATION, BY_HANDLER
from cluster.transactions.half_batches import (
    BlockHalf,
    DecisionRequest,
    Halves,
    JsonHalf,
    decide_command,
    no_transaction,
    require_decidable,
    require_send,
)
from cluster.transactions.views import (
    PositionView,
    TransactionDetail,
    TransactionSummary,
    event_view,
    position_views,
    summary_of,
)
from store.commands.transactions import Decided, Decision, Prepared, ResumeTransaction, TransactionState
from store.commands.views import TransactionView
from store.transactions.table import cursor_of


class ResumeRequest(Explained, kw_only=True, frozen=True):
    operator: Operator
    reason: Reason


class TransactionsQuery(Request, kw_only=True, frozen=True):
    state: TransactionState | None = None
    older_than_ms: Natural | None = None
    limit: Annotated[int, Meta(ge=1, le=LIST_MAX)] = 100
    after: str | None = None


class PreparedView(Response, kw_only=True, frozen=True):
    transaction_id: str
    state: TransactionState
    duplicate: bool
    receipt: Receipt


class DecidedView(Response, kw_only=True, frozen=True):
    transaction_id: str
    state: TransactionState
    positions: tuple[PositionView, ...] | UnsetType = UNSET


class ResumedView(Response, kw_only=True, frozen=True):
    transaction_id: str
    state: TransactionState
    next_check_at_ms: int


class TransactionsView(Response, kw_only=True, frozen=True):
    transactions: list[TransactionSummary]
    next: str | None


_json_decoder: Final = msgspec.json.Decoder(JsonHalf)
_msgpack_decoder: Final = msgspec.msgpack.Decoder(BlockHalf)
_decision_decoder: Final = msgspec.json.Decoder(DecisionRequest)
_resume_decoder: Final = msgspec.json.Decoder(ResumeRequest)


class TransactionApi:
    """Handles /v1/transactions."""

    def __init__(self, core: Core, chooser: QueueChooser) -> None:
        self._core = core
        self._halves = Halves(core, chooser)

    def routes(self) -> list[Route]:
        one = "/v1/transactions/{transaction_id}"
        return [
            Route(
                "POST",
                "/v1/transactions",
                self.prepare,
                "Store a half transaction: its messages stay invisible until it is committed",
                {201: {JSON: PreparedView, MSGPACK: PreparedView}},
                body={JSON: JsonHalf, MSGPACK: BlockHalf},
                errors=(
                    "invalid_topic",
                    "invalid_group",
                    "topic_not_found",
                    "queue_not_found",
                    "system_topic",
                    "topic_type_mismatch",
                    "transactions_rejected",
                    "checksum_mismatch",
                    "invalid_compression",
                    "empty_body",
                    "too_many_properties",
                    "message_too_large",
                    "batch_too_large",
                    "idempotency_conflict",
                    "too_many_transactions",
                    "too_many_timers",
                    *WRITE_ERRORS,
                ),
                redirects=True,
                access=BY_HANDLER,
            ),
            *self._decision_routes(one),
            Route(
                "POST",
                f"{one}/resume",
                self.resume,
                "Resume the checks of a discarded transaction",
                {200: json_of(ResumedView)},
                body={JSON: ResumeRequest},
                errors=("transaction_not_found", "transaction_conflict", *WRITE_ERRORS),
                redirects=True,
                access=ADMINISTRATION,
            ),
            Route(
                "GET",
                one,
                self.show,
                "Show the state and the full timeline of a transaction",
                {200: json_of(TransactionDetail)},
                errors=("transaction_not_found",),
                access=BY_HANDLER,
            ),
            Route(
                "GET",
                "/v1/transactions",
                self.list_all,
                "List transactions from the oldest on, without their timelines",
                {200: json_of(TransactionsView)},
                query=TransactionsQuery,
                access=BY_HANDLER,
            ),
        ]

    def _decision_routes(self, one: str) -> list[Route]:
        return [
            Route(
                "POST",
                f"{one}/{decision}",
                handler,
                summary,
                {200: json_of(DecidedView)},
                body={JSON: DecisionRequest},
                body_optional=True,
                errors=(
                    "invalid_group",
                    "transaction_not_found",
                    "transaction_conflict",
                    "producer_group_mismatch",
                    *(("topic_not_found", "queue_not_found") if decision == "commit" else ()),
                    *WRITE_ERRORS,
                ),
                redirects=True,
                access=BY_HANDLER,
            )
            for decision, handler, summary in (
                ("commit", self.commit, "Make the messages of a half transaction visible"),
                ("rollback", self.rollback, "Drop the messages of a half transaction"),
                ("unknown", self.unknown, "Answer that the transaction is not decided yet"),
            )
        ]

    async def prepare(self, request: web.Request) -> web.Response:
        core = self._core
        core.require_leader()
        kind = media_type(request, (JSON, MSGPACK))
        body = await read_body(request, core)
        half = parse_msgpack(_msgpack_decoder, body) if kind == MSGPACK else parse_json_messages(_json_decoder, body)
        transaction_id = core.new_id() if half.transaction_id is None else half.transaction_id
        require_send(core, request, half)
        proposal = await self._halves.proposal(half, transaction_id, RequestAttributes())
        applied = await core.propose(proposal.command, proposal.blocks)
        core.note_producer(request, half.producer_group)
        prepared: Prepared = applied.result
        if not prepared.duplicate:
            core.metrics.prepared.inc()
        view = PreparedView(
            transaction_id=transaction_id,
            state=prepared.state,
            duplicate=prepared.duplicate,
            receipt=receipt_of(applied),
        )
        return msgpack_response(view, 201) if kind == MSGPACK or wants_msgpack(request) else json_response(view, 201)

    async def commit(self, request: web.Request) -> web.Response:
        return await self._decide(request, "commit")

    async def rollback(self, request: web.Request) -> web.Response:
        return await self._decide(request, "rollback")

    async def unknown(self, request: web.Request) -> web.Response:
        return await self._decide(request, "unknown")

    async def resume(self, request: web.Request) -> web.Response:
        core = self._core
        core.require_leader()
        transaction_id = _path_id(request)
        body = await read_json(request, core, _resume_decoder)
        interval_ms = core.config.check_interval_ms
        command = ResumeTransaction(transaction_id, body.operator, body.reason, interval_ms)
        applied = await core.propose(command, by=request)
        return json_response(as_view(ResumedView, applied.result))

    async def show(self, request: web.Request) -> web.Response:
        transaction_id = _path_id(request)
        view = self._core.state.transaction(transaction_id)
        if view is None or not self._may_see(request, view, asked_for=True):
            raise no_transaction(transaction_id)
        timeline = tuple(event_view(event) for event in self._core.state.timeline(transaction_id))
        detail_view = TransactionDetail(**msgspec.structs.asdict(summary_of(view)), timeline=timeline)
        return json_response(detail_view)

    async def list_all(self, request: web.Request) -> web.Response:
        query = parse_query(TransactionsQuery, request.query)
        before_ms = None if query.older_than_ms is None else self._core.now_ms() - query.older_than_ms
        shown: list[TransactionView] = []
        after, pace = query.after, Pace()
        while True:
            page = self._core.state.transactions(
                state=query.state, prepared_before_ms=before_ms, limit=query.limit, after=after
            )
            shown += [each for each in page.transactions if self._may_see(request, each)]
            after = page.next
            if after is None or len(shown) >= query.limit:
                break
            await pace.step()
        more = after is not None or len(shown) > query.limit
        shown = shown[: query.limit]
        # A cursor names a transaction that the request may see.
        following = cursor_of(shown[-1]) if more and shown else None
        return json_response(TransactionsView(transactions=[summary_of(each) for each in shown], next=following))

    def _may_see(self, request: web.Request, view: TransactionView, *, asked_for: bool = False) -> bool:
        resource = permissions.producer_group(view.producer_group)
        return self._core.access.may(request, "describe", resource, asked_for=asked_for)

    async def _decide(self, request: web.Request, decision: Decision) -> web.Response:
        core = self._core
        core.require_leader()
        transaction_id = _path_id(request)
        body = await read_json(request, core, _decision_decoder, optional=True)
        group = require_decidable(core, request, transaction_id, body)
        applied = await core.propose(decide_command(transaction_id, decision, body, group), by=request)
        decided: Decided = applied.result
        if decision != "unknown":
            core.metrics.decided[decided.state].inc()
        positions = position_views(decided.positions) if decided.state == "committed" else UNSET
        return json_response(
            DecidedView(transaction_id=decided.transaction_id, state=decided.state, positions=positions)
        )


def _path_id(request: web.Request) -> str:
    transaction_id = request.match_info["transaction_id"]
    if not ID_REGEX.fullmatch(transaction_id):
        raise Problem("invalid_request", "transaction id: 1 to 64 characters of A-Z a-z 0-9 _ -")
    return transaction_id
