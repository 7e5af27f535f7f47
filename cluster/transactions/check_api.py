"""Delivers checks to producers, by a long poll or by the webhook of a producer group."""

import logging
from collections.abc import Iterator
from functools import partial
from typing import Annotated, Final

import msgspec
from aiohttp import web
from msgspec import Meta

from cluster.budgets.pace import Pace
from cluster.core.background import COMMAND_ERRORS
from cluster.core.core import Core
from cluster.http.app import json_response, note_headers, read_json
from cluster.http.requests import ClientId, Request, WaitMs, check_group, parse_query
from cluster.http.responses import Response, json_body
from cluster.http.routes import APPLIED_INDEX_HEADER, JSON, WRITE_ERRORS, Route, json_of
from cluster.limits import CHECKS_MAX, LIST_MAX, URL_LENGTH_MAX
from cluster.messages.block_reader import BlockReader
from cluster.problems import Problem
from cluster.process.allowed_urls import AllowedUrls, UrlInvalid, UrlNotAllowed
from cluster.process.request_scope import TRACEPARENT_HEADER, trace_id_of
from cluster.security import permissions
from cluster.security.access import BY_HANDLER, of_producer_group
from cluster.transactions.check_service import CheckService, CheckView
from cluster.transactions.webhook_slots import WebhookSlots
from cluster.transactions.webhooks import WebhookFailed, Webhooks
from store.commands.transactions import CheckUrlSet, Decide, Decision, SetCheckUrl
from store.commands.views import DueCheck


class CheckUrl(Request, kw_only=True, frozen=True):
    check_url: Annotated[str, Meta(max_length=URL_LENGTH_MAX)] | None


class ChecksQuery(Request, kw_only=True, frozen=True):
    wait_ms: WaitMs = 0
    max: Annotated[int, Meta(ge=1, le=CHECKS_MAX)] = 32
    client_id: ClientId = ""


class ProducerGroupsQuery(Request, kw_only=True, frozen=True):
    limit: Annotated[int, Meta(ge=1, le=LIST_MAX)] = LIST_MAX
    after: str | None = None


class WebhookAnswer(msgspec.Struct, frozen=True):
    """The answer of a producer's webhook. Further members are ignored, because foreign code writes the answer."""

    decision: Decision


class ChecksView(Response, kw_only=True, frozen=True):
    checks: list[CheckView]


class ProducerGroupView(Response, kw_only=True, frozen=True):
    producer_group: str
    check_url: str | None


class ProducerGroupsView(Response, kw_only=True, frozen=True):
    """Producer groups with a check URL; `next` is null on the last page."""

    producer_groups: list[ProducerGroupView]
    next: str | None


logger = logging.getLogger(__name__)

CHECK_BYTES_MAX: Final = 8 * 1024 * 1024
"""Maximum total size of message bodies in one answer, in characters; the first check is always complete."""

WEBHOOKS_AT_ONCE_MAX: Final = 256
"""Maximum number of checks on their way to webhooks. For one group see cluster/transactions/webhook_slots.py."""
WEBHOOK_RETRY_MS: Final = 5_000
"""Milliseconds after which an undelivered check is sent to its URL again, or one whose messages could not be read is
handed out again; the failed try does not count."""

_decoder: Final = msgspec.json.Decoder(CheckUrl)
_answer_decoder: Final = msgspec.json.Decoder(WebhookAnswer)


