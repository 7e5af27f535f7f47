"""Judges which nodes could lead and which should, and whom a leader asks to take over."""

from raft.election.fitness import FIT, Fitness
from raft.health.clock_agreement import ClockAgreement
from raft.health.disk_health import DiskHealth
from raft.health.presence import Presence
from raft.health.vital_signs import VitalSigns
from raft.library import LEADER, now
from raft.messages import TimeoutNow
from raft.replication.replication import Replication
from raft.sender import Sender
from raft.state import RaftState

PATIENCE_TIMEOUTS = 5
"""A node that is less fit to lead lets the others stand first: for this many election timeouts without a leader."""


class Leadership:
    """Loop-only. It judges by what this node has heard."""

    def __init__(
        self,
        state: RaftState,
        sender: Sender,
        replication: Replication,
        vital_signs: VitalSigns,
        disks: DiskHealth,
        clocks: ClockAgreement,
        presence: Presence,
    ) -> None:
        self._state = state
        self._sender = sender
        self._replication = replication
        self._vital_signs = vital_signs
        self._disks = disks
        self._clocks = clocks
        self._presence = presence

    # --- who should ------------------------------------------------------------------------------------------------

    def fitness(self, node_id: int) -> Fitness:
        """Return the hindrances for that node to lead well, as far as this one knows."""
        return Fitness(
            self._vital_signs.has_backlog(node_id),
            self._disks.is_low(node_id),
            self._vital_signs.is_drained(node_id),
            self._disks.is_slow(node_id),
            self._clocks.is_wrong(node_id),
        )

    @property
    def own_fitness(self) -> Fitness:
        return self.fitness(self._state.node_id)

    def successor(self) -> int | None:
        """Leader: return a voter that answers, has caught up and is fitter than this node; None without one."""
        own = self.own_fitness
        if own == FIT or self._state.role != LEADER:
            return None
        return next((peer for peer in self.successors() if self.fitness(peer) < own), None)

    def successors(self) -> list[int]:
        """Leader: return the other voters that answer and have caught up, the fittest first."""
        able = [peer for peer in self._state.other_voters if self._replication.is_caught_up(peer)]
        return sorted(able, key=lambda peer: (self.fitness(peer), -self._replication.acked(peer), -peer))

    def ask_successor(self, wanted: int | None = None) -> None:
        """Leader: tell the `wanted` voter to stand, or else the fittest of the voters that have caught up, or the most
        complete of those that are connected; as soon as it has all of the log. Whether this node's own disk has it does
        not matter.
        """
        state, acked = self._state, self._replication.acked
        connected = sorted(filter(state.connected, state.other_voters), key=lambda peer: (-acked(peer), -peer))
        asked = (self.successors() or connected)[:1] if wanted is None else [wanted]
        for peer in asked:
            if acked(peer) >= state.log.last_index:
                self._sender.send(peer, TimeoutNow(state.term))

    def lets_others_stand_first(self, leaderless_since_s: float) -> bool:
        """Return whether nodes are there that are fitter and have not had their time to stand yet.

        Once they had it this one stands: writing must not depend on them.
        """
        state = self._state
        if now() - leaderless_since_s >= PATIENCE_TIMEOUTS * state.config.election_timeout_ms / 1000:
            return False
        own = self.own_fitness
        return own != FIT and any(
            self._presence.is_present(peer) and self.fitness(peer) < own for peer in state.other_voters
        )

    # --- who could -------------------------------------------------------------------------------------------------

    def has_majority(self) -> bool:
        """Leader: whether a majority of the voters has answered lately."""
        return self._state.configuration.has_majority(self._replication.answering_voters())

    def quorum_margin(self) -> int:
        """Return how many voters may fall silent before there is no majority any more; negative while there is none."""
        return len(self.heard_voters()) - self._state.majority

    def heard_voters(self) -> frozenset[int]:
        """Return the voters that count for a majority now.

        A leader counts the voters that answer it and would elect another one; other nodes count those that they hear.
        """
        state = self._state
        if state.role == LEADER:
            heard = self._replication.answering_voters()
        else:
            heard = {peer for peer in state.other_voters if state.connected(peer) and self._presence.is_present(peer)}
            if self._vital_signs.votes or state.has_blank_log:
                heard.add(state.node_id)
        return frozenset(heard & state.configuration.voters)

    def full_disks(self) -> list[int]:
        """Return the voters for want of whose room this node, as leader, could not carry a write out.

        Empty if it could. It cannot when no majority both is there and has room; nor when this node has no room, and
        nobody to hand over to.
        """
        low, node_id = self._disks.low(), self._state.node_id
        if not low:
            return []
        configuration = self._state.configuration
        voters = configuration.voters
        able = {each for each in voters - low if each == node_id or self._presence.is_present(each)}
        if configuration.has_majority(able) and (node_id not in low or self.successor() is not None):
            return []
        return sorted(low & (voters | {node_id}))
