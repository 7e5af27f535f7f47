"""Shows what the principals have left of their quotas at this node."""

from typing import Annotated

from aiohttp import web
from msgspec import Meta

from cluster.budgets.quotas import HeldQuota, Kind, Quota
from cluster.budgets.time_shares import PRINCIPAL_SENDER
from cluster.core.core import Core
from cluster.http.app import json_response
from cluster.http.requests import Request, parse_query
from cluster.http.responses import Response
from cluster.http.routes import Route, json_of
from cluster.limits import LIST_MAX
from cluster.security.access import ADMINISTRATION


class QuotasQuery(Request, kw_only=True, frozen=True):
    """Asks for users, or for the client addresses that show no valid credentials."""

    kind: Kind = "user"
    limit: Annotated[int, Meta(ge=1, le=LIST_MAX)] = 100
    after: str = ""


class QuotaUsageView(Response, kw_only=True, frozen=True):
    """The quotas of one principal, 0 being no limit, and what is left of them: null without a limit, negative while
    the principal has to wait for it. `weight` is its share of the log while more waits than one entry holds.
    `throttled` counts its refused requests; null where they are not told apart.
    """

    principal: str
    weight: int
    requests_per_s: int
    in_bytes_per_s: int
    out_bytes_per_s: int
    filter_ms_per_s: int
    connections: int
    long_polls: int
    held_bytes: int
    requests_left: int | None
    in_bytes_left: int | None
    out_bytes_left: int | None
    filter_ms_left: int | None
    connections_left: int | None
    long_polls_left: int | None
    held_bytes_left: int | None
    throttled: int | None


class QuotasView(Response, kw_only=True, frozen=True):
    """Principals that were at work lately, by name. `limited` is false while this node limits nobody and weighs all
    alike.
    """

    node_id: int
    limited: bool
    principals: list[QuotaUsageView]
    next: str | None


class QuotaApi:
    """Handles /v1/cluster/quotas."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def routes(self) -> list[Route]:
        return [
            Route(
                "GET",
                "/v1/cluster/quotas",
                self.show,
                "Show what principals have left of their quotas at this node",
                {200: json_of(QuotasView)},
                query=QuotasQuery,
                access=ADMINISTRATION,
            )
        ]

    async def show(self, request: web.Request) -> web.Response:
        query = parse_query(QuotasQuery, request.query)
        quotas = self._core.quotas
        node_id = self._core.raft.node_id
        if quotas is None:
            return json_response(QuotasView(node_id=node_id, limited=False, principals=[], next=None))
        found = quotas.page(query.kind, query.after, query.limit + 1)
        now_s = quotas.steady_s()
        shown = [self._view(name, quota, now_s, query.kind) for name, quota in found[: query.limit]]
        following = shown[-1].principal if len(shown) < len(found) else None
        return json_response(
            QuotasView(node_id=node_id, limited=not quotas.is_unlimited, principals=shown, next=following)
        )

    def _view(self, name: str, quota: Quota, now_s: float, kind: Kind) -> QuotaUsageView:
        quotas, holdings = self._core.quotas, self._core.holdings
        holder = f"{PRINCIPAL_SENDER}{name}" if kind == "user" else name
        requests, in_bytes, out_bytes, filter_ms = quota.usage(now_s)
        rates = quota.rates

        def left(of: HeldQuota, limit: int | None) -> int | None:
            return limit - holdings.held_by(holder, of) if limit else None

        return QuotaUsageView(
            principal=name,
            weight=rates.weight or 1,
            requests_per_s=rates.requests_per_s or 0,
            in_bytes_per_s=rates.in_bytes_per_s or 0,
            out_bytes_per_s=rates.out_bytes_per_s or 0,
            filter_ms_per_s=rates.filter_ms_per_s or 0,
            connections=rates.connections or 0,
            long_polls=rates.long_polls or 0,
            held_bytes=rates.held_bytes or 0,
            requests_left=requests,
            in_bytes_left=in_bytes,
            out_bytes_left=out_bytes,
            filter_ms_left=filter_ms,
            connections_left=left("connections", rates.connections),
            long_polls_left=left("long_polls", rates.long_polls),
            held_bytes_left=left("held_bytes", rates.held_bytes),
            throttled=quotas.throttled(name) if kind == "user" and quotas is not None else None,
        )
