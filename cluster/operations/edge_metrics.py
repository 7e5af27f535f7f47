"""Metrics of the connections and the memory that clients hold, read at every scrape."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric

from cluster.core.core import Core
from cluster.metrics import gauge


def edge_metrics(core: Core) -> Iterator[Metric]:
    connections = core.connections
    yield gauge("keelmq_http_connections", "HTTP connections that are open", connections.open)
    yield gauge(
        "keelmq_http_connections_limit", "HTTP connections that may be open, without the reserve", connections.limit
    )
    own = core.admin_connections
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
        "keelmq_http_connections_reserved",
        "Connections that found room in the reserve only: for health and administration",
        value=connections.reserved,
    )
    closed = CounterMetricFamily(
        "keelmq_http_connections_closed",
        "Connections that this node closed: idle or reserved ones for others, unread ones whose client took no answer, "
        "crowded ones beyond 100 a second that an address opened when it had no room, ones without a TLS handshake",
        labels=["reason"],
    )
    for reason, count in connections.closed.items():
        closed.add_metric([reason], count)
    yield closed
    yield gauge("keelmq_request_bytes", "Bytes of requests' bodies that are in memory", core.request_budget.held)
    yield gauge(
        "keelmq_unread_response_bytes",
        "Bytes of large responses that their clients have not taken yet",
        core.response_budget.held,
    )
