"""Measures HTTP requests by route: durations, number under way, and error codes. Logs slow requests, and at DEBUG every
write.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from math import inf
from typing import Any, Final

from aiohttp import web
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from cluster.measures import Durations
from cluster.problems import CODE
from cluster.process.logging_setup import FIELDS
from cluster.process.request_scope import CURRENT, REQUEST_ID_HEADER, RequestScope

logger = logging.getLogger(__name__)

BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
NO_ROUTE: Final = "other"
"""Label of requests that no route serves."""
FIRST_ERROR_STATUS: Final = 400

Inner = Callable[[web.Request], Awaitable[web.StreamResponse]]


class _Route:
    """The requests of one route."""

    __slots__ = ("durations", "in_flight", "labels")

    def __init__(self, method: str, path: str) -> None:
        self.labels = (method, path)
        self.in_flight = 0
        self.durations = Durations(BOUNDS_S)


def _log_write(route: _Route, scope: RequestScope, spent_s: float) -> None:
    """Log what was written; the line has the ids of the request, as all its lines."""
    method, path = route.labels
    fields = {"method": method, "route": path, "raft_index": scope.raft_index, "duration_ms": round(spent_s * 1000, 1)}
    logger.debug("write: %s %s, entry %d, took %.1f ms", *fields.values(), extra={FIELDS: fields})


class RequestTimes:
    """Owns the measurements of all routes. Use on the event loop only."""

    def __init__(
        self,
        slow_ms: int,
        principal_of: Callable[[web.Request], str],
        steady_s: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Create it. Requests that take `slow_ms` or longer are logged, none if it is 0."""
        self._slow_s = slow_ms / 1000 if slow_ms else inf
        self._principal_of = principal_of
        self._steady_s = steady_s
        self._routes: dict[tuple[object, str], _Route] = {}
        """By resource and method. Requests without a route share one: their method may be any word."""
        self._labelled: dict[tuple[str, str], _Route] = {}
        """The same by labels: each listener has resources of its own."""
        self._refusals: dict[str, int] = {}

    def middleware(self) -> Any:
        """Return the outermost middleware, which measures each request from its head to its answer, long polls and
        answers that are written piece by piece included.
        """
        routes, steady_s, slow_s = self._routes, self._steady_s, self._slow_s

        @web.middleware
        async def measure(request: web.Request, handler: Inner) -> web.StreamResponse:
            resource = request.match_info.route.resource
            route = routes.get((resource, request.method)) or self._route(resource, request.method)
            route.in_flight += 1
            scope = RequestScope(request.headers)
            CURRENT.set(scope)
            begun_s = steady_s()
            try:
                response = await handler(request)
            finally:
                route.in_flight -= 1
                spent_s = steady_s() - begun_s
                route.durations.observe(spent_s)
                if spent_s >= slow_s:
                    self._log_slow(request, route, scope, spent_s)
                if scope.raft_index and logger.isEnabledFor(logging.DEBUG):
                    _log_write(route, scope, spent_s)
                scope.ended = True
            is_told = response.status >= FIRST_ERROR_STATUS or scope.given_id is not None
            if is_told and not response.prepared:
                response.headers[REQUEST_ID_HEADER] = scope.id
            if response.status >= FIRST_ERROR_STATUS:
                self._count_refusal(response)
            return response

        return measure

    def _route(self, resource: web.AbstractResource | None, method: str) -> _Route:
        labels = ("", NO_ROUTE) if resource is None else (method, resource.canonical)
        key = (resource, "" if resource is None else method)
        return self._routes.setdefault(key, self._labelled.setdefault(labels, _Route(*labels)))

    def _log_slow(self, request: web.Request, route: _Route, scope: RequestScope, spent_s: float) -> None:
        """Log the request, unless it was only waiting for what its client waits for."""
        busy_s = spent_s - scope.polled_s
        if busy_s < self._slow_s:
            return
        method, path = route.labels
        principal = self._principal_of(request)
        fields = {
            "method": method or "other",
            "route": path,
            "principal": principal,
            "duration_ms": round(busy_s * 1000),
            "queued_ms": round(scope.queued_s * 1000),
            "replication_ms": round(scope.replicated_s * 1000),
            "long_poll_ms": round(scope.polled_s * 1000),
        }
        logger.warning(
            "slow request: %s %s by %s took %d ms: %d ms for its turn, %d ms until its commands were applied",
            *(fields[name] for name in ("method", "route", "principal", "duration_ms", "queued_ms", "replication_ms")),
            extra={FIELDS: fields},
        )

    def _count_refusal(self, response: web.StreamResponse) -> None:
        code = response.get(CODE)
        if code is not None:
            self._refusals[code] = self._refusals.get(code, 0) + 1

    def metrics(self) -> Iterator[Metric | None]:
        labels = ["method", "route"]
        times = HistogramMetricFamily(
            "keelmq_http_request_seconds",
            "From the head of a request to its answer, by route; a long poll's wait is part of it",
            labels=labels,
        )
        in_flight = GaugeMetricFamily(
            "keelmq_http_requests_in_flight", "Requests that are being answered", labels=labels
        )
        for route in tuple(self._labelled.values()):
            route.durations.add_to(times, route.labels)
            in_flight.add_metric(route.labels, route.in_flight)
        yield times
        yield in_flight
        refusals = CounterMetricFamily(
            "keelmq_http_refusals", "Requests that were answered with an error, by its code", labels=["code"]
        )
        for code, count in sorted(self._refusals.items()):
            refusals.add_metric([code], count)
        yield refusals
