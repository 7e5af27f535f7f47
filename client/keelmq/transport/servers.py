"""The servers that a caller names."""

from collections.abc import Sequence
from typing import Final

from keelmq.errors import InvalidRequest
from keelmq.transport.http1 import Origin

DEFAULT_SERVERS: Final = ("http://127.0.0.1:7081", "http://127.0.0.1:7082", "http://127.0.0.1:7083")


def parse_servers(servers: str | Sequence[str]) -> list[Origin]:
    """Parse `servers` (URLs, or one comma-separated string) to origins. Raises InvalidRequest."""
    urls = [url.strip() for url in servers.split(",")] if isinstance(servers, str) else list(servers)
    try:
        origins = [Origin.parse(url) for url in urls if url]
    except ValueError as exc:
        raise InvalidRequest("invalid_request", f"servers: {exc}") from exc
    if not origins:
        raise InvalidRequest("invalid_request", "servers: at least one URL is needed")
    return list(dict.fromkeys(origins))
