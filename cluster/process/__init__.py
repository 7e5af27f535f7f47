"""The process around the node: options, data directory, exit codes, logs, joining a cluster."""

from typing import Final

PRIVATE_UMASK: Final = 0o077
"""File mode mask: the files of a node hold the messages of all clients, so only the node's user may read them."""
