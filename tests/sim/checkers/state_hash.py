"""A checker of the state hash: all replicas that applied index i hold the same state. The running hashes agree, across
restarts and replays.
"""

from .violation import Violation


class StateHash:
    def __init__(self) -> None:
        self._hashes: dict[int, tuple[str, int]] = {}  # index -> (hash, first node)

    def on_applied(self, node_id: int, index: int, state_hash: str) -> None:
        known, first = self._hashes.setdefault(index, (state_hash, node_id))
        if known != state_hash:
            raise Violation("state_hash", f"nodes {first} and {node_id} differ after applying index {index}")
