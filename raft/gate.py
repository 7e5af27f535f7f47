"""The durability gate: what a node says to its peers waits until its own log is on disk (invariant 2).

Raft's safety argument takes for granted that an acknowledgement, a vote or a vote request speaks of a log that
survives a power loss. A message enters the gate with the index it depends on and leaves when the log is synced to
that index.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

Send = Callable[[int, Any], None]


class DurabilityGate:
    """Keeps order: a message never overtakes an earlier one. Single-threaded; owned by the node's handlers."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._held: deque[tuple[int, int, Any]] = deque()  # (needs synced up to, peer, message)

    def submit(self, peer: int, message: Any, needs_index: int, synced_index: int) -> None:
        """Send now if the log is synced up to needs_index, else when `release` says so."""
        if not self._held and needs_index <= synced_index:
            self._send(peer, message)
        else:
            self._held.append((needs_index, peer, message))

    def release(self, synced_index: int) -> None:
        """The log is on disk up to synced_index."""
        while self._held and self._held[0][0] <= synced_index:
            _, peer, message = self._held.popleft()
            self._send(peer, message)

    def discard(self) -> None:
        """Take back all promises not yet made: the term has changed or the log was cut, so they are no longer true."""
        self._held.clear()

    def __len__(self) -> int:
        return len(self._held)
