"""Free ports that follow each other, as `make cluster` wants them."""

from deploy.local_nodes import free_ports, port_is_free


def run_of_free_ports(count: int) -> int:
    """Return the first of `count` consecutive free ports."""
    while True:
        first = free_ports(1)[0]
        if first + count < 65_000 and all(map(port_is_free, range(first, first + count))):
            return first
