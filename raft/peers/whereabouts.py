"""Chooses where nodes are dialled: at the address in the log, or else where they say that they are."""

from ipaddress import ip_address

from raft.config import PeerAddress

PORT_DIGITS_MAX, PORT_MAX = 5, 65535


class Whereabouts:
    """Remembers the addresses that nodes announce; each counts as long as the connection stands that announced it."""

    def __init__(self) -> None:
        self._said: dict[int, tuple[object, PeerAddress]] = {}

    def hear(self, peer: int, address: str, connection: object) -> PeerAddress | None:
        """Take over the address of a Hello, replacing an earlier one. Returns None if it cannot be reached."""
        said = parse(address)
        self._said.pop(peer, None)
        if said is not None:
            self._said[peer] = connection, said
        return said

    def forget(self, peer: int, connection: object) -> None:
        """Drop the peer's address if that connection announced it, since the connection has ended."""
        if peer in self._said and self._said[peer][0] is connection:
            del self._said[peer]

    def choose(self, peer: int, in_log: PeerAddress, failures: int) -> PeerAddress:
        """Return the address for the attempt after `failures` failed ones: the log's and the announced alternate."""
        said = self._said.get(peer)
        return said[1] if said is not None and failures % 2 else in_log


def parse(text: str) -> PeerAddress | None:
    """Parse HOST:PORT from a peer; returns None when the text is invalid or the address cannot be reached."""
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and len(port) <= PORT_DIGITS_MAX) or int(port) > PORT_MAX:
        return None
    address = PeerAddress(host, int(port))
    return address if host and is_reachable(address) else None


def is_reachable(address: PeerAddress) -> bool:
    """Return False for an unspecified address such as 0.0.0.0, which names no particular machine."""
    try:
        return not ip_address(address.host).is_unspecified
    except ValueError:
        return True
