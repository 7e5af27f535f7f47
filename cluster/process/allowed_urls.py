"""The URLs to which a node sends checks: the option webhook_allow, compared with URLs and with resolved addresses.

A URL is parsed once, by the parser of the HTTP client. What was compared is therefore what is called.
"""

import re
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Final
from urllib.parse import unquote

from yarl import URL

from cluster.process.addresses import ConfigError, is_loopback
from cluster.process.config import NodeConfig

EVERY_HOST: Final = "*"
_AUTHORITY_END: Final = re.compile("[/?#]")
_SEGMENT_END: Final = re.compile(r"[/\\]")
_DECODINGS_MAX: Final = 4
"""Maximum percent-decodings of a path to look for dot segments; one that has not come to rest by then is refused."""
_IPV4_IN_LAST_BITS: Final = (IPv6Network("64:ff9b::/96"), IPv6Network("::/96"))
"""NAT64, and the former IPv4-compatible form: the last 32 bits are an IPv4 address."""
_METADATA: Final = IPv6Network("fd00:ec2::254/128")
"""The metadata service of clouds by IPv6, which no property of the address tells; 169.254.169.254 is link-local."""
_THIS_NETWORK_BITS: Final = 24
"""Bits to shift an IPv4 address by to get its first byte; 0 is "this network", which reaches this machine."""


class UrlInvalid(Exception):
    """The text is no URL to which checks can be sent; the message says what it has to be."""


class UrlNotAllowed(Exception):
    """webhook_allow does not allow the URL, or the address behind its name; the message says what to do."""


class AllowedUrls:
    """Decides which URLs may be called."""

    def __init__(self, entries: Iterable[str], *, loopback: bool) -> None:
        """Create it of the entries of webhook_allow. With `loopback`, all URLs of this machine are allowed if there are
        no entries. Raises ConfigError.
        """
        listed = tuple(entries)
        self._every_host = EVERY_HOST in listed
        self._prefixes = tuple(_parse_entry(entry) for entry in listed if entry != EVERY_HOST)
        self._loopback = loopback and not listed

    @classmethod
    def of(cls, config: NodeConfig) -> "AllowedUrls":
        """Return the URLs that a configuration allows. Raises ConfigError."""
        return cls(config.webhook_allow, loopback=is_loopback(config.http_address().host))

    def require(self, text: str) -> URL:
        """Return the URL to call. Raises UrlInvalid and UrlNotAllowed."""
        url = parse(text)
        if any(_is_below(url, prefix) for prefix in self._prefixes):
            return url
        host = url.host or ""
        if self._loopback and is_loopback(host):
            return url
        if self._every_host and not is_special_host(host):
            return url
        raise UrlNotAllowed(
            f"check_url: webhook_allow does not allow {url.origin()}; whoever runs the nodes can add the URL, or a URL "
            "that it begins with, on all of them"
        )


def require_address(host: str, address: str) -> None:
    """Raise UrlNotAllowed unless a name of a URL that is allowed may stand for the address. No name but a loopback
    one stands for this machine, and none for link-local, unspecified, multicast or reserved addresses: whoever answers
    for the name could else have any service there called.
    """
    found = ip_address(address)
    if is_special(found) and not (is_loopback(host) and found.is_loopback):
        raise UrlNotAllowed(
            f"{host} is {address} by its name, an address to which checks go only if webhook_allow has it in digits"
        )


def parse(text: str) -> URL:
    """Return the URL. Raises UrlInvalid unless it is an http or https URL with a host and without credentials, fragment
    and dot segments.
    """
    try:
        url = URL(text)
        valid = url.scheme in ("http", "https") and bool(url.host) and url.port != 0
    except ValueError:
        valid = False
    if not valid or not text.isascii() or not text.isprintable() or " " in text or "\\" in text:
        raise UrlInvalid("check_url: an http or https URL with a host")
    if "@" in _AUTHORITY_END.split(text.partition("://")[2], 1)[0] or "#" in text:
        raise UrlInvalid(
            "check_url: a URL without user, password and fragment; webhook_secret_file lets the service know the broker"
        )
    if _has_dots(url.raw_path) or _has_dots(_written_path(text)):
        raise UrlInvalid("check_url: a URL whose path has no . and .. segments")
    return url


def is_special_host(host: str) -> bool:
    """Return whether the host, as it is written, is this machine or a special address."""
    try:
        return is_special(ip_address(host))
    except ValueError:
        return is_loopback(host.removesuffix("."))


def is_special(address: IPv4Address | IPv6Address) -> bool:
    """Return whether the address is loopback, link-local, unspecified, multicast, reserved or a metadata service, also
    one that is embedded in an IPv6 address.
    """
    if isinstance(address, IPv6Address):
        embedded = address.ipv4_mapped or address.sixtofour
        if any(address in network for network in _IPV4_IN_LAST_BITS):
            embedded = IPv4Address(int(address) & 0xFFFF_FFFF)
        if embedded is not None and is_special(embedded):
            return True
        reserved = address in _METADATA
    else:
        reserved = address.is_reserved or int(address) >> _THIS_NETWORK_BITS == 0
    return reserved or address.is_loopback or address.is_link_local or address.is_unspecified or address.is_multicast


def _parse_entry(entry: str) -> URL:
    try:
        url = parse(entry)
    except UrlInvalid:
        url = None
    if url is None or url.raw_query_string or "?" in entry:
        raise ConfigError(
            f"webhook_allow: {entry!r} is neither * nor a URL of the form https://host[:port][/path] without user, "
            "query, fragment and dot segments"
        )
    return url


def _is_below(url: URL, prefix: URL) -> bool:
    if (url.scheme, _host(url), url.port) != (prefix.scheme, _host(prefix), prefix.port):
        return False
    path, begin = url.raw_path, prefix.raw_path.rstrip("/")
    return path == begin or path.startswith(f"{begin}/")


def _host(url: URL) -> str:
    return (url.host or "").lower().removesuffix(".")


def _written_path(text: str) -> str:
    """Return the path as it is written: the parser has resolved dot segments already."""
    return text.partition("?")[0].partition("://")[2].partition("/")[2]


def _has_dots(path: str) -> bool:
    """Return whether a server may read dot segments in the path: some decode twice, take a backslash for a slash, or
    ignore the parameters of a segment (`..;x`).
    """
    for _ in range(_DECODINGS_MAX):
        names = {segment.partition(";")[0] for segment in _SEGMENT_END.split(path)}
        if not {".", ".."}.isdisjoint(names):
            return True
        decoded = unquote(path)
        if decoded == path:
            return False
        path = decoded
    return True
