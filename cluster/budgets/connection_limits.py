"""The limits of the HTTP connections of a node: of clients, and of administration if it has a listener of its own."""

import itertools
import logging
import resource
from typing import Final

from cluster.budgets.connections import HEARD_MAX, RESERVED_CONNECTIONS, Connections
from cluster.budgets.holdings import Listener
from cluster.process.config import NodeConfig
from store.descriptors import KEPT_FREE, SPARES
from store.index.rocksdb_options import OPEN_FILES_MAX
from store.log.segments import OPEN_SEGMENTS_MAX

FILES_RESERVED: Final = OPEN_FILES_MAX + OPEN_SEGMENTS_MAX + SPARES + KEPT_FREE + 96
"""Number of file descriptors kept free of clients: for the index, the log, and 96 for peers, webhooks and the rest."""
logger = logging.getLogger(__name__)

FILES_WANTED: Final = 65_536
"""Number of files that a node may open, if it is allowed: as in its unit of systemd."""
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


def raise_limit_of_files() -> None:
    """Raise the limit of open files to FILES_WANTED, or as far as the hard limit allows. Shells and service managers
    give 1,024 by default, for programs that cannot cope with more; a node can.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_WANTED if hard == resource.RLIM_INFINITY else min(hard, FILES_WANTED)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:  # a sandbox forbids it
        logger.warning("this process may open %d files, and its limit cannot be raised: %s", soft, error)
    else:
        logger.info("this process may open %d files, where its limit was %d", wanted, soft)
