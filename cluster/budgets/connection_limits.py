"""The limits of the HTTP connections of a node: of clients, and of administration if it has a listener of its own."""

import itertools
import resource
from typing import Final

from cluster.budgets.connections import FILES_RESERVED, HEARD_MAX, RESERVED_CONNECTIONS, Connections
from cluster.budgets.holdings import Listener
from cluster.process.config import NodeConfig

ADMINISTRATION_CONNECTIONS_MAX: Final = 256
"""Maximum number of connections at the listener of administration, beside its own reserve."""


def connections_max(configured: int, *, beside_administration: bool = False) -> int:
    """Return the limit of HTTP connections outside the reserve: `configured`, lowered to the number that the limit of
    open files leaves, at least one. It leaves room `beside_administration` for the connections of that listener.
    """
    kept = FILES_RESERVED + RESERVED_CONNECTIONS + HEARD_MAX
    if beside_administration:
        kept += ADMINISTRATION_CONNECTIONS_MAX + RESERVED_CONNECTIONS + HEARD_MAX
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return configured
    return max(1, min(configured, soft - kept))


def connections_of(config: NodeConfig) -> tuple[Connections, Connections | None]:
    """Return the connections of clients, and those of the listener of administration, if there is one."""
    has_own, write_timeout_s = config.admin_listen is not None, config.request_timeout_ms / 1000
    limits: dict[Listener, int] = {
        "http_listen": connections_max(config.max_connections, beside_administration=has_own),
        "admin_listen": ADMINISTRATION_CONNECTIONS_MAX,
    }
    numbers = itertools.count(1)
    clients, own = (
        Connections(limit, config.address_share_percent, write_timeout_s, numbers=numbers, listener=listener)
        for listener, limit in limits.items()
    )
    return clients, own if has_own else None


def limits_of(*listeners: Connections | None) -> dict[Listener, int]:
    """Return the limit of connections at each listener that there is."""
    return {each.listener: each.limit for each in listeners if each is not None}
