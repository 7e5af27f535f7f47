"""Prepares or decides many transactions in one request, each with its own outcome.

The transactions of one request become commands of one log entry if they fit, so that they share the cost of the HTTP
request and of the sync. They are not atomic: any of them may be refused, or be lost, without the others.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec
from aiohttp import web
from msgspec import UNSET, Meta, UnsetType

from cluster.core.core import Core
from cluster.http.app import json_response, media_type, msgpack_response, problem_of_part, read_body, wants_msgpack
from cluster.http.json_bodies import MessageCounter, parse_json, parse_json_messages, too_many_messages
from cluster.http.requests import Id, Request, parse_msgpack
from cluster.http.responses import Receipt, Response, receipt_of
from cluster.http.routes import JSON, MSGPACK, WRITE_ERRORS, Route
from cluster.limits import BATCHES_MAX, JSON_BYTES_MAX, REQUEST_MESSAGES_MAX, TRANSACTIONS_MAX
from cluster.messages.produce import QueueChooser
from cluster.messages.request_attributes import RequestAttributes
from cluster.problems import Problem
from cluster.security.access import BY_HANDLER
from cluster.transactions.half_batches import (
    BlockHalf,
    DecisionRequest,
    Halves,
    JsonHalf,
    decide_command,
    require_decidable,
    require_send,
)
from cluster.transactions.views import PositionView, position_views
from raft.proposals import Applied
from store.commands.entry import Proposal
from store.commands.transactions import Decided, Decision, Prepare, Prepared, TransactionState
from store.errors import Refused


class JsonHalves(Request, kw_only=True, frozen=True):
    transactions: Annotated[tuple[JsonHalf, ...], Meta(min_length=1, max_length=TRANSACTIONS_MAX)]


class BlockHalves(Request, kw_only=True, frozen=True):
    transactions: Annotated[tuple[BlockHalf, ...], Meta(min_length=1, max_length=TRANSACTIONS_MAX)]


class DecisionOfOne(DecisionRequest, kw_only=True, frozen=True):
    transaction_id: Id
    decision: Decision


class DecisionsRequest(Request, kw_only=True, frozen=True):
    decisions: Annotated[tuple[DecisionOfOne, ...], Meta(min_length=1, max_length=TRANSACTIONS_MAX)]


class PreparedOne(Response, kw_only=True, frozen=True):
    """Outcome for one transaction: either the answer of POST /v1/transactions, or the `problem` in its place."""

    transaction_id: str
    state: TransactionState | UnsetType = UNSET
    duplicate: bool | UnsetType = UNSET
    receipt: Receipt | UnsetType = UNSET
    problem: dict[str, Any] | UnsetType = UNSET


class PreparedAllView(Response, kw_only=True, frozen=True):
    """The outcomes, in the order of the request."""

    results: list[PreparedOne]


class DecidedOne(Response, kw_only=True, frozen=True):
    """Outcome for one transaction: either the answer to a single decision, or the `problem` in its place."""

    transaction_id: str
    state: TransactionState | UnsetType = UNSET
    positions: tuple[PositionView, ...] | UnsetType = UNSET
    problem: dict[str, Any] | UnsetType = UNSET


class DecidedAllView(Response, kw_only=True, frozen=True):
    """The outcomes, in the order of the request."""

    results: list[DecidedOne]


class _CountedHalf(msgspec.Struct):
    messages: list[MessageCounter] = []


class _CountedHalves(msgspec.Struct):
    transactions: list[_CountedHalf] = []


_json_halves: Final = msgspec.json.Decoder(JsonHalves)
_msgpack_halves: Final = msgspec.msgpack.Decoder(BlockHalves)
_json_decisions: Final = msgspec.json.Decoder(DecisionsRequest)
_msgpack_decisions: Final = msgspec.msgpack.Decoder(DecisionsRequest)
_counting: Final = msgspec.json.Decoder(_CountedHalves)


class TransactionBatchApi:
    """Handles /v1/transactions/batch and /v1/transactions/decisions."""

    def __init__(self, core: Core, chooser: QueueChooser) -> None:
        self._core = core
        self._halves = Halves(core, chooser)

    def routes(self) -> list[Route]:
        return [
            Route(
                "POST",
                "/v1/transactions/batch",
                self.prepare_all,
                "Store half transactions, each with its own outcome",
                {200: {JSON: PreparedAllView, MSGPACK: PreparedAllView}},
                body={JSON: JsonHalves, MSGPACK: BlockHalves},
                errors=("too_many_properties", "batch_too_large", *WRITE_ERRORS),
                redirects=True,
                access=BY_HANDLER,
            ),
            Route(
                "POST",
                "/v1/transactions/decisions",
                self.decide_all,
                "Decide transactions, each with its own outcome",
                {200: {JSON: DecidedAllView, MSGPACK: DecidedAllView}},
                body={JSON: DecisionsRequest, MSGPACK: DecisionsRequest},
                errors=WRITE_ERRORS,
                redirects=True,
                access=BY_HANDLER,
            ),
        ]

    async def prepare_all(self, request: web.Request) -> web.Response:
        core = self._core
        core.require_leader()
        halves = await self._read_halves(request)
        ids = [core.new_id() if half.transaction_id is None else half.transaction_id for half in halves]
        outcomes = await self._carry_out(await self._proposals(request, halves, ids))
        results: list[PreparedOne] = []
        producers: dict[str, None] = {}  # hardly ever more than one
        for half, transaction_id, outcome in zip(halves, ids, outcomes, strict=True):
            if isinstance(outcome, Exception):
                problem = problem_of_part(outcome, request).document()
                results.append(PreparedOne(transaction_id=transaction_id, problem=problem))
                continue
            producers[half.producer_group] = None
            prepared: Prepared = outcome.result
            if not prepared.duplicate:
                core.metrics.prepared.inc()
            results.append(
                PreparedOne(
                    transaction_id=transaction_id,
                    state=prepared.state,
                    duplicate=prepared.duplicate,
                    receipt=receipt_of(outcome),
                )
            )
        for group in producers:
            core.note_producer(request, group)
        return _answer(request, PreparedAllView(results=results))

    async def decide_all(self, request: web.Request) -> web.Response:
        core = self._core
        core.require_leader()
        kind = media_type(request, (JSON, MSGPACK))
        body = await read_body(request, core, JSON_BYTES_MAX)
        asked = parse_msgpack(_msgpack_decisions, body) if kind == MSGPACK else parse_json(_json_decisions, body)
        proposals: list[Proposal | Exception] = []
        principal = core.access.proved_name(request)
        for each in asked.decisions:
            try:
                group = require_decidable(core, request, each.transaction_id, each)
                command = decide_command(each.transaction_id, each.decision, each, group)
                proposals.append(Proposal(command, principal=principal))
            except (Problem, Refused) as refused:
                proposals.append(refused)
        results: list[DecidedOne] = []
        for each, outcome in zip(asked.decisions, await self._carry_out(proposals), strict=True):
            if isinstance(outcome, Exception):
                problem = problem_of_part(outcome, request).document()
                results.append(DecidedOne(transaction_id=each.transaction_id, problem=problem))
                continue
            decided: Decided = outcome.result
            if each.decision != "unknown":
                core.metrics.decided[decided.state].inc()
            positions = position_views(decided.positions) if decided.state == "committed" else UNSET
            results.append(DecidedOne(transaction_id=decided.transaction_id, state=decided.state, positions=positions))
        return _answer(request, DecidedAllView(results=results))

    async def _read_halves(self, request: web.Request) -> Sequence[BlockHalf | JsonHalf]:
        """Read the half transactions of a request. Raises Problem when the request as a whole is not valid."""
        kind = media_type(request, (JSON, MSGPACK))
        body = await read_body(request, self._core)
        if kind == JSON:
            return parse_json_messages(_json_halves, body, _counting).transactions
        halves = parse_msgpack(_msgpack_halves, body).transactions
        if sum(len(half.batches) for half in halves) > BATCHES_MAX:
            raise Problem("invalid_request", f"transactions: a request has at most {BATCHES_MAX} batches in all")
        limit = self._core.config.max_request_bytes
        if sum(batch.unpacked_bytes for half in halves for batch in half.batches) > limit:
            raise Problem("request_too_large", f"the blocks unpack to more than {limit} bytes; send them in parts")
        return halves

    async def _proposals(
        self, request: web.Request, halves: Sequence[BlockHalf | JsonHalf], ids: Sequence[str]
    ) -> list[Proposal | Exception]:
        """Return, in order, the proposal or the error of each transaction. Raises Problem when the request as a whole
        has too many messages or properties.
        """
        proposals: list[Proposal | Exception] = []
        attributes, messages = RequestAttributes(), 0
        for half, transaction_id in zip(halves, ids, strict=True):
            attributes.begin_transaction()
            try:
                require_send(self._core, request, half)
                proposal = await self._halves.proposal(half, transaction_id, attributes)
            except Exception as error:  # problem_of_part translates it, and logs a bug
                if attributes.too_many:
                    raise
                proposals.append(error)
                continue
            assert isinstance(proposal.command, Prepare)
            messages += sum(header.count for header in proposal.command.batches)
            if messages > REQUEST_MESSAGES_MAX:
                raise too_many_messages()
            proposals.append(proposal)
        return proposals

    async def _carry_out(self, proposals: Sequence[Proposal | Exception]) -> list[Applied | Exception]:
        """Propose all proposals and return the outcomes in order. An error in `proposals` is its own outcome."""
        outcomes = iter(await self._core.propose_all([each for each in proposals if isinstance(each, Proposal)]))
        return [next(outcomes) if isinstance(each, Proposal) else each for each in proposals]


def _answer(request: web.Request, view: Response) -> web.Response:
    packed = media_type(request, (JSON, MSGPACK)) == MSGPACK or wants_msgpack(request)
    return msgpack_response(view) if packed else json_response(view)
