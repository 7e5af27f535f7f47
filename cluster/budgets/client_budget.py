"""What clients may hold of something that a node has a limited amount of: connections, bytes of requests, of responses.

One rule for all of them, the dynamic threshold of shared-memory switches: a client address may hold at most its share
of what the *other* addresses leave free. With the default share of 50 % one address gets half, two a third each, n get
1/(n + 1) each, and 1/(n + 1) is left for an address that comes next. Nobody has to be known in advance, nobody who
takes all he can leaves nothing, and whoever holds much loses first when others come.
"""

import contextlib
from collections.abc import Iterable, Iterator
from ipaddress import IPv6Address, ip_address
from typing import Any, Final

from cluster.problems import Problem

IPV6_SUBSCRIBER_BITS: Final = 64
"""One IPv6 subscriber has at least this many bits of addresses to choose from: a /64 counts as one address."""


def address_of(peername: Any) -> str:
    """The client address that a connection counts for; empty when the connection does not know its peer any more."""
    if not isinstance(peername, tuple) or not peername:
        return ""
    text = str(peername[0])
    if ":" not in text:
        return text
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return text
    if not isinstance(address, IPv6Address):
        return text
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    if address.is_loopback:
        return str(address)
    host_bits = 128 - IPV6_SUBSCRIBER_BITS
    return f"{IPv6Address(int(address) >> host_bits << host_bits)}/{IPV6_SUBSCRIBER_BITS}"


class ClientBudget:
    """Units that clients hold, in all and by address. Loop-only."""

    def __init__(self, limit: int, share_percent: int, reserved: int = 0) -> None:
        """`reserved` of `limit` are for administration alone."""
        self._limit = limit
        self._share_percent = share_percent
        self._reserved = reserved
        self._by_address: dict[str, int] = {}
        self.held = 0

    def held_by(self, address: str) -> int:
        return self._by_address.get(address, 0)

    def has_room(self, address: str, size: int, *, administers: bool = False) -> bool:
        """Whether `address` may hold `size` more units."""
        if administers:
            return self.held + size <= self._limit
        own = self._by_address.get(address, 0)
        left_by_others = self._limit - self._reserved - self.held + own
        return (own + size) * 100 <= left_by_others * self._share_percent

    def take(self, address: str, size: int) -> None:
        """Count `size` more units, whether there is room or not."""
        self.held += size
        self._by_address[address] = self._by_address.get(address, 0) + size

    def give_back(self, address: str, size: int) -> None:
        self.held -= size
        left = self._by_address[address] - size
        if left:
            self._by_address[address] = left
        else:
            del self._by_address[address]

    def largest_holder(self, among: Iterable[str] | None = None) -> str:
        """The address that holds most; empty when nobody holds anything."""
        return max(self._by_address if among is None else among, key=self.held_by, default="")


class ByteBudget(ClientBudget):
    """Bytes of a kind that clients hold."""

    def __init__(self, limit_bytes: int, share_percent: int, described: str, reserved_bytes: int = 0) -> None:
        """`described` says in problems which bytes these are."""
        super().__init__(limit_bytes, share_percent, reserved_bytes)
        self._described = described

    def require_room(self, address: str | None = None, size_bytes: int = 0, *, administers: bool = False) -> None:
        """Problem overloaded when `size_bytes` would pass the address' share. Without an address: when nothing is left
        of the limit.
        """
        if address is None:
            if self.held >= self._limit - self._reserved:
                raise Problem("overloaded", f"{self.held} bytes of {self._described}: the limit")
        elif not self.has_room(address, size_bytes, administers=administers):
            raise Problem(
                "overloaded",
                f"{self.held_by(address)} bytes of {self._described} of your address, {self.held} of all: {size_bytes} "
                "more would be beyond its share",
            )

    @contextlib.contextmanager
    def holding(self, address: str, size_bytes: int) -> Iterator[None]:
        self.take(address, size_bytes)
        try:
            yield
        finally:
            self.give_back(address, size_bytes)
