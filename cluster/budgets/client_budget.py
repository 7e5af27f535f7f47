"""Budgets of the limited resources of a node that clients hold: connections, bytes of requests, bytes of responses.

One rule holds for all of them, the dynamic threshold of shared-memory switches: a client address may hold at most its
share of the units that the *other* addresses leave free. With the default share of 50 % one address gets half, two get
a third each, n get 1/(n + 1) each, and 1/(n + 1) is left for the next address. No address has to be known in advance,
an address that takes all it can still leaves room for others, and the largest holder loses first when others come.
"""

import contextlib
from collections.abc import Iterable, Iterator
from ipaddress import IPv6Address, ip_address
from typing import Any, Final

from cluster.problems import Problem

IPV6_SUBSCRIBER_BITS: Final = 64
"""Prefix length that counts as one address: an IPv6 subscriber can choose among all addresses of at least a /64."""


def address_of(peername: Any) -> str:
    """Return the client address that a connection counts for; empty when the connection no longer knows its peer."""
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
    """Counts the units that clients hold, in all and by address. Use on the event loop only."""

    def __init__(self, limit: int, share_percent: int, reserved: int = 0) -> None:
        """Create an empty budget of `limit` units, of which `reserved` are for administration alone."""
        self._limit = limit
        self._share_percent = share_percent
        self._reserved = reserved
        self._by_address: dict[str, int] = {}
        self.held = 0

    def held_by(self, address: str) -> int:
        return self._by_address.get(address, 0)

    def has_room(self, address: str, size: int, *, administers: bool = False) -> bool:
        """Return whether `address` may hold `size` more units."""
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
        """Return the address that holds most units; empty when no address holds any."""
        return max(self._by_address if among is None else among, key=self.held_by, default="")


class ByteBudget(ClientBudget):
    """A budget of bytes that answers requests beyond it with a problem."""

    def __init__(self, limit_bytes: int, share_percent: int, described: str, reserved_bytes: int = 0) -> None:
        """Create an empty budget. `described` names the bytes in the detail of a problem."""
        super().__init__(limit_bytes, share_percent, reserved_bytes)
        self._described = described

    def require_room(self, address: str | None = None, size_bytes: int = 0, *, administers: bool = False) -> None:
        """Raise Problem overloaded when `size_bytes` more would exceed the share of the address. Without an address:
        when the limit is used up.
        """
        if address is None:
            if self.held >= self._limit - self._reserved:
                raise Problem("overloaded", f"{self.held} bytes of {self._described}: the limit; send it again later")
        elif not self.has_room(address, size_bytes, administers=administers):
            raise Problem(
                "overloaded",
                f"{self.held_by(address)} bytes of {self._described} of your address, {self.held} of all: {size_bytes} "
                "more would be beyond its share; send it again later",
            )

    @contextlib.contextmanager
    def holding(self, address: str, size_bytes: int) -> Iterator[None]:
        self.take(address, size_bytes)
        try:
            yield
        finally:
            self.give_back(address, size_bytes)
