"""Judges which nodes could lead and which should, whom a leader asks to take over, and whom an election waits for."""

import logging
from collections.abc import Collection

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

log = logging.getLogger(__name__)

PATIENCE_TIMEOUTS = 5
"""A node that is less fit to lead lets the others stand first: for this many election timeouts without a leader."""
SAID_AGAIN_S = 30.0
"""While a node waits for the same others, it says so this often."""


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
        self._granted: frozenset[int] | None = None  # pre-votes, when this node asked last
        self._said: tuple[frozenset[int], float] = frozenset(), float("-inf")

    # --- who should ------------------------------------------------------------------------------------------------

    def fitness(self, node_id: int) -> Fitness:
        """Return the hindrances for that node to lead well, as far as this one knows."""
        return Fitness(
            self._vital_signs.has_backlog(node_id),
            self._disks.is_low(node_id),
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

    # --- nobody does -----------------------------------------------------------------------------------------------

    def note_asked(self, granted: Collection[int] | None) -> None:
        """Note that this node asks for pre-votes once more, and which ones it was granted since it last asked."""
        self._granted = None if granted is None else frozenset(granted)
        missing, (said, said_at_s) = frozenset(self._missing()), self._said
        if missing and (missing != said or now() - said_at_s >= SAID_AGAIN_S):
            log.warning("no leader: %s", self.waits_for())
            self._said = missing, now()

    def why_nobody_leads(self) -> str:
        """Return the reason in words, for clients that are told that there is no leader."""
        waits_for = self.waits_for()
        return "no leader is known" if waits_for is None else f"no leader is known: {waits_for}"

    def waits_for(self) -> str | None:
        """Return whom an election needs and has not heard, and by which rule; None while a leader is known, or nobody
        is missing.
        """
        state, missing = self._state, self._missing()
        if not missing:
            return None
        named = ", ".join(f"{peer} ({self._last_word(peer)})" for peer in missing)
        if state.has_blank_log:
            return f"the first election of a cluster needs every node: no vote from {named}"
        return f"{state.majority} of {len(state.configuration.voters)} voters are needed, not heard: {named}"

    def _missing(self) -> list[int]:
        state = self._state
        if state.leader_id is not None or not state.is_voter:
            return []
        voters = state.other_voters
        silent = [peer for peer in voters if not self._presence.is_present(peer)]
        if state.has_blank_log:
            return silent if self._granted is None else [each for each in voters if each not in self._granted]
        return silent if len(state.configuration.voters) - len(silent) < state.majority else []

    def _last_word(self, peer: int) -> str:
        """Return in words when that peer was heard last."""
        silent_s = self._presence.silent_s(peer)
        if silent_s is None:
            return "never heard"
        if self._presence.is_present(peer):
            return "answers and gives none: it held another cluster before, and its data directory has to be emptied"
        return f"last heard {silent_s:.0f} s ago"
