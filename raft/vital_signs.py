"""What nodes tell each other of themselves, once an election timeout: clock, disk, and how much waits to be applied."""

from typing import TYPE_CHECKING, Final

from raft.messages import Vitals

if TYPE_CHECKING:
    from raft.election import ElectionHandlers

BACKLOG_ENTRIES: Final = 10_000
"""A node that has more to apply would as leader serve nobody until that is done."""


class VitalSigns:
    """Loop-only. Who compares what is heard is elsewhere: raft/clock_agreement.py, raft/disk_health.py."""

    def __init__(self, raft: "ElectionHandlers") -> None:
        self._raft = raft
        self._unapplied: dict[int, int] = {}

    def of(self, peer: int) -> Vitals:
        """For that peer, at this moment."""
        raft = self._raft
        return raft.clocks.vitals_for(
            peer, raft.replicas.state(votes=raft.votes), raft.disks.report(), self._own_unapplied()
        )

    def tell_if_due(self) -> None:
        """Once an interval, and at once when there is news."""
        raft = self._raft
        if raft.clocks.vitals_are_due() or raft.disks.has_news:
            raft.disks.has_news = False
            for peer in filter(raft.connected, raft.peer_ids):
                raft.send(peer, self.of(peer))

    def hear(self, peer: int, vitals: Vitals) -> None:
        raft = self._raft
        raft.clocks.hear(peer, vitals)
        raft.replicas.hear(peer, vitals.replica)
        if vitals.disk is not None:
            raft.disks.hear(peer, vitals.disk)
        self._unapplied = {each: count for each, count in self._unapplied.items() if each in raft.peer_ids}
        self._unapplied[peer] = vitals.unapplied

    def has_backlog(self, node_id: int) -> bool:
        """Whether that node has much to apply, as while its index is made anew; by its last word."""
        own = node_id == self._raft.config.node_id
        return (self._own_unapplied() if own else self._unapplied.get(node_id, 0)) > BACKLOG_ENTRIES

    def _own_unapplied(self) -> int:
        """Of what is known to be committed."""
        raft = self._raft
        return max(0, max(raft.commit_index, raft.knowledge.committed[1]) - raft.last_applied)
