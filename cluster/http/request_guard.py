"""Refuses requests that a browser sends for a web page of another site.

A page of any site can make its visitor's browser send requests to addresses that only the visitor reaches. Three
headers distinguish such requests from the requests of programs. All are checked before a handler sees the request:

* `Host` is the name that the page's script used. A foreign name that its owner points at a node's address (DNS
  rebinding) is not one of the node's names. Nobody can redirect an IP literal, so IP literals are accepted.
* `Origin` and `Sec-Fetch-Site` name the page. Programs send neither; a page that the node itself served has the same
  origin.
* `Content-Type` must be `application/json` or `application/msgpack` on every POST and PUT, with a body or without. A
  page cannot send these types to another origin without asking the server first (a CORS preflight), which a node never
  grants; the same holds for the methods DELETE and PUT.

Probes (/healthz, /readyz) are always answered: load balancers send any `Host`, and the answer discloses nothing. Pages
of other sites and nodes may link to the console, whose files say nothing; what its own page asks for is checked.
"""

from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web

from cluster.core.core import Core
from cluster.http.routes import CONSOLE_PATH, JSON, MSGPACK
from cluster.problems import Problem

PROBES: Final = frozenset({"/healthz", "/readyz"})
ANY_HOST: Final = "*"
HOSTS_REMEMBERED_MAX: Final = 1_024
OWN_SITES: Final = frozenset({"same-origin", "none"})
"""Values of Sec-Fetch-Site for a page of this node, and for an address that the user typed."""
MEDIA_TYPES: Final = frozenset({JSON, MSGPACK})
METHODS_WITH_BODY: Final = frozenset({"POST", "PUT"})
METHODS_WITHOUT_BODY: Final = frozenset({"GET", "DELETE"})


class RequestGuard:
    """Refuses requests of foreign web pages. `check` raises a Problem for each."""

    def __init__(self, core: Core) -> None:
        self._core = core
        config = core.config
        self._any_host = ANY_HOST in config.allowed_hosts
        self._names = {"localhost", *(name.lower().rstrip(".") for name in config.allowed_hosts)}
        for address, url in (
            (config.http_address(), config.advertised_url()),
            (config.admin_address(), config.advertised_admin_url()),
        ):
            if address is not None:
                self._names.update((address.host.lower(), _host_of_url(url or "")))
        self._known_hosts: set[str] = set()
        """Values of `Host`, as they were sent, that name this node."""

    def check(self, request: web.Request) -> None:
        """Raise Problem unknown_host, cross_origin, unsupported_media_type or invalid_request for a refused request."""
        headers = request.headers
        if request.path not in PROBES:
            host = headers.get("Host")
            if host is not None and host not in self._known_hosts:
                self._require_own(host)
            if ("Origin" in headers or "Sec-Fetch-Site" in headers) and not request.path.startswith(CONSOLE_PATH):
                self._require_own_page(headers.get("Origin"), headers.get("Sec-Fetch-Site"), host)
        if request.method in METHODS_WITH_BODY:
            if headers.get("Content-Type") not in MEDIA_TYPES:
                require_media_type(headers.get("Content-Type"), (JSON, MSGPACK))
        elif request.can_read_body and request.method in METHODS_WITHOUT_BODY:
            raise Problem("invalid_request", f"{request.method} must not have a body")

    def _require_own(self, host: str) -> None:
        if self._any_host or self._is_own(_without_port(host)):
            if len(self._known_hosts) >= HOSTS_REMEMBERED_MAX:
                self._known_hosts.clear()
            self._known_hosts.add(host)
            return
        raise Problem(
            "unknown_host",
            f"Host: {host[:80]!r} is none of this node's names; use its address or advertised URL, or start it with "
            "--allowed-host",
        )

    def _is_own(self, name: str) -> bool:
        if name in self._names or name.endswith(".localhost"):
            return True
        try:
            ip_address(name)
        except ValueError:
            # Checked last, because it may change: this node's address in the log.
            return name == _host_of_url(self._core.url_of(self._core.raft.node_id) or "")
        return True

    def _require_own_page(self, origin: str | None, site: str | None, host: str | None) -> None:
        if site is not None and site not in OWN_SITES:
            raise Problem("cross_origin", f"Sec-Fetch-Site: {site[:80]!r}: pages of other sites are not answered")
        if origin is not None and (host is None or origin.lower().partition("://")[2] != host.lower()):
            raise Problem("cross_origin", f"Origin: {origin[:80]!r}: pages of other sites are not answered")


def require_media_type(given: str | None, allowed: tuple[str, ...]) -> str:
    """Return the media type without its parameters. Raises Problem unsupported_media_type if it is not in `allowed`."""
    if given is None:
        raise Problem("unsupported_media_type", f"no Content-Type; send {' or '.join(allowed)}, also without a body")
    media = given.partition(";")[0].strip().lower()
    if media not in allowed:
        raise Problem("unsupported_media_type", f"Content-Type: {' or '.join(allowed)}, not {media[:80]!r}")
    return media


def _without_port(host: str) -> str:
    name = host.strip().lower()
    if name.startswith("["):
        return name[1:].partition("]")[0]
    return name.partition(":")[0].rstrip(".")


def _host_of_url(url: str) -> str:
    try:
        return (urlsplit(url).hostname or "").rstrip(".")
    except ValueError:
        return ""
