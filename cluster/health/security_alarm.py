"""The alarm for a node that was started open although other machines can reach it."""

import logging
from collections.abc import Iterator

from cluster.core.core import Core
from cluster.health.alarms import Condition
from cluster.process.addresses import is_loopback

logger = logging.getLogger(__name__)


class SecurityAlarm:
    """Says at every start, and as an alarm for as long as the node runs, what protects nobody."""

    def __init__(self, core: Core) -> None:
        self._core, config = core, core.config
        self._open: list[str] = []
        without = [] if config.http_tls_cert is not None else ["TLS"]
        without += [] if config.auth == "enforce" else ["permissions"]
        for whom, address in (("clients", config.http_address()), ("administrators", config.admin_address())):
            if config.insecure_http and without and address is not None and not is_loopback(address.host):
                self._open.append(f"{whom} at {address} without {' and '.join(without)}")
        if config.insecure_peers and config.tls_cert is None and not is_loopback(config.peer_address().host):
            self._open.append(f"peers at {config.peer_address()} without TLS")
        for each in self._open:
            logger.warning("this node serves %s: whoever reaches it can read and change messages", each)

    def conditions(self) -> Iterator[Condition]:
        """Yield one alarm when the node serves somebody without protection."""
        tls, found = self._core.raft.tls, [*self._open]
        if tls is not None and tls.plain_too:
            found.append(f"peers at {self._core.config.peer_address()} with or without TLS until all nodes have it")
        if found:
            yield Condition(
                "insecure",
                "warning",
                f"this node serves {', and '.join(found)}: docs/security.md shows how to close it",
            )
