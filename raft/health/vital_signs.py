"""The vital signs that nodes tell each other once an election timeout: clock, disk, entries to be applied, drained."""

from typing import Final

from raft.copies.own_copy import OwnCopy
from raft.copies.replicas import Replicas
from raft.health.clock_agreement import ClockAgreement
from raft.health.disk_health import DiskHealth
from raft.messages import Vitals
from raft.sender import Sender
from raft.state import RaftState

BACKLOG_ENTRIES: Final = 10_000
"""A node that has more to apply would as leader serve nobody until that is done."""


class VitalSigns:
    """Loop-only. The comparisons of what is heard are elsewhere: raft/health/clock_agreement.py,
    raft/health/disk_health.py, raft/copies/replicas.py.
    """

    def __init__(
        self,
        state: RaftState,
        sender: Sender,
        own_copy: OwnCopy,
        replicas: Replicas,
        disks: DiskHealth,
        clocks: ClockAgreement,
    ) -> None:
        self._state = state
        self._sender = sender
        self._own_copy = own_copy
        self._replicas = replicas
        self._disks = disks
        self._clocks = clocks
        self._unapplied: dict[int, int] = {}
        self._drained: set[int] = set()
        self._has_news = False

    @property
    def votes(self) -> bool:
        """True when this node's own copy lets it vote, and count for a majority."""
        return self._own_copy.votes

    def of(self, peer: int) -> Vitals:
        """Return this node's vital signs of this moment, for that peer."""
        return self._clocks.vitals_for(
            peer,
            self._replicas.state(votes=self._own_copy.votes),
            self._disks.report(),
            self._own_unapplied(),
            is_drained=self.is_drained(self._state.node_id),
        )

    def tell_if_due(self) -> None:
        """Tell every connected peer once an interval, and at once when the disk, or an operator, has news."""
        state = self._state
        if self._clocks.vitals_are_due() or self._disks.has_news or self._has_news:
            self._disks.has_news = self._has_news = False
            for peer in filter(state.connected, state.peer_ids):
                self._sender.send(peer, self.of(peer))

    def hear(self, peer: int, vitals: Vitals) -> None:
        self._clocks.hear(peer, vitals)
        self._replicas.hear(peer, vitals.replica)
        if vitals.disk is not None:
            self._disks.hear(peer, vitals.disk)
        peers = self._state.peer_ids
        self._unapplied = {each: count for each, count in self._unapplied.items() if each in peers}
        self._unapplied[peer] = vitals.unapplied
        self._drained &= {*peers, self._state.node_id}
        self._note_drained(peer, vitals.is_drained)

    def drain(self, *, drained: bool) -> None:
        """Note that an operator wants other nodes to lead than this one, or lets it lead again."""
        self._has_news = self._has_news or drained != self.is_drained(self._state.node_id)
        self._note_drained(self._state.node_id, drained)

    def is_drained(self, node_id: int) -> bool:
        """Return whether an operator wants other nodes to lead than that one; by its last word."""
        return node_id in self._drained

    def _note_drained(self, node_id: int, is_drained: bool) -> None:
        if is_drained:
            self._drained.add(node_id)
        else:
            self._drained.discard(node_id)

    def has_backlog(self, node_id: int) -> bool:
        """Return whether that node has much to apply, as while its index is made anew; by its last word."""
        own = node_id == self._state.node_id
        return (self._own_unapplied() if own else self._unapplied.get(node_id, 0)) > BACKLOG_ENTRIES

    def known_committed(self, peer: int) -> int:
        """Return the last entry that the peer knows to be committed, by its last word; 0 if nothing recent is known."""
        applied = self._replicas.applied_by(peer)
        return applied and applied + self._unapplied.get(peer, 0)

    def _own_unapplied(self) -> int:
        """Return how many entries are known to be committed and not applied here."""
        state = self._state
        return max(0, max(state.commit_index, state.knowledge.committed[1]) - state.last_applied)
