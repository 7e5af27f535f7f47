"""Parses addresses and URLs as operators write them, in a node's configuration and when nodes are added or moved."""

import re
from collections.abc import Sequence
from ipaddress import IPv6Address, ip_address
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from raft.config import NODE_ID_MAX

DIGITS_MAX: Final = 10
HOST_LENGTH_MAX: Final = 253

_NOT_IN_URL: Final = re.compile(r"[^!-~]|[?#@\\]")
"""Characters refused in URLs, among them white space and control characters, which urlsplit removes silently."""
_LABEL: Final = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_NUMBER: Final = re.compile(r"[0-9]+|0[xX][0-9A-Fa-f]*")


class ConfigError(Exception):
    """The configuration cannot be used; the message names the option and its source."""


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Peer(NamedTuple):
    """One node of the cluster, with its Raft address and the URL at which clients reach its HTTP API."""

    node_id: int
    address: Address
    url: str


def parse_address(text: str, option: str) -> Address:
    host, separator, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    number = _number(port)
    if not separator or not _is_host(host) or number is None or not 1 <= number <= 65535:
        raise ConfigError(f"{option}: {text!r} is not HOST:PORT")
    return Address(host, number)


def _number(text: str) -> int | None:
    """Parse plain digits; None for other texts. int() would also accept signs and other alphabets, and raise for
    thousands of digits.
    """
    return int(text) if text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX else None


def parse_url(text: str, option: str) -> str:
    """Return the URL without a trailing slash. Raises ConfigError unless it is http(s)://host[:port]."""
    try:
        parts = urlsplit(text)
        valid = parts.scheme in ("http", "https") and _is_host(parts.hostname or "") and parts.port != 0
    except ValueError:
        valid = False
    else:
        valid = valid and parts.path in ("", "/") and not _NOT_IN_URL.search(text)
    if not valid:
        raise ConfigError(f"{option}: {text!r} is not a URL of the form http://host:port")
    return text.rstrip("/")


def is_unspecified(host: str) -> bool:
    """Return whether the host is the unspecified address, such as 0.0.0.0: a node can listen there, but nobody can
    reach it there.
    """
    try:
        address = ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_unspecified


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches the host, which is an IP address or a name."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def url_beside(url: str, listen: Address) -> str:
    """Return the URL of another listener of the node at `url`, under the name by which clients know the node. One that
    only the node's own machine reaches has its own address.
    """
    parts = urlsplit(url)
    host = listen.host if is_loopback(listen.host) else parts.hostname or ""
    return f"{parts.scheme}://{Address(host, listen.port)}"


def overlap(one: Address, other: Address) -> bool:
    """Return whether two listeners would be at the same port of an address."""
    return one.port == other.port and (one.host == other.host or is_unspecified(one.host) or is_unspecified(other.host))


def _is_host(text: str) -> bool:
    """Return whether the text is an IP address, or a name for a resolver. A name must not end in a number, because a
    resolver may take it for an address.
    """
    if _NOT_IN_URL.search(text):
        return False
    try:
        ip_address(text)
    except ValueError:
        labels = text.removesuffix(".").split(".")
        named = len(text) <= HOST_LENGTH_MAX and all(_LABEL.fullmatch(label) for label in labels)
        return named and not _NUMBER.fullmatch(labels[-1])
    return True


def parse_peer(text: str) -> Peer:
    """Parse `ID=HOST:PORT=URL`. Raises ConfigError, which names the error."""
    parts = text.split("=", 2)
    node_id = _number(parts[0])
    if len(parts) != 3 or not node_id or node_id > NODE_ID_MAX:
        raise ConfigError(
            f"peers: {text!r} is not ID=HOST:PORT=URL with an ID from 1 to {NODE_ID_MAX}, "
            "as in 1=10.0.0.1:7091=http://10.0.0.1:7081"
        )
    return Peer(node_id, parse_address(parts[1], "peers"), parse_url(parts[2], "peers"))


def check_peers(peers: Sequence[Peer]) -> None:
    """Check that each node is listed once. Raises ConfigError."""
    for what, seen in (
        ("node id", [str(peer.node_id) for peer in peers]),
        ("address", [str(peer.address) for peer in peers]),
        ("URL", [peer.url for peer in peers]),
    ):
        twice = next((item for item in seen if seen.count(item) > 1), None)
        if twice is not None:
            raise ConfigError(f"peers: {what} {twice} appears twice")