class CheckApi:
    """Handles /v1/producer-groups, and delivers checks to webhooks."""

    def __init__(self, core: Core, webhooks: Webhooks) -> None:
        self._core = core
        self._webhooks = webhooks
        self._slots = WebhookSlots()
        self._allowed = AllowedUrls.of(core.config)
        self.service = CheckService(core, self._send_webhook, self._slots)

    def routes(self) -> list[Route]:
        group = "/v1/producer-groups/{group}"
        return [
            Route(
                "GET",
                "/v1/producer-groups",
                self.list_all,
                "List the producer groups that have a check URL by name, page by page",
                {200: json_of(ProducerGroupsView)},
                query=ProducerGroupsQuery,
                errors=("no_leader",),
                redirects=True,
                access=BY_HANDLER,
            ),
            Route(
                "GET",
                f"{group}/checks",
                self.poll,
                "Wait for half transactions of the group that a producer must decide",
                {200: json_of(ChecksView)},
                query=ChecksQuery,
                errors=("invalid_group", "no_leader"),
                redirects=True,
                access=of_producer_group("decide"),
            ),
            Route(
                "PUT",
                group,
                self.put,
                "Set the URL to which checks are POSTed; null goes back to polling",
                {200: json_of(ProducerGroupView)},
                body={JSON: CheckUrl},
                errors=("invalid_group", "check_url_not_allowed", "too_many_check_urls", *WRITE_ERRORS),
                redirects=True,
                access=of_producer_group("alter"),
            ),
        ]

    def start(self) -> None:
        self._webhooks.start()
        self.service.start()

    async def stop(self) -> None:
        await self.service.stop()
        await self._webhooks.stop()

    async def poll(self, request: web.Request) -> web.StreamResponse:
        self._core.require_leader()
        group = check_group(request.match_info["group"])
        query = parse_query(ChecksQuery, request.query)
        checks = await self.service.poll(group, query.client_id, query.max, query.wait_ms / 1000)
        leased = [check.transaction_id for check in checks]
        try:
            applied_index = self._core.raft.applied_index
            views, unreadable = await self._views(checks)
            response = json_response(ChecksView(checks=views))
            response.headers[APPLIED_INDEX_HEADER] = str(applied_index)
            note_headers(response)
            # Written here, not by the server after the return: only so is a check known to be delivered.
            await response.prepare(request)
            await response.write_eof()
        except BaseException:
            self.service.release(leased)
            raise
        handed_over = dict.fromkeys(view.transaction_id for view in views)  # ordered, because they go into the log
        self.service.release(each for each in leased if each not in handed_over and each not in unreadable)
        if handed_over:
            self.service.spawn(partial(self.service.delivered, tuple(handed_over), query.client_id, "poll"))
        return response

    async def list_all(self, request: web.Request) -> web.Response:
        """Answer with the groups whose URL the request may set: a URL may hold what only they should know."""
        self._core.require_leader()  # a replica that lags would show former URLs
        query = parse_query(ProducerGroupsQuery, request.query)
        listed: list[ProducerGroupView] = []
        pace = Pace()
        for name, url in self._urls_after(query.after or ""):
            await pace.step()
            if not self._core.access.may(request, "alter", permissions.producer_group(name)):
                continue
            if len(listed) >= query.limit:
                following = listed[-1].producer_group
                return json_response(ProducerGroupsView(producer_groups=listed, next=following))
            listed.append(ProducerGroupView(producer_group=name, check_url=url))
        return json_response(ProducerGroupsView(producer_groups=listed, next=None))

    def _urls_after(self, after: str) -> Iterator[tuple[str, str]]:
        while found := self._core.state.check_urls(LIST_MAX, after):
            yield from found
            after = found[-1][0]

    async def put(self, request: web.Request) -> web.Response:
        self._core.require_leader()
        group = check_group(request.match_info["group"])
        body = await read_json(request, self._core, _decoder)
        self._core.access.require(request, "decide", permissions.producer_group(group))
        if body.check_url is not None:
            self._require_allowed(body.check_url)
        applied = await self._core.propose(SetCheckUrl(group, body.check_url), by=request)
        put: CheckUrlSet = applied.result
        return json_response(ProducerGroupView(producer_group=put.producer_group, check_url=put.check_url))

    def _require_allowed(self, url: str) -> None:
        """Raise Problem invalid_request or check_url_not_allowed."""
        try:
            self._allowed.require(url)
        except UrlInvalid as error:
            raise Problem("invalid_request", str(error)) from None
        except UrlNotAllowed as error:
            raise Problem("check_url_not_allowed", str(error)) from None

    async def _views(self, checks: list[DueCheck]) -> tuple[list[CheckView], set[str]]:
        """Return the checks to hand out, and the transactions whose messages cannot be read now: they are postponed, as
        those of webhooks, or each poll would get them, and be answered with nothing.
        """
        reader = BlockReader(self._core)
        views: list[CheckView] = []
        unreadable: set[str] = set()
        size = 0
        for check in checks:
            try:
                view = await self.service.view(check, reader)
            except Problem as problem:  # it concerns this check; the others are delivered all the same
                logger.warning("the check of %s cannot be handed out: %s", check.transaction_id, problem)
                self.service.postpone(check.transaction_id, WEBHOOK_RETRY_MS)
                unreadable.add(check.transaction_id)
                continue
            if view is None:
                continue
            size += sum(len(message.body) for message in view.messages)
            if views and size > CHECK_BYTES_MAX:
                break
            views.append(view)
        return views, unreadable

    def _send_webhook(self, check: DueCheck, url: str) -> bool:
        """Begin to POST the check. Return False when it is under way already, or too many others are.

        After False nothing is kept: the check stays due, and the scan after the next answer comes back to it.
        """
        now_ms = self._core.now_ms()
        if not self._slots.take(check.transaction_id, check.producer_group, now_ms, WEBHOOKS_AT_ONCE_MAX):
            return False
        self.service.spawn(partial(self._deliver_and_forget, check, url))
        return True

    async def _deliver_and_forget(self, check: DueCheck, url: str) -> None:
        answered = False
        try:
            answered = await self._deliver(check, url)
        finally:
            again_at_ms = None
            # The failure of a URL that the group has no more keeps the next one, or polls, waiting for nothing.
            if not answered and self._core.state.check_url(check.producer_group) == url:
                self.service.postpone(check.transaction_id, WEBHOOK_RETRY_MS)
                again_at_ms = self._core.now_ms() + WEBHOOK_RETRY_MS
            self._slots.free(check.transaction_id, check.producer_group, again_at_ms)
            self.service.nudge()

    async def _deliver(self, check: DueCheck, url: str) -> bool:
        """POST one check and carry out the answer. Return False when the webhook did not answer with a 2xx; the check
        is not counted then.
        """
        try:
            view = await self.service.view(check, BlockReader(self._core, patient=True))
        except Problem as problem:  # the webhook is not to blame, so this is no failure of it
            logger.warning("the check of %s cannot be POSTed: %s", check.transaction_id, problem)
            self.service.postpone(check.transaction_id, WEBHOOK_RETRY_MS)
            return True
        if view is None:
            return True
        calls = self._core.metrics.webhook_calls
        try:
            status, answer = await self._webhooks.post(url, json_body(view), _traceparent_of(view))
        except WebhookFailed as error:
            calls[error.failure].inc()
            logger.warning("check of %s could not be POSTed to %s: %s", check.transaction_id, url, error)
            return False
        if not 200 <= status < 300:
            calls["error_status"].inc()
            logger.warning("check of %s: %s answered %d", check.transaction_id, url, status)
            return False
        await self.service.delivered((check.transaction_id,), check.client_id, "webhook")
        try:
            decision = _answer_decoder.decode(answer).decision
        except (ValueError, RecursionError) as error:
            calls["invalid_answer"].inc()
            logger.warning("check of %s: %s answered with %s", check.transaction_id, url, error)
            return True
        calls[decision].inc()
        try:
            await self._core.propose(
                Decide(check.transaction_id, decision, "check", check.client_id, check.producer_group)
            )
        except COMMAND_ERRORS as error:
            logger.warning("answer %s to the check of %s: %s", decision, check.transaction_id, error)
        return True


def _traceparent_of(view: CheckView) -> str | None:
    """Return the trace that the first message with a valid one belongs to, so that the check becomes part of it."""
    given = (message.properties.get(TRACEPARENT_HEADER) for message in view.messages)
    return next((each for each in given if each is not None and trace_id_of(each) is not None), None)
