"""Where nodes are dialled: where the log says, and while they do not answer there, where they say that they are."""

from ipaddress import ip_address

from raft.config import PeerAddress

PORT_DIGITS_MAX, PORT_MAX = 5, 65535


class Whereabouts:
    """What nodes say of themselves counts as long as the connection stands over which they have said it."""

    def __init__(self) -> None:
        self._said: dict[int, tuple[object, PeerAddress]] = {}

    def hear(self, peer: int, address: str, connection: object) -> PeerAddress | None:
        """The address in a Hello, if it is one at which somebody can be reached; a later Hello counts."""
        said = parse(address)
        self._said.pop(peer, None)
        if said is not None:
            self._said[peer] = connection, said
        return said

    def forget(self, peer: int, connection: object) -> None:
        """That connection has ended."""
        if peer in self._said and self._said[peer][0] is connection:
            del self._said[peer]

    def choose(self, peer: int, in_log: PeerAddress, failures: int) -> PeerAddress:
        """For the attempt after `failures` that failed: by turns the one and the other, the log's first."""
        said = self._said.get(peer)
        return said[1] if said is not None and failures % 2 else in_log


def parse(text: str) -> PeerAddress | None:
    """HOST:PORT from a peer; None when it is none."""
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and len(port) <= PORT_DIGITS_MAX) or int(port) > PORT_MAX:
        return None
    address = PeerAddress(host, int(port))
    return address if host and is_reachable(address) else None


def is_reachable(address: PeerAddress) -> bool:
    """Not one that stands for all addresses of whoever uses it."""
    try:
        return not ip_address(address.host).is_unspecified
    except ValueError:
        return True
