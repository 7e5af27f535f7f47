"""Metrics of the connections and the memory that clients hold, read at every scrape."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric

from cluster.budgets.connections import Connections
from cluster.core.core import Core
from cluster.metrics import gauge


def edge_metrics(core: Core) -> Iterator[Metric]:
    connections = core.connections
    yield gauge("keelmq_http_connections", "HTTP connections that are open", connections.open)
    yield gauge(
        "keelmq_http_connections_limit", "HTTP connections that may be open, without the reserve", connections.limit
    )
    yield CounterMetricFamily(
        "keelmq_http_connections_reserved",
        "Connections that found room in the reserve only: for health and administration",
        value=connections.reserved,
    )
    yield _closed(
        "keelmq_http_connections_closed",
        "Connections that this node closed: idle or reserved ones for others, unread ones whose client took no answer, "
        "crowded ones beyond 100 a second that an address opened when it had no room, ones without a TLS handshake",
        connections.closed,
    )
    yield from _administration_metrics(core.admin_connections, connections)
    yield gauge("keelmq_request_bytes", "Bytes of requests' bodies that are in memory", core.request_budget.held)
    yield gauge(
        "keelmq_unread_response_bytes",
        "Bytes of large responses that their clients have not taken yet",
        core.response_budget.held,
    )


def _administration_metrics(own: Connections | None, clients: Connections) -> Iterator[Metric]:
    """Yield the same metrics of the listener of administration. All are 0 while there is none."""
    yield gauge(
        "keelmq_admin_connections",
        "Connections that are open at the listener of administration",
        0 if own is None else own.open,
    )
    yield gauge(
        "keelmq_admin_connections_limit",
        "Connections that may be open at the listener of administration, without the reserve; 0 without one",
        0 if own is None else own.limit,
    )
    yield CounterMetricFamily(
        "keelmq_admin_connections_reserved",
        "Connections at the listener of administration that found room in its reserve only",
        value=0 if own is None else own.reserved,
    )
    yield _closed(
        "keelmq_admin_connections_closed",
        "Connections at the listener of administration that this node closed, for the same reasons",
        dict.fromkeys(clients.closed, 0) if own is None else own.closed,
    )


def _closed(name: str, documentation: str, counts: dict[str, int]) -> Metric:
    family = CounterMetricFamily(name, documentation, labels=["reason"])
    for reason, count in counts.items():
        family.add_metric([reason], count)
    return family
