"""Sends the messages of a node's parts to its peers: at once, or as promises that wait for the disk."""

from typing import Any

from raft.gate import DurabilityGate
from raft.library import PeerTransport
from raft.state import RaftState


class Sender:
    """Owns the durability gate. Loop-only."""

    def __init__(self, state: RaftState, transport: PeerTransport) -> None:
        self._state = state
        self._transport_send = transport.send
        self.gate = DurabilityGate(transport.send)

    def send(self, peer: int, message: Any) -> None:
        """Send a message that depends on no durable state of this node: an append, a refusal, an answer to a
        heartbeat."""
        self._transport_send(peer, message)

    def send_promise(self, peer: int, message: Any, needs_index: int | None = None) -> None:
        """Send a message as soon as this node's log is synced up to `needs_index`; without one, up to its end.

        Votes and requests for votes speak of the whole log.
        """
        log = self._state.log
        self.gate.submit(peer, message, log.last_index if needs_index is None else needs_index, log.synced_index)
