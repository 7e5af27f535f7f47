"""The nodes of a cluster as far as this client knows them: nodes that it was given, and nodes that other nodes have
named."""

from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from keelmq import wire
from keelmq.errors import InvalidRequest, ServerNotTrusted
from keelmq.line_log import log
from keelmq.transport.http1 import Origin

DEFAULT_SERVERS: Final = ("http://127.0.0.1:7081", "http://127.0.0.1:7082", "http://127.0.0.1:7083")


def parse_servers(servers: str | Sequence[str]) -> list[Origin]:
    """Parse `servers` (URLs, or one comma-separated string) to origins. Raises InvalidRequest, also for a URL with a
    path or a query, which no request would have.
    """
    urls = [url.strip() for url in servers.split(",")] if isinstance(servers, str) else list(servers)
    try:
        origins = [Origin.parse(url) for url in urls if url]
    except ValueError as exc:
        raise InvalidRequest("invalid_request", f"servers: {exc}") from exc
    beyond = [url for url in urls if (parts := urlsplit(url)).path.strip("/") or parts.query or parts.fragment]
    if beyond:
        raise InvalidRequest("invalid_request", f"servers: {beyond[0]!r} has more than http://host:port")
    if not origins:
        raise InvalidRequest("invalid_request", "servers: at least one URL is needed")
    return list(dict.fromkeys(origins))


def named_by(node: Origin, url: str) -> Origin:
    """Return the origin that the node has named as the leader. Raises ValueError when it is no URL, and
    ServerNotTrusted when a node under TLS names one without: whoever is between could read and change everything there.
    """
    origin = Origin.parse(url)
    if node.secure and not origin.secure:
        raise ServerNotTrusted(
            "server_not_trusted",
            f"{node.url} names {origin.url} as the leader, which is not encrypted and is not asked; give all nodes "
            "https URLs",
        )
    return origin


class KnownNodes:
    """The known nodes of one cluster, in order. Belongs to one event loop."""

    def __init__(self, servers: Sequence[Origin]) -> None:
        self._servers = list(servers)
        self._configuration_index = 0  # index of the configuration that named the known nodes
        self.all = list(servers)

    def learn(self, node: Origin, view: wire.LeaderView) -> None:
        """Update the known nodes from the node's `view`; `servers` stay known, in case they are other names or come
        back. A node under TLS cannot name nodes without.
        """
        named: list[Origin] = []
        for each in view.nodes:
            try:
                named.append(named_by(node, each.url))
            except (ValueError, ServerNotTrusted) as exc:
                log.debug("%s names %r as a node: %s", node.url, each.url, exc)
        if not named or view.removed:
            return
        if view.configuration_index >= self._configuration_index:
            self._configuration_index = view.configuration_index
            self.all = list(dict.fromkeys([*self._servers, *named]))
        else:
            # The view comes from a lagging node, which must not remove newer nodes, or from a cluster that was created
            # anew under the same addresses (usually with the same id), whose nodes must be found. So its nodes are
            # added. A removed node costs a failed connect until a view at least as recent as ours arrives.
            self.all = list(dict.fromkeys([*self.all, *named]))

    def add(self, node: Origin) -> bool:
        """Add a node that a redirect has named. Return whether it was unknown."""
        if node in self.all:
            return False
        self.all = [*self.all, node]
        return True

    def place(self, node: Origin) -> int:
        """Return the index of a node among the known nodes; -1 for a node that only a redirect named."""
        return self.all.index(node) if node in self.all else -1
