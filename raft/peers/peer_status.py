"""Status of another node, as far as this one knows."""

from typing import NamedTuple


class PeerStatus(NamedTuple):
    connected: bool
    """And it has said something within two election timeouts."""
    match_index: int
    """Leader only: how far the peer's fsynced log is known to equal ours; 0 elsewhere."""
    snapshot_percent: int | None = None
    """Leader only: how much of a snapshot the peer has been sent; None while it needs none."""
